"""The parts of a rank's engine over tensors and a world that a test has made."""

from __future__ import annotations

from planner.model.shape import ModelShape
from planner.plans.plan import Plan
from planner.plans.ranks import Seat
from worker.contract import TrainingSpec
from worker.control.activity import Activity
from worker.engine.seam import StageBuild
from worker.state.shards import TargetShards
from worker.state.still import StillState
from worker.world.world import World


def stage_build(
    model: ModelShape,
    spec: TrainingSpec,
    plan: Plan,
    seat: Seat,
    world: World,
    target: TargetShards,
    activity: Activity,
    still: object = None,
) -> StageBuild:
    """The build of the engine of a seat; `still` hears of updates, by default nobody does."""
    return StageBuild(
        model=model,
        spec=spec,
        plan=plan,
        seat=seat,
        world=world,
        shards=target.shards,
        buffers=target.buffers,
        activity=activity,
        still=still or StillState(),
    )
