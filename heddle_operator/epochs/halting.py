"""Whom to tell that a silent peer is lost: what is silent closes no connection by itself.

A rank that waits for a silent peer would wait for ever.  Told to halt, it leaves its world at once,
keeps its state and stands `halted`, as after any loss.
Invariant: a halt names an epoch that is broken anyway; nobody who trains whole is ever halted.
Source: worker/contract.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from heddle_operator.apis.wording import named
from heddle_operator.state.actions import SendHalt
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.reachability import is_silent, report_of, sends_heartbeats
from heddle_operator.state.situation import View
from heddle_operator.state.snapshot import Observed
from worker.contract import Halt


def halt_survivors(epoch: int, pods: Iterable[str], sentence: str) -> tuple[SendHalt, ...]:
    """A halt for each pod with ranks of an epoch that lost a peer, or hangs."""
    return tuple(SendHalt(pod, Halt(epoch=epoch, reason=sentence)) for pod in pods)


def halt_stranded(view: View) -> tuple[SendHalt, ...]:
    """Halts for ranks that wait in a change, which was given up, for a member that fell silent."""
    newest = view.situation.live.epoch if view.situation.live else 0
    found: list[SendHalt] = []
    for record in view.observed.epochs:
        if record.epoch <= newest or record.outcome != "aborted" or record.seal is None:
            continue
        silent = silent_members(view, record)
        if silent:
            pods = sorted({m.pod for m in record.seal.members} - set(silent))
            waiting = [pod for pod in pods if _is_stranded(view.observed, pod, record)]
            found += halt_survivors(record.epoch, waiting, f"{named('pod', silent)} fell silent")
    return tuple(found)


def silent_members(view: View, record: EpochRecord) -> list[str]:
    """Pods of an epoch's members that are silent, or that have a rank without heartbeats."""
    found = set()
    for seen in view.observed.members(record):
        member, rank = seen.member, seen.rank
        is_lost = rank is not None and not sends_heartbeats(rank, view.settings)
        if is_lost or is_silent(view.observed, member.pod, view.now, view.settings):
            found.add(member.pod)
    return sorted(found)


def _is_stranded(observed: Observed, pod: str, record: EpochRecord) -> bool:
    report = report_of(observed, pod)
    return (
        report is not None
        and report.epoch == record.epoch
        and any(rank.phase == "switching" for rank in report.ranks)
    )
