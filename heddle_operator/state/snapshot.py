"""One frozen picture of a job and its cluster: everything that `decide` may know.

Invariant: an operator that starts anew sees the same picture; nothing that matters lives in its
memory.
Source: Observed, Action, Decision are Kubernetes controllers' level-triggered loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from heddle_operator.state.epoch_record import EpochRecord, Seal
from heddle_operator.state.node_flap import NodeFlap
from heddle_operator.state.plan_reply import PlanKey, PlanReply, ReferencedPlan
from heddle_operator.state.reasons import StartCause
from heddle_operator.state.saves import Heard, Saves, Told
from heddle_operator.state.worth import NodeSizes, Worth
from planner.cluster.composition import FASTEST, SLOWEST
from worker.contract import Member, RankReport, Report, SaveRecord, StepRecord

PodPhase = Literal["pending", "running", "ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedNode:
    """A node that can host worker pods of the job.

    Attributes:
        gpus: free for the job, its own pods' GPUs included.
        lent: beside them, GPUs that pods of other jobs hold, and that could become free.
        joined_at_s: when it became usable.
        leaving_at_s: when it will be gone; infinite where nobody says when; None: it stays.
        is_cordoned: it takes no new pods; somebody may be about to drain it.
        speed_factor: that whoever set the node up says of it.
        is_ready: its kubelet answers; ranks on a node that is not ready may be gone unsaid.
        measured_speed: of the speed that this one gives it, as its ranks measured; 1 is normal.
        type_speed: of its GPU type, of the speed that the profile gives that; 1 as profiled.
        gpu_price: money per GPU-hour that whoever set the node up says of it; None: nobody did.
    """

    name: str
    gpu_type: str
    gpus: int
    joined_at_s: float = 0.0
    leaving_at_s: float | None = None
    link_domain: str = "default"
    speed_factor: float = 1.0
    is_ready: bool = True
    is_cordoned: bool = False
    lent: int = 0
    measured_speed: float = 1.0
    type_speed: float = 1.0
    gpu_price: float | None = None

    @property
    def for_jobs(self) -> int:
        """GPUs that the jobs have between them."""
        return self.gpus + self.lent

    @property
    def speed(self) -> float:
        """Speed that a plan may count on, relative to the type's profile."""
        speed = self.speed_factor * self.measured_speed * self.type_speed
        return min(max(speed, SLOWEST), FASTEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPod:
    """A worker pod of the job.

    Attributes:
        ordinal: counts the job's pods of one node; their GPUs are the node's, in that order.
        address: host:port of its agent, once that listens.
        deleting: it got its notice.
        leaving_at_s: until when it trains on then; None: it stays, or nobody says.
        notice: why its GPUs must be left, in words (one is unhealthy); "" while they need not.
        problem: why it does not start, in words (an image that is not there); "" while it may.
        cause: which kind of problem that is.
        lingers: its worker has ended, and a sidecar runs on and holds its GPUs.
    """

    name: str
    node: str
    ordinal: int
    gpus: int
    phase: PodPhase
    address: str | None = None
    deleting: bool = False
    created_s: float = 0.0
    notice: str = ""
    problem: str = ""
    cause: StartCause = "container"
    leaving_at_s: float | None = None
    lingers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentView:
    """Knowledge of one pod's agent.

    Attributes:
        report: the newest; it may be older than the failure that `unreachable_since_s` tells of.
        unreachable_since_s: since when it has not answered; None: it does.
        heard_s: when the report came, by the operator's clock.
        progressed_s: when the rank of each slot last made progress, by that clock.
        saves_heard: when the saves of the report were heard of, by that clock.
        not_finite: steps that it told of whose loss or norm is not finite, the newest ones.
        problem: why it cannot be understood, in words (it is of another version); "" if it can.
        refusal: why it refused the newest directive as wrong, in words; "" if it did not.
    """

    pod: str
    report: Report | None
    unreachable_since_s: float | None = None
    heard_s: float = 0.0
    progressed_s: Mapping[int, float] = field(default_factory=dict)
    saves_heard: Mapping[SaveRecord, Heard] = field(default_factory=dict)
    not_finite: tuple[StepRecord, ...] = ()
    problem: str = ""
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member of an epoch, and what the cluster shows of it now.

    Attributes:
        member: as it was sealed.
        pod: None where it is gone.
        agent: None where it was never asked.
        report: of the agent, where the pod runs and the agent answers.
        rank: the process on the member's GPU, where that report tells of one.
    """

    member: Member
    pod: ObservedPod | None
    agent: AgentView | None
    report: Report | None
    rank: RankReport | None

    @property
    def newest_word(self) -> RankReport | None:
        """The rank's last word, even if its agent does not answer any more."""
        ranks = self.agent.report.ranks if self.agent and self.agent.report else ()
        return next((rank for rank in ranks if rank.slot == self.member.slot), None)

    def is_prepared(self, epoch: int) -> bool:
        """Whether the rank waits with everything built for an epoch."""
        return self.rank is not None and self.rank.pending_epoch == epoch


@dataclass(frozen=True, slots=True)
class RefusedPod:
    """The cluster refused to create a pod.

    Attributes:
        node: where it should have run.
        message: its own words (a quota is exceeded).
        at_s: when it was last tried.
        since_s: when it was first refused, in a row; infinite where the API server only could not
            do it just then, which counts against no node.
    """

    name: str
    node: str
    message: str
    at_s: float
    since_s: float


@dataclass(frozen=True, slots=True)
class Headroom:
    """Rest of a namespace's quotas for further pods of the job, beside those it has.

    Attributes:
        gpus: that further pods may ask for; None: no quota counts them.
        pods: further pods; None: no quota counts them.
        why: the quotas that say so, for people.
    """

    gpus: int | None = None
    pods: int | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Everything `decide` may know, sorted by name or number.

    Attributes:
        replies: plans that were answered; `planning` are those still searched for.
        stalls_s: measured stalls of this job's planned moves (joins and drains), oldest first.
        repriced_s: when the times that plans are priced by were last corrected; None: never.
        recovering_since_s: since when this operator has seen the job recover from a loss.
        reached_step: completed steps that agents told of last, though they may be gone now; None:
            this operator never heard.
        unusable: nodes with GPUs that the job cannot use, and why, for people.
        divided: those of them whose GPUs are shared by time or divided.
        refusals: pods that the cluster refused to create.
        referenced: the plan that `planRef` names; None where the job names none.
        headroom: what quotas leave for further pods.
        priority: of the job's pods, the value of their PriorityClass.
        allowed: GPUs by node that the job may plan with; None: all that are free.
        template_problem: why the cluster would take no pod of the job, in its words; "" if it does.
        clock_offset_s: wall clock less the clock of all times here, to tell people a time.
        taken: objects of others whose names the job needs, a sentence each.
        unrecorded: why the cluster takes no record of an epoch, in words; "" if it does.
        unprotected: why the cluster takes no disruption budget, in words; "" if it does.
        flaps: nodes that are waited for longer, as they are not ready again and again.
        worths: what GPUs of each type are worth, by the nodes asked about; the newest last.
        is_weighing: the planner is asked that now, and never said it before.
        dealt: other jobs that were dealt GPUs which this one could use, and how many.
    """

    nodes: tuple[ObservedNode, ...] = ()
    pods: tuple[ObservedPod, ...] = ()
    epochs: tuple[EpochRecord, ...] = ()
    agents: Mapping[str, AgentView] = field(default_factory=dict)
    replies: Mapping[PlanKey, PlanReply] = field(default_factory=dict)
    planning: frozenset[PlanKey] = frozenset()
    stalls_s: tuple[float, ...] = ()
    repriced_s: float | None = None
    recovering_since_s: float | None = None
    reached_step: int | None = None
    unusable: tuple[tuple[str, str], ...] = ()
    divided: frozenset[str] = frozenset()
    refusals: tuple[RefusedPod, ...] = ()
    referenced: ReferencedPlan | None = None
    headroom: Headroom = Headroom()
    priority: int = 0
    allowed: Mapping[str, int] | None = None
    template_problem: str = ""
    clock_offset_s: float = 0.0
    taken: tuple[str, ...] = ()
    unrecorded: str = ""
    unprotected: str = ""
    flaps: tuple[NodeFlap, ...] = ()
    worths: Mapping[NodeSizes, Worth] = field(default_factory=dict)
    is_weighing: bool = False
    dealt: tuple[tuple[str, int], ...] = ()

    @property
    def next_epoch(self) -> int:
        """Epoch numbers only grow; an aborted one is never used again."""
        return self.epochs[-1].epoch + 1 if self.epochs else 1

    def record(self, epoch: int) -> EpochRecord | None:
        """The record of an epoch."""
        return self._records.get(epoch)

    def pod(self, name: str) -> ObservedPod | None:
        """The pod of that name."""
        return self._pods.get(name)

    @cached_property
    def reports(self) -> Mapping[str, Report]:
        """By pod: what its agent says, where the pod runs and the agent answers."""
        found = {}
        for pod in self.pods:
            view = self.agents.get(pod.name) if pod.phase == "running" else None
            if view is not None and view.report and view.unreachable_since_s is None:
                found[pod.name] = view.report
        return found

    @cached_property
    def ranks(self) -> Mapping[tuple[str, int], RankReport]:
        """By pod and slot: the rank processes that these reports tell of."""
        found: dict[tuple[str, int], RankReport] = {}
        for pod, report in self.reports.items():
            for rank in report.ranks:
                found.setdefault((pod, rank.slot), rank)
        return found

    @cached_property
    def saves(self) -> Saves:
        """The newest saves that agents told of; those of silent ones count."""
        views = self.agents.values()
        told = (
            Told(save, seen.saves_heard)
            for seen in views
            if seen.report
            for save in seen.report.saves
        )
        return Saves.of(told, self.clock_offset_s)

    def member(self, member: Member) -> MemberView:
        """A member with its pod, agent and rank."""
        name = member.pod
        rank = self.ranks.get((name, member.slot))
        return MemberView(
            member, self._pods.get(name), self.agents.get(name), self.reports.get(name), rank
        )

    def members(self, record: EpochRecord) -> tuple[MemberView, ...]:
        """The members of an epoch, made once; none before it is sealed."""
        if record.seal is None:
            return ()
        seal, found = self._members.get(record.epoch, (None, ()))
        if seal is not record.seal:
            found = tuple(map(self.member, record.seal.members))
            self._members[record.epoch] = record.seal, found
        return found

    def ranked(self, record: EpochRecord) -> tuple[MemberView, ...]:
        """The members that have a rank in the epoch."""
        return tuple(seen for seen in self.members(record) if seen.member.rank is not None)

    @cached_property
    def _members(self) -> dict[int, tuple[Seal, tuple[MemberView, ...]]]:
        return {}

    def pods_on(self, node: str) -> tuple[ObservedPod, ...]:
        """The job's pods of a node in GPU order."""
        return self._pods_on.get(node, ())

    def node(self, name: str) -> ObservedNode | None:
        """The node of that name."""
        return self._nodes.get(name)

    @cached_property
    def _records(self) -> Mapping[int, EpochRecord]:
        return {record.epoch: record for record in self.epochs}

    @cached_property
    def _pods(self) -> Mapping[str, ObservedPod]:
        return {pod.name: pod for pod in self.pods}

    @cached_property
    def _pods_on(self) -> Mapping[str, tuple[ObservedPod, ...]]:
        found: dict[str, list[ObservedPod]] = {}
        for pod in sorted(self.pods, key=lambda pod: pod.ordinal):
            found.setdefault(pod.node, []).append(pod)
        return {node: tuple(pods) for node, pods in found.items()}

    @cached_property
    def _nodes(self) -> Mapping[str, ObservedNode]:
        return {node.name: node for node in self.nodes}
