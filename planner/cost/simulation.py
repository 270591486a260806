"""One iteration played out event by event, as the runtime runs it.

A message keeps both ends busy from the moment both are there, for the link's seconds; everything
else is a stage's own.  Where backward >= forward this stays at or below the formula of
`planner.cost.evaluate`; what the runtime measures is compared with this.
Invariant: same seconds as the formula and the emulating workers (`planner.cost.evaluate.price`).
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.cluster.composition import Composition
from planner.cost.evaluate import Price, ReplicaPrice, StagePrice, price
from planner.cost.schedule import Instruction, stage_instructions
from planner.cost.schedule_time import replica_seconds
from planner.model.workload import Workload
from planner.plans.plan import Plan
from planner.profiles.profile import Profile

SHORT = 400  # micro-batches x stages


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """What one stage of one replica does from `start_s` to `end_s`, for pictures."""

    template: int
    replica: int
    stage: int
    instruction: Instruction
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """One simulated iteration."""

    step_s: float  # the slowest replica + gradient synchronisation + optimizer step
    replica_s: tuple[float, ...]  # when each replica has finished its micro-batches, in plan order
    # every instruction of every stage, in replica, stage and time order
    timeline: tuple[TimelineEntry, ...]


def simulate(
    plan: Plan, workload: Workload, composition: Composition, profile: Profile
) -> Simulation:
    """Play one iteration of a placed plan.

    Raises:
        UnprofiledConfiguration: as `planner.cost.evaluate.price`.
        InvalidPlan: as `planner.cost.evaluate.price`.
    """
    return simulate_price(price(plan, workload, composition, profile))


def simulate_price(priced: Price) -> Simulation:
    """Play one iteration with the seconds of a price."""
    timelines = [simulate_replica(replica) for replica in priced.replicas]
    ends = tuple(max(entry.end_s for entry in timeline) for timeline in timelines)
    return Simulation(
        max(ends) + priced.sync_s + priced.optimizer_s,
        ends,
        tuple(entry for timeline in timelines for entry in timeline),
    )


def simulated_seconds(priced: Price) -> float:
    """`simulate_price(priced).step_s`, with replicas that are alike played once."""
    alike = {
        (
            replica.micro_batches,
            tuple(
                (s.forward_s, s.backward_s, s.to_previous_s, s.to_next_s) for s in replica.stages
            ),
        ): replica
        for replica in priced.replicas
    }
    last_s = max(map(_replica_seconds, alike.values()))
    return last_s + priced.sync_s + priced.optimizer_s


def _replica_seconds(replica: ReplicaPrice) -> float:
    """The end of one replica; long ones are played without their timeline."""
    stages = replica.stages
    if replica.micro_batches * len(stages) <= SHORT:
        return max(entry.end_s for entry in simulate_replica(replica))
    return replica_seconds(
        [stage.forward_s for stage in stages],
        [stage.backward_s for stage in stages],
        [stage.to_next_s for stage in stages],
        replica.micro_batches,
    )


def simulate_replica(replica: ReplicaPrice) -> list[TimelineEntry]:
    """Play the micro-batches of one replica."""
    depth = len(replica.stages)
    orders = [stage_instructions(replica.micro_batches, depth, stage) for stage in range(depth)]
    clocks = [0.0] * depth
    done = [0] * depth
    entries: list[list[TimelineEntry]] = [[] for _ in range(depth)]

    def advance(stage: int, seconds: float, start_s: float) -> None:
        clocks[stage] = start_s + seconds
        entries[stage].append(
            TimelineEntry(
                replica.template,
                replica.replica,
                stage,
                orders[stage][done[stage]],
                start_s,
                clocks[stage],
            )
        )
        done[stage] += 1

    def run(stage: int) -> bool:
        """Do the next instruction of a stage if its partner is ready too."""
        if done[stage] == len(orders[stage]):
            return False
        instruction = orders[stage][done[stage]]
        price_of = replica.stages[stage]
        partner = stage + _PARTNER[instruction.operation]
        if partner == stage:
            advance(stage, _pass_seconds(price_of, instruction), clocks[stage])
            return True
        if done[partner] == len(orders[partner]):
            return False
        wanted = Instruction(_COUNTERPART[instruction.operation], instruction.micro_batch)  # type: ignore[arg-type]
        if orders[partner][done[partner]] != wanted:
            return False
        start_s = max(clocks[stage], clocks[partner])
        seconds = price_of.to_next_s if partner > stage else price_of.to_previous_s
        advance(stage, seconds, start_s)
        advance(partner, seconds, start_s)
        return True

    while any(run(stage) for stage in range(depth)):
        pass
    assert all(count == len(order) for count, order in zip(done, orders, strict=True))
    return [entry for stage_entries in entries for entry in stage_entries]


_PARTNER = {
    "forward": 0,
    "backward": 0,
    "send_activation": 1,
    "receive_activation": -1,
    "send_gradient": -1,
    "receive_gradient": 1,
}
_COUNTERPART = {
    "send_activation": "receive_activation",
    "receive_activation": "send_activation",
    "send_gradient": "receive_gradient",
    "receive_gradient": "send_gradient",
}


def _pass_seconds(stage: StagePrice, instruction: Instruction) -> float:
    return stage.forward_s if instruction.operation == "forward" else stage.backward_s
