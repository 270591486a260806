"""Failed plans, GPUs, nodes and steps are remembered, and not tried again at once.

The memory is the epoch records, so every operator has it: an epoch that was given up tells with
which errors its plan failed or on which nodes its pods did not start, one that recovers tells from
which errors.
Invariant: a node that trains is never left out, only the GPUs that its further pods would have
had; one that lacks room (GPUs, CPU, memory, a quota) is tried with half as many; another spec of
the job, or a node that went and came again, is tried at once.
Source: Kubernetes' back-off of containers that crash (pauses that double).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from heddle_operator.state.epoch_record import EpochRecord, Failure, StartFailure
from heddle_operator.state.progress import members_with_ranks
from heddle_operator.state.reasons import DEVICE_REASONS, StartCause
from heddle_operator.state.situation import Situation, View
from heddle_operator.state.snapshot import Observed
from planner.pauses import doubled_s
from planner.plans.plan import Plan
from planner.wording import joined
from worker.contract import ErrorKind, RankExit, RankReport

PLAN_PAUSE_S = 600.0  # the same plan is not tried again on the same nodes for so long
GPU_PAUSE_S = 600.0  # a GPU that failed is left out for so long; twice as long each further time
GPU_PAUSE_LIMIT_S = 86_400.0
NODE_PAUSE_S = 60.0  # a node on which a pod did not start is left out for so long; then twice ...
# Where the kubelet rejected the pod: for some seconds after the start of a node or a kubelet, the
# API server still shows the GPUs from before, and their plugin has yet to register.
REJECTED_PAUSE_S = 5.0
NODE_PAUSE_LIMIT_S = 3_600.0
_OF_A_START: tuple[ErrorKind, ...] = ("device", "setup", "fabric")  # of a rank without state
_OF_A_PLAN: tuple[ErrorKind, ...] = (*_OF_A_START, "other", "numeric", "checkpoint")
_OF_AN_EPOCH: tuple[ErrorKind, ...] = ("device", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A node that no plan gets for some time, or only a part of it.

    Attributes:
        times: how often pods did not start there for this cause since they last did.
        until_s: when it is tried again, by the clock of the records.
        gpus: that are tried meanwhile: half of those for which there was no room.
    """

    node: str
    cause: StartCause
    sentence: str
    times: int
    until_s: float
    gpus: int = 0


def causes_of(situation: Situation) -> tuple[Failure, ...]:
    """Errors with which ranks of the live epoch halted; that a peer was lost is none.

    A rank whose device failed has ended since, so of those that ended the device's errors count.
    """
    ranked = situation.live.ranked if situation.live else ()
    node_of = {(m.pod, m.slot): (m.node, m.gpu) for m in ranked}
    rows = [
        (node_of[holder.pod, holder.rank.slot], holder.rank)
        for holder in situation.holders
        if holder.rank.phase == "halted" and (holder.pod, holder.rank.slot) in node_of
    ]
    told: list[tuple[tuple[str, int], RankReport | RankExit]] = [
        (place, rank) for place, rank in rows if _is(rank, _OF_AN_EPOCH)
    ]
    told += [
        (node_of[pod, gone.slot], gone)
        for pod, gone in situation.ended
        if (pod, gone.slot) in node_of and gone.error_kind == "device"
    ]
    return _merged((place, rank, rank.epoch or 0) for place, rank in told)


def failures_of(record: EpochRecord, observed: Observed) -> tuple[Failure, ...]:
    """Errors with which an epoch's plan failed before its vote; a lost peer is not the plan's."""
    told: list[tuple[tuple[str, int], RankReport | RankExit, int]] = [
        ((member.node, member.gpu), rank, record.epoch)
        for member, rank in members_with_ranks(observed, record)
        if rank.failed_epoch == record.epoch and _is(rank, _OF_A_PLAN)
    ]
    known = record.seal.known_exits if record.seal else ()
    told += [  # of a rank that held nothing: it ends, and its agent keeps its words
        ((seen.member.node, seen.member.gpu), gone, record.epoch)
        for seen in observed.members(record)
        for gone in (seen.report.exits if seen.report is not None else ())
        if gone.slot == seen.member.slot and seen.member.holds is None
        if _is(gone, _OF_A_START) and (seen.member.pod, gone.pid) not in known
    ]
    return _merged(told)


def device_failure(view: View) -> Failure | None:
    """The newest error by which no rank got its device or its wires, if no epoch lived since.

    That of the live epoch counts until another one lives.  A GPU on which the old plan trains is
    ready, whatever it lacked for a change.
    """
    observed = view.observed
    found = [failure for failure in causes_of(view.situation) if failure.kind == "device"]
    for record in reversed(observed.epochs):
        if found or record.outcome not in ("open", "aborted"):
            break
        told = [f for f in record.failures if f.kind != "device" or not _trains_on(observed, f)]
        found = [f for f in (*told, *record.cause) if f.kind in DEVICE_REASONS]
    return min(found, key=lambda f: [*DEVICE_REASONS].index(f.kind), default=None)


def failed_attempt(epochs: Iterable[EpochRecord], plan: Plan, now: float) -> EpochRecord | None:
    """The newest epoch in which this plan failed on its nodes, too short a time ago."""
    found = [
        record
        for record in epochs
        if record.plan == plan and not _is_over(record, now)
        if any(failure.kind != "checkpoint" for failure in record.failures)
    ]
    return found[-1] if found else None


def retry_left_s(record: EpochRecord, now: float) -> float:
    """Seconds until a plan that failed may be tried again on the same nodes."""
    return max(0.0, (record.closed_s or now) + PLAN_PAUSE_S - now)


def failed_gpus(view: View) -> Mapping[tuple[str, int], float]:
    """GPUs to be left out of plans, as (node, GPU), and for how many seconds still."""
    times: dict[tuple[str, int], dict[int, float]] = {}
    for at_s, failure in _failures_of_gpus(view):
        for place in failure.gpus:
            times.setdefault(place, {}).setdefault(failure.epoch, at_s)
    left = {
        place: max(of.values()) + doubled_s(GPU_PAUSE_S, len(of), GPU_PAUSE_LIMIT_S) - view.now
        for place, of in times.items()
    }
    return {place: left_s for place, left_s in left.items() if left_s > 0}


def failed_gpu_words(view: View) -> tuple[str, ...]:
    """Why GPUs are left out now: one sentence for all that failed with the same words."""
    newest = {
        place: failure.sentence
        for _, failure in sorted(_failures_of_gpus(view), key=lambda row: row[0])
        for place in failure.gpus
    }
    places: dict[str, list[str]] = {}
    for node, gpu in sorted(failed_gpus(view)):
        places.setdefault(newest[node, gpu], []).append(f"GPU {gpu} of {node}")
    return tuple(f"{joined(gpus)} failed: {sentence}" for sentence, gpus in places.items())


def _failures_of_gpus(view: View) -> list[tuple[float, Failure]]:
    """Each failure of GPUs, and when it was told."""
    observed = view.observed
    rows = [(record.adopted_s, failure) for record in observed.epochs for failure in record.cause]
    rows += [
        (record.closed_s or view.now, failure)
        for record in observed.epochs
        for failure in record.failures
        if not _trains_on(observed, failure)
    ]
    rows += [(view.now, failure) for failure in causes_of(view.situation)]
    return [(at_s, failure) for at_s, failure in rows if failure.kind == "device"]


def nodes_left_out(view: View) -> tuple[LeftOut, ...]:
    """Nodes on which pods of this job could not start, and until when they are left out."""
    now = view.now
    joined = {node.name: node.joined_at_s for node in view.observed.nodes}
    times: dict[tuple[str, StartCause], list[tuple[float, StartFailure]]] = {}
    for record in view.observed.epochs:
        at_s = record.closed_s or now
        if record.outcome == "live":
            times = _without_started(times, record)
        for failure in record.start_failures:
            is_same_spec = failure.generation == view.job.metadata.generation
            if is_same_spec and at_s >= joined.get(failure.node, at_s + 1):
                times.setdefault((failure.node, failure.cause), []).append((at_s, failure))
    found: dict[str, LeftOut] = {}
    for (node, cause), rows in times.items():
        at_s, failure = rows[-1]
        first_s = REJECTED_PAUSE_S if cause == "rejected" else NODE_PAUSE_S
        until_s = at_s + doubled_s(first_s, len(rows), NODE_PAUSE_LIMIT_S)
        if until_s > max(now, found[node].until_s if node in found else now):
            gpus = failure.gpus // 2
            found[node] = LeftOut(
                node=node,
                cause=cause,
                sentence=failure.sentence,
                times=len(rows),
                until_s=until_s,
                gpus=gpus,
            )
    return tuple(found[node] for node in sorted(found))


def _without_started(
    times: Mapping[tuple[str, StartCause], list[tuple[float, StartFailure]]], record: EpochRecord
) -> dict[tuple[str, StartCause], list[tuple[float, StartFailure]]]:
    """Failures still known once pods of an epoch run: a node has fewer GPUs than were asked.

    The epoch shows nothing else if it uses fewer GPUs of the node.
    """
    used = Counter(placed.node for placed in record.plan.placement for _ in placed.gpus)
    return {
        (node, cause): rows
        for (node, cause), rows in times.items()
        if node not in used or rows[-1][1].gpus > used[node]
    }


def is_remembered(record: EpochRecord, now: float) -> bool:
    """Whether a record's errors still count, so that it must not be deleted."""
    at_s = record.closed_s if record.closed_s is not None else record.adopted_s
    kept_s = 2 * GPU_PAUSE_S  # until a repetition would no more be one
    if record.start_failures:
        kept_s = 2 * NODE_PAUSE_LIMIT_S
    is_told = bool(record.failures or record.cause or record.start_failures)
    return is_told and now - at_s < kept_s


def comes_again(epochs: Iterable[EpochRecord], failure: Failure) -> bool:
    """Whether the same error came at the same step in an epoch before: it would come for ever."""
    return failure.kind == "other" and any(
        known.identity == failure.identity and known.epoch != failure.epoch
        for record in epochs
        for known in record.cause
    )


def _trains_on(observed: Observed, failure: Failure) -> bool:
    """Whether the GPU of a failed change works: a rank of the old plan trains there.

    What it lacked was memory for a second engine, which another plan may not need.
    """
    record = observed.record(failure.epoch)
    if record is None or record.seal is None:
        return False
    held = {(m.node, m.gpu) for m in record.seal.members if m.holds is not None}
    return set(failure.gpus) <= held


def _is(rank: RankReport | RankExit, kinds: tuple[ErrorKind, ...]) -> bool:
    return rank.error_kind in kinds and bool(rank.error)


def _is_over(record: EpochRecord, now: float) -> bool:
    return retry_left_s(record, now) <= 0


def _merged(
    rows: Iterable[tuple[tuple[str, int], RankReport | RankExit, int]],
) -> tuple[Failure, ...]:
    """One failure for all ranks that say the same, in whatever processes a GPU had."""
    found: dict[tuple[ErrorKind, str, int, int, str], set[tuple[str, int]]] = {}
    for place, rank, epoch in rows:
        assert rank.error_kind is not None
        key = (rank.error_kind, rank.error or "", epoch, rank.step, rank.error_site or "")
        found.setdefault(key, set()).add(place)
    return tuple(
        Failure(
            kind=kind,
            sentence=sentence,
            epoch=epoch,
            step=step,
            gpus=tuple(sorted(places)),
            site=site or None,
        )
        for (kind, sentence, epoch, step, site), places in sorted(found.items())
    )
