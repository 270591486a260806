"""How many replicas fit beside others: as packing says, and no more than limits allow."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from planner.cluster.composition import Composition
from planner.cluster.gpu_limits import GpuLimits
from planner.estimator.build_tables import pricing_of
from planner.estimator.unplaced_plan import most_replicas, new_plan
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.placement.place import can_pack, room_of
from planner.profiles.generator import find_profile

WORKLOAD = Workload(
    model=find_model("llama3-8b"), global_batch=64, sequence_length=2048, precision="fp16"
)
THERE = Composition.from_text("a100-40=2x4+3x1,h100=2x4+1x2")


def fits(pricing, plan, limits: GpuLimits) -> bool:
    """Whether all templates of a plan can be packed, class by class, within the limits."""
    groups, used = Counter(), Counter()
    for k in range(int(plan.number[0])):
        for option in plan.options[k, : plan.depth[k]].tolist():
            tp, kind = (
                int(pricing.tables.option_tp[option]),
                int(pricing.tables.option_type[option]),
            )
            groups[kind, tp] += int(plan.replicas[k])
            used[pricing.classes[kind].gpu_type] += tp * int(plan.replicas[k])
    packed = all(
        can_pack(
            {("own", tp): n for (of, tp), n in groups.items() if of == kind},
            {("own", tp): n for (_, tp), n in room_of(_only(pricing.classes[kind])).items()},
        )
        for kind in range(len(pricing.classes))
    )
    return packed and limits.allows(used)


def _only(one) -> Composition:
    kept = [n for n in THERE.nodes if (n.gpu_type, n.gpus) == (one.gpu_type, one.gpus)]
    return Composition(tuple(kept))


@given(st.data(), st.none() | st.integers(1, 24), st.none() | st.integers(1, 12))
def test_as_many_replicas_fit_as_room_and_limits_allow(data, total, h100):
    limits = GpuLimits(total, () if h100 is None else (("h100", h100),))
    pricing = pricing_of(WORKLOAD, THERE, find_profile(WORKLOAD), max_gpus=limits)
    plan = new_plan()
    plan.number[0] = data.draw(st.integers(1, 3))
    for k in range(int(plan.number[0])):
        options = st.integers(0, len(pricing.options) - 1)
        chosen = data.draw(st.lists(options, min_size=1, max_size=3))
        plan.depth[k], plan.replicas[k] = len(chosen), data.draw(st.integers(1, 3))
        plan.options[k, : len(chosen)] = chosen
    k = data.draw(st.integers(0, int(plan.number[0]) - 1))
    most = int(most_replicas(pricing.tables, plan, k))
    reached = 0
    for replicas in range(1, 30):
        plan.replicas[k] = replicas
        if fits(pricing, plan, limits):
            reached = replicas
    assert max(most, 0) == reached
