"""How often a job saves.

Source: Young, "A first order approximation to the optimum checkpoint interval" (1974), and Daly
(2006), for the default of `spec.checkpoint.interval`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from heddle_operator.rules.candidates import leaving_nodes
from heddle_operator.rules.coverage import Survivors
from heddle_operator.state.actions import SendSave
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.situation import View
from worker.training_settings import Checkpointing

FIRST_LOSS_S = 86_400.0  # between two losses, before the job has seen any for longer
FIRST_COST_S = 1.0  # that training loses by a save, before one was measured
RETRY_S = 60.0  # after a save that was asked for and failed
NOTICE_S = 5.0  # between two saves while nodes are about to go
LEAST_S, MOST_S = 30.0, 3_600.0  # between two checkpoints that nobody asked for


def save_now(view: View) -> tuple[SendSave, ...]:
    """Saves beside the usual ones: a user asks, or a notice announces a loss of the state.

    The annotation has the API server's time, as `heddle checkpoint now` writes it.  It is compared
    with the operator's clock, and so is the newest save, whatever the clock of its pod says.  Where
    the save that was asked for fails, it is tried again after `RETRY_S`.
    """
    situation, live = view.situation, view.situation.live
    if view.job.spec.checkpoint is None or live is None or live.outcome != "live":
        return ()
    if situation.pending is not None or situation.lost:
        return ()
    saves = view.observed.saves
    tried_s = max(saves.began_s, saves.failed_s)
    if not _is_asked(view) and (view.now - tried_s < NOTICE_S or not _would_be_lost(view, live)):
        return ()
    return tuple(SendSave(pod) for pod in sorted(live.hosts))


def _is_asked(view: View) -> bool:
    """Whether a user asks for a save that no rank has made yet, nor just failed to make."""
    saves, asked_unix_s = view.observed.saves, view.job.save_asked_unix_s
    if asked_unix_s is None:
        return False
    asked_s = asked_unix_s - view.observed.clock_offset_s
    has_failed = saves.failed_s >= asked_s and view.now < saves.failed_s + RETRY_S
    return saves.began_s < asked_s <= view.now and not has_failed


def _would_be_lost(view: View, live: EpochRecord) -> bool:
    """Whether the state is not whole without the nodes of the plan that have their notice."""
    leaving = leaving_nodes(view.observed, live.hosts) & set(live.plan.nodes)
    if not leaving:
        return False
    pods = {member.pod for member in live.ranked if member.node in leaving}
    holders = view.situation.holders
    survivors = Survivors.of(view.job.workload.model, holders, view.observed)
    return bool(survivors.lost_piece(pods))


def checkpointing(view: View, record: EpochRecord) -> Checkpointing | None:
    """When and where the ranks of an epoch save, as it is sealed; None: they do not."""
    wanted, training = view.job.spec.checkpoint, view.job.training.checkpoint
    if wanted is None or training is None:
        return None
    before = {"epochs_before": _epochs_before(view, record)}
    if wanted.interval is not None:
        return training.model_copy(update=before)
    cost_s = view.observed.saves.copy_s or FIRST_COST_S
    every_s = math.sqrt(2 * cost_s * _between_losses_s(view.observed.epochs, view.now))
    return training.model_copy(update={"every_s": min(max(every_s, LEAST_S), MOST_S), **before})


def _epochs_before(view: View, record: EpochRecord) -> int:
    """What makes the names of this epoch's checkpoints the newest of all that pods see."""
    last = view.situation.live or view.situation.left
    known = last.seal.checkpoint if last is not None and last.seal is not None else None
    reports = view.observed.reports.values()
    told = [report.checkpoints for report in reports if report.checkpoints is not None]
    seen = [answer.newest_epoch for answer in told if answer.epoch == record.epoch]
    return max(known.epochs_before if known else 0, 1 + max(seen, default=-1) - record.epoch, 0)


def _between_losses_s(epochs: Iterable[EpochRecord], now: float) -> float:
    """Mean time between losses of ranks, as far as records tell."""
    records = tuple(epochs)
    losses = sum(record.reason == "loss" or record.outcome == "lost" for record in records)
    if not losses:
        return FIRST_LOSS_S
    return max(LEAST_S, (now - records[0].adopted_s) / losses)
