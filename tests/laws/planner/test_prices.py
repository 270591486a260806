"""Prices of real models on real GPU types: laws that hold for any plan."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cluster.composition import Composition, Node
from planner.cluster.gpu_types import HARDWARE
from planner.cost.evaluate import PlanCost, cost_of
from planner.cost.memory import StageSlot, fits, layers_that_fit, stage_memory
from planner.cost.simulation import simulated_seconds
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.profiles.generator import generate
from planner.profiles.profile import Profile
from tests.builders import work_on

ROUNDING = 1 + 1e-9
NAMES = ("a100-40", "a100-80", "h100", "a6000")
MODELS = ("llama3-8b", "gpt-neo-2.7b", "mixtral-8x7b", "deepseek-v3-like")


@cache
def profile_of(model: str, precision: str) -> Profile:
    return generate(find_model(model), 2048, precision, [HARDWARE[name] for name in NAMES])


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, Workload, Composition, Profile]:
    model = find_model(draw(st.sampled_from(MODELS)))
    depth = draw(st.integers(1, 6))
    cuts = sorted(
        draw(
            st.lists(
                st.integers(1, model.layers - 1),
                min_size=depth - 1,
                max_size=depth - 1,
                unique=True,
            )
        )
    )
    counts = [b - a for a, b in zip([0, *cuts], [*cuts, model.layers], strict=True)]
    stages = tuple(
        Stage(
            gpu_type=draw(st.sampled_from(NAMES)),
            tp=draw(st.sampled_from((1, 2, 4))),
            layers=count,
            recompute=draw(st.sampled_from(("none", "selective", "full"))),
        )
        for count in counts
    )
    rounds, replicas = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    b = draw(st.sampled_from((4, 8)))
    placement, nodes, spare = [], [], draw(st.booleans())
    for r in range(replicas):
        for s, stage in enumerate(stages):
            name = f"n{len(nodes):03}"
            nodes.append(Node(name=name, gpu_type=stage.gpu_type, gpus=stage.tp + spare))
            placement.append(PlacedStage(0, r, s, name, tuple(range(stage.tp))))
    plan = Plan((FilledTemplate(stages, b, (rounds,) * replicas),), tuple(placement))
    precision = draw(st.sampled_from(("fp16", "bf16")))
    zero = draw(st.integers(0, 1))
    workload = work_on(model, rounds * replicas * b, precision=precision, zero=zero)
    return plan, workload, Composition(tuple(nodes)), profile_of(model.name, precision)


def priced(case: tuple[Plan, Workload, Composition, Profile], **how: bool) -> PlanCost:
    return cost_of(*case, **how)


@settings(deadline=None, max_examples=20)
@given(plans())
def test_the_simulation_is_never_above_the_formula_where_backward_is_the_longer(case):
    found = priced(case)
    stages = [stage for replica in found.replicas for stage in replica.stages]
    if all(stage.backward_s >= stage.forward_s for stage in stages):
        assert simulated_seconds(found) <= found.iteration_s * ROUNDING


@settings(deadline=None, max_examples=20)
@given(plans())
def test_a_placement_never_makes_edges_dearer(case):
    assert priced(case).iteration_s <= priced(case, placed=False).iteration_s * ROUNDING


@settings(deadline=None, max_examples=20)
@given(plans())
def test_recomputation_takes_time_and_gives_memory(case):
    plan, workload, composition, profile = case
    prices = []
    for how in ("none", "selective", "full"):
        template = plan.templates[0]
        stages = tuple(
            Stage(gpu_type=s.gpu_type, tp=s.tp, layers=s.layers, recompute=how)
            for s in template.stages
        )
        changed = FilledTemplate(stages, template.micro_batch, template.micro_batches)
        prices.append(cost_of(Plan((changed,), plan.placement), workload, composition, profile))
    for less, more in pairwise(prices):
        assert less.iteration_s <= more.iteration_s * ROUNDING
        for one, other in zip(less.replicas[0].stages, more.replicas[0].stages, strict=True):
            assert one.memory.activations >= other.memory.activations


@settings(deadline=None, max_examples=20)
@given(
    st.sampled_from(MODELS),
    st.sampled_from(NAMES),
    st.sampled_from((1, 2, 4)),
    st.integers(1, 6),
    st.data(),
)
def test_the_cap_on_layers_is_the_largest_that_fits(name, gpu_type, tp, depth, data):
    rule = data.draw(st.sampled_from(("worker", "paper")))
    zero = data.draw(st.integers(0, 1))
    workload = work_on(name, 64, precision="fp16", zero=zero, memory=rule)
    index = data.draw(st.integers(0, depth - 1))
    how = data.draw(st.sampled_from(("none", "selective", "full")))
    slot = StageSlot(
        gpu_type=gpu_type,
        tp=tp,
        micro_batch=2,
        micro_batches=data.draw(st.integers(1, 16)),
        depth=depth,
        index=index,
        recompute=how,
        replicas=2,
    )
    cap = layers_that_fit(workload, profile_of(name, "fp16"), slot)
    fitting = [
        layers
        for layers in range(1, workload.model.layers + 1)
        if fits(workload, profile_of(name, "fp16"), slot, layers)
    ]
    assert cap == (max(fitting) if fitting else 0)
    assert fitting == list(range(1, cap + 1))


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(MODELS), st.sampled_from((1, 2, 4)), st.integers(1, 4))
def test_states_take_the_bytes_of_the_table(name, tp, replicas):
    for precision, zero, weight, gradient, optimizer in (
        ("fp32", 0, 4, 4, 8),
        ("fp16", 0, 2, 2, 12),
        ("bf16", 0, 2, 4, 12),
        ("fp16", 1, 2, 2, 12),
    ):
        workload = work_on(name, 64, precision=precision, zero=zero, memory="paper")
        slot = StageSlot(
            gpu_type="h100",
            tp=tp,
            micro_batch=2,
            micro_batches=4,
            depth=1,
            index=0,
            replicas=replicas,
        )
        memory = stage_memory(workload, profile_of(name, precision), slot, 4)
        parameters = memory.weights / weight
        assert memory.gradients == gradient * parameters
        share = replicas if zero else 1
        assert abs(memory.optimizer - optimizer * parameters / share) < 2 * optimizer
