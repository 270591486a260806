"""Members of an epoch in transport order, with their pods, store and directives.

Invariant: members list the new ranks in rank order, then the old ones that leave, by pod and slot;
the same record always gives the same directives.
Source: worker/contract.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.rules.candidates import leaving_nodes
from heddle_operator.state.actions import CreatePod, SendDirective
from heddle_operator.state.epoch_record import EpochRecord, Seal
from heddle_operator.state.reachability import report_of
from heddle_operator.state.situation import Holder
from heddle_operator.state.snapshot import Observed
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap
from worker.contract import Directive, DirectivePhase, Member, RankReport

MAX_HOST_NAME = 63  # a longer name of a pod is not its host name any more
LONG_JOB = 42  # letters of a job's name that leave room for node and ordinal
JOB_LETTERS = 24  # of a longer name, for people; the digest tells such jobs apart


def pod_name(job: str, node: str, ordinal: int) -> str:
    """The name of a pod: the same for the same place, and never longer than a host name may be.

    What is cut has a digest in its stead: of the node, and of job and node where a long name of the
    job leaves no room for the node.
    """
    name = f"{job}-{node}-{ordinal}"
    if len(name) <= MAX_HOST_NAME:
        return name
    if len(job) <= LONG_JOB:
        cut, digest = job, _digest(node, 4)
    else:
        cut, digest = job[:JOB_LETTERS].strip("-"), _digest(f"{job}/{node}", 6)
    room = MAX_HOST_NAME - len(f"{cut}--{digest}-{ordinal}")
    return f"{cut}-{node[: max(0, room)].strip('-.')}-{digest}-{ordinal}".replace("--", "-")


def further_pod_name(name: str, job_uid: str) -> str:
    """A name for the pod whose own name somebody else's has: no two jobs and no two pods share it.

    Job `exp` on node `gpu-0` and job `exp-gpu` on node `0` give their pods one name.
    """
    digest = _digest(f"{job_uid}/{name}", 6)
    return f"{name[: MAX_HOST_NAME - len(digest) - 1].strip('-.')}-{digest}"


def _digest(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()


def missing_pods(job: HeddleJob, record: EpochRecord, observed: Observed) -> tuple[CreatePod, ...]:
    """The pods that the plan still needs.

    A pod takes the GPUs of its node that the plan reaches into, counted from 0, so that slot i is
    GPU i; where a later plan wants more, a further pod takes the rest.
    """
    wanted = []
    for node in record.plan.nodes:
        pods = observed.pods_on(node)
        needed = record.plan.gpus_reached[node]
        covered = sum(pod.gpus for pod in pods)
        if covered < needed:
            ordinal = pods[-1].ordinal + 1 if pods else 0
            name = pod_name(job.name, node, ordinal)
            wanted.append(CreatePod(name, node, ordinal, needed - covered))
    return tuple(wanted)


def seats_on_pods(plan: Plan, observed: Observed) -> tuple[tuple[str, int, str, int], ...] | None:
    """(pod, slot, node, GPU) of each rank in rank order; None while a pod is missing."""
    found = []
    for seat in RankMap.of(plan).seats:
        first = 0
        for pod in observed.pods_on(seat.node):
            if first <= seat.gpu < first + pod.gpus:
                found.append((pod.name, seat.gpu - first, seat.node, seat.gpu))
                break
            first += pod.gpus
        else:
            return None
    return tuple(found)


def members_of(
    plan: Plan, observed: Observed, holders: tuple[Holder, ...]
) -> tuple[Member, ...] | None:
    """The union of new ranks and of all ranks that hold state; None while a pod is missing."""
    seats = seats_on_pods(plan, observed)
    if seats is None:
        return None
    held = {(holder.pod, holder.rank.slot): holder.rank for holder in holders}
    taken = {(pod, slot) for pod, slot, _, _ in seats}
    new = [
        _member(pod, slot, node, gpu, rank, held.get((pod, slot)))
        for rank, (pod, slot, node, gpu) in enumerate(seats)
    ]
    left = []
    for holder in sorted(holders, key=lambda h: (h.pod, h.rank.slot)):
        slot = holder.rank.slot
        if (holder.pod, slot) not in taken:
            gpu = slot + _first_gpu(observed, holder)
            left.append(_member(holder.pod, slot, holder.node, gpu, None, holder.rank))
    return (*new, *left)


def _member(
    pod: str, slot: int, node: str, gpu: int, rank: int | None, held: RankReport | None
) -> Member:
    return Member(
        pod=pod,
        slot=slot,
        node=node,
        gpu=gpu,
        rank=rank,
        holds=held.epoch if held else None,
        also_holds=held.also_epoch if held else None,
    )


def _first_gpu(observed: Observed, holder: Holder) -> int:
    """The GPU of the node that is slot 0 of the holder's pod."""
    pods = observed.pods_on(holder.node)
    mine = next(pod for pod in pods if pod.name == holder.pod)
    return sum(pod.gpus for pod in pods if pod.ordinal < mine.ordinal)


def choose_store(members: tuple[Member, ...], observed: Observed) -> str | None:
    """The store of an agent in the epoch: one that stays and holds state, if any; ties by name."""
    leaving = leaving_nodes(observed, {member.pod for member in members})
    candidates = sorted(
        (m.node in leaving, m.holds is None, m.pod) for m in members if m.rank is not None
    )
    for _, _, pod in candidates:
        report = report_of(observed, pod)
        if report is not None and report.store is not None:
            return report.store
    return None


def directive_of(
    job: HeddleJob, record: EpochRecord, phase: DirectivePhase, observed: Observed
) -> Directive:
    """The directive of a sealed epoch; equal for every agent and every repetition."""
    seal = record.seal
    assert seal is not None, "only sealed epochs are directed"
    # What was adopted counts: the user may let `steps` grow while agents are told.
    steps = record.steps or job.spec.steps
    return Directive(
        job=job.name,
        epoch=record.epoch,
        phase=phase,
        reason=record.reason,
        plan=record.plan.to_json(),
        plan_digest=record.plan.digest,
        layouts=_layouts(seal, observed),
        members=seal.members,
        store=seal.store,
        training=job.training.model_copy(update={"steps": steps, "checkpoint": seal.checkpoint}),
        resume=seal.resume,
        restore=seal.restore,
        step_s=record.step_s,
        group_bytes=dict(record.group_bytes),
    )


def send_directive(
    job: HeddleJob,
    record: EpochRecord,
    phase: DirectivePhase,
    observed: Observed,
    pods: Collection[str],
) -> tuple[SendDirective, ...]:
    """The directive of a sealed epoch for some pods; it is one object, and made only for any."""
    directive = directive_of(job, record, phase, observed) if pods else None
    return tuple(SendDirective(pod, directive) for pod in pods if directive is not None)


def _layouts(seal: Seal, observed: Observed) -> dict[int, dict[str, object]]:
    held = sorted(
        {epoch for m in seal.members for epoch in (m.holds, m.also_holds) if epoch is not None}
    )
    records = [record for epoch in held if (record := observed.record(epoch)) is not None]
    return {record.epoch: record.plan.to_json() for record in records}
