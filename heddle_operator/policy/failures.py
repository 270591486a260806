"""What failed is remembered, and not tried again at once: plans on their nodes, GPUs, steps.

The memory is the epoch records, so every operator has it: an epoch that was given up tells with
which errors its plan failed, one that recovers tells from which errors.
Source: Kubernetes' back-off of containers that crash (pauses that double).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.state.actions import RecordEvent, RequestPlan
from heddle_operator.state.decision import Decision, sooner
from heddle_operator.state.progress import members_with_ranks
from heddle_operator.state.situation import Situation
from heddle_operator.state.snapshot import EpochRecord, Failure, Observed
from planner.cluster.composition import Composition
from planner.plans.plan import Plan
from worker.contract import ErrorKind, RankReport

PLAN_PAUSE_S = 600.0  # the same plan is not tried again on the same nodes for so long
GPU_PAUSE_S = 600.0  # a GPU that failed is left out for so long; twice as long each further time
GPU_PAUSE_LIMIT_S = 86_400.0
_OF_A_PLAN: tuple[ErrorKind, ...] = ("device", "other", "numeric")
_OF_AN_EPOCH: tuple[ErrorKind, ...] = ("device", "other")


def causes_of(where: Situation) -> tuple[Failure, ...]:
    """Errors with which ranks of the live epoch halted; that a peer was lost is none."""
    node_of = {(m.pod, m.slot): (m.node, m.gpu) for m in (where.live.ranked if where.live else ())}
    rows = [
        (node_of[holder.pod, holder.rank.slot], holder.rank)
        for holder in where.holders
        if holder.rank.phase == "halted" and (holder.pod, holder.rank.slot) in node_of
    ]
    told = [(place, rank) for place, rank in rows if _is(rank, _OF_AN_EPOCH)]
    return _merged((place, rank, rank.epoch or 0) for place, rank in told)


def failures_of(record: EpochRecord, observed: Observed) -> tuple[Failure, ...]:
    """Errors with which an epoch's plan failed before its vote; a lost peer is not the plan's."""
    return _merged(
        ((member.node, member.gpu), rank, record.epoch)
        for member, rank in members_with_ranks(observed, record)
        if rank.failed_epoch == record.epoch and _is(rank, _OF_A_PLAN)
    )


def failed_attempt(epochs: Iterable[EpochRecord], plan: Plan, now: float) -> EpochRecord | None:
    """The newest epoch in which this plan failed on its nodes, too short a time ago."""
    found = [
        record
        for record in epochs
        if record.plan == plan and record.failures and not _is_over(record, now)
    ]
    return found[-1] if found else None


def untried(
    job: HeddleJob,
    observed: Observed,
    composition: Composition,
    live: EpochRecord | None,
    now: float,
    kept: Collection[str] = (),
) -> Composition:
    """Nodes for which the planner has no plan yet that failed on them.

    Where the plan for all of them failed, one node after the other is left out, those whose rank
    failed first; where each such plan failed as well, the answer is all nodes.

    Args:
        job: supplies `minGPUs`.
        observed: supplies the planner's answers and the records.
        composition: all nodes that may be used.
        live: the epoch to move from; None at the start.
        now: by the clock of the records.
        kept: nodes that are never left out.
    """
    failed = _failed_on(observed, composition, live, now)
    if failed is None:
        return composition
    guilty = {node for failure in failed.failures for node, _ in failure.gpus}
    order = sorted(composition.nodes, key=lambda n: (n.name not in guilty, n.gpus, n.name))
    for node in order:
        rest = composition.without([node.name])
        is_new = live is None or rest != live.composition
        if is_new and node.name not in kept and rest.gpus >= job.spec.elastic.min_gpus:
            reply = observed.replies.get(RequestPlan(rest, live.plan if live else None).key)
            has_none = reply is not None and reply.plan is None
            if not has_none and _failed_on(observed, rest, live, now) is None:
                return rest
    return composition


def keep_after_failure(failed: EpochRecord, now: float, again: float | None) -> Decision:
    """Keep the live plan: the better one failed, and nothing forces the job to move."""
    words = "; ".join(dict.fromkeys(failure.sentence for failure in failed.failures))
    sentence = f"the plan is kept: the better one failed in epoch {failed.epoch}: {words}"
    left_s = retry_left_s(failed, now)
    event = RecordEvent(f"kept-{failed.epoch}-failed", "PlanKept", sentence)
    return Decision((event,), "Running", sentence, sooner(again, left_s), keeps_plan=True)


def _failed_on(
    observed: Observed, composition: Composition, live: EpochRecord | None, now: float
) -> EpochRecord | None:
    reply = observed.replies.get(RequestPlan(composition, live.plan if live else None).key)
    if reply is None or reply.plan is None:
        return None
    return failed_attempt(observed.epochs, reply.plan, now)


def retry_left_s(record: EpochRecord, now: float) -> float:
    """Seconds until a plan that failed may be tried again on the same nodes."""
    return max(0.0, (record.closed_s or now) + PLAN_PAUSE_S - now)


def failed_gpus(
    observed: Observed, where: Situation, now: float
) -> Mapping[tuple[str, int], float]:
    """GPUs to be left out of plans, as (node, GPU), and for how many seconds still."""
    times: dict[tuple[str, int], dict[int, float]] = {}
    seen = [(record, failure) for record in observed.epochs for failure in record.cause]
    rows = [(record.adopted_s, failure) for record, failure in seen]
    rows += [
        (record.closed_s or now, failure)
        for record in observed.epochs
        for failure in record.failures
        if not _trains_on(observed, failure)
    ]
    rows += [(now, failure) for failure in causes_of(where)]
    for at_s, failure in rows:
        for place in failure.gpus if failure.kind == "device" else ():
            times.setdefault(place, {}).setdefault(failure.epoch, at_s)
    left = {place: max(of.values()) + _gpu_pause_s(len(of)) - now for place, of in times.items()}
    return {place: left_s for place, left_s in left.items() if left_s > 0}


def is_remembered(record: EpochRecord, now: float) -> bool:
    """Whether a record's errors still count, so that it must not be deleted."""
    at_s = record.closed_s if record.closed_s is not None else record.adopted_s
    kept_s = 2 * GPU_PAUSE_S  # until a repetition would no more be one
    return bool(record.failures or record.cause) and now - at_s < kept_s


def comes_again(epochs: Iterable[EpochRecord], failure: Failure) -> bool:
    """Whether the same error came at the same step in an epoch before: it would come for ever."""
    return failure.kind == "other" and any(
        (known.kind, known.sentence, known.step) == (failure.kind, failure.sentence, failure.step)
        and known.epoch != failure.epoch
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


def _gpu_pause_s(times: int) -> float:
    return min(GPU_PAUSE_LIMIT_S, GPU_PAUSE_S * 2.0 ** min(times - 1, 30))


def _is(rank: RankReport, kinds: tuple[ErrorKind, ...]) -> bool:
    return rank.error_kind in kinds and bool(rank.error)


def _is_over(record: EpochRecord, now: float) -> bool:
    return retry_left_s(record, now) <= 0


def _merged(rows: Iterable[tuple[tuple[str, int], RankReport, int]]) -> tuple[Failure, ...]:
    """One failure for all ranks that say the same."""
    found: dict[tuple[ErrorKind, str, int, int], list[tuple[str, int]]] = {}
    for place, rank, epoch in rows:
        assert rank.error_kind is not None
        key = (rank.error_kind, rank.error or "", epoch, rank.step)
        found.setdefault(key, []).append(place)
    return tuple(Failure(*key, tuple(sorted(places))) for key, places in sorted(found.items()))
