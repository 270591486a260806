"""Table 1 of the paper from what planners do: a small question a row, a test of the plans returned.

A mark is `yes` or `no`, or `partly` where a plan shows the capability in a weaker form that the row
names.  The marks of the paper stand beside them; where both differ the row says why.
Source: Heddle, section 1 (Table 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.baselines.interface import Answer, Budget, Question
from benchmarks.baselines.judge import judge
from benchmarks.baselines.layout import Layout
from benchmarks.baselines.registry import BASELINES
from planner.api import plan as heddle_plan
from planner.cluster.composition import Composition
from planner.errors import Infeasible
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.entries import LayerCost
from planner.profiles.generator import find_profile

PLANNERS = ("amp", "sailor", "metis", "hexiscale", "espresso", "heddle")
YES, PARTLY, NO = "yes", "partly", "no"
EVALUATIONS = 2000  # plans that each planner prices a question, at most
HEDDLE_BUDGETS = (16, 64, 256, 1024)  # plans; the plans that it returns for each, and two seeds
MIXED = "h100=1x4,a100-40=2x4"  # where the best plan has TP 2 on one type and TP 1 on the other
MOST_PLANS = 200  # of a planner that are looked at, best first


@dataclass(frozen=True, slots=True)
class Row:
    """A capability: its name, the question, how plans show it, and the paper's marks."""

    name: str
    shown: Callable[[str], str]  # the mark of a planner
    paper: Sequence[str]  # in the order of PLANNERS
    why: str  # how it is tested


def small(text: str, layers: int, model: str = "llama3-8b", batch: int = 32) -> Question:
    """A question about a model with few blocks."""
    whole = find_model(model)
    workload = Workload(
        model=whole, global_batch=batch, sequence_length=2048, precision="fp16", memory="paper"
    )
    few = replace(workload, model=replace(whole, layers=layers))
    return Question(few, Composition.from_text(text), find_profile(workload))


def returned(planner: str, question: Question) -> list[Layout]:
    """The plans that a planner returns, best first by its own order; not all need fit."""
    if planner != "heddle":
        answer = BASELINES[planner](question, Budget(evaluations=EVALUATIONS))
        return [one.laid_out() for one in answer.plans[:MOST_PLANS]]
    found = []
    for budget in HEDDLE_BUDGETS:
        for seed in (0, 1):
            layout = _heddle(question, budget, seed)
            found += [layout] if layout is not None else []
    return found


def _heddle(question: Question, budget: int, seed: int) -> Layout | None:
    asked = (question.workload, question.composition, question.profile)
    try:
        answer = heddle_plan(*asked, budget_evaluations=budget, seed=seed, method="search")
    except Infeasible:
        return None
    return Layout.of_plan(answer.plan)


def counted(planner: str, question: Question) -> Layout | None:
    """The first plan that fits; None if none does."""
    if planner == "heddle":
        return _heddle(question, EVALUATIONS, 0)
    answer: Answer = BASELINES[planner](question, Budget(evaluations=EVALUATIONS))
    found = judge(answer, question, most=1).counted
    return answer.plans[found.rank].laid_out() if found is not None else None


def pipelines(layout: Layout) -> list[list[tuple[str, int, int]]]:
    """(GPU type, TP, blocks) of the stages of every replica; a mixed stage counts by its first."""
    found = []
    for grid in layout.grids:
        for r in range(max(len(stage.groups) for stage in grid.stages)):
            groups = [stage.groups[r % len(stage.groups)] for stage in grid.stages]
            pairs = zip(groups, grid.stages, strict=True)
            found.append([(group.gpu_type, group.tp, stage.blocks) for group, stage in pairs])
    return found


def _any(layouts: Sequence[Layout], shows: Callable[[list[tuple[str, int, int]]], bool]) -> bool:
    return any(shows(one) for layout in layouts for one in pipelines(layout))


def tp_by_stage(planner: str) -> str:
    """Two stages of one pipeline with different TP degrees."""
    layouts = returned(planner, small(MIXED, 24, batch=64))
    return YES if _any(layouts, lambda one: len({tp for _, tp, _ in one}) > 1) else NO


def experts_spread(planner: str) -> str:
    """A plan where no TP group holds a layer's experts: DeepSeek-V3's on nodes of 4 x 40 GB."""
    asked = _deepseek()
    if planner != "heddle":
        return YES if counted(planner, asked) is not None else NO
    return YES if _heddle_spreads(asked) else NO


def _deepseek() -> Question:
    """Its first dense block and one with experts."""
    whole = find_model("deepseek-v3-like")
    assert whole.experts is not None
    model = replace(whole, layers=2, experts=replace(whole.experts, dense_blocks=1))
    asked = small("a100-40=8x4", 4, "deepseek-v3-like", batch=64)
    return replace(asked, workload=replace(asked.workload, model=model))


def _heddle_spreads(question: Question) -> bool:
    asked = (question.workload, question.composition, question.profile)
    try:
        answer = heddle_plan(*asked, budget_evaluations=EVALUATIONS, method="search")
    except Infeasible:
        return False
    return any(stage.ep > 1 for one in answer.plan.templates for stage in one.stages)


def gpus_left(planner: str) -> str:
    """The first plan that fits leaves a slow GPU alone that would only hold the others up."""
    question = small("h100=1x4,rtx-2080=1x1", 8)
    layout = counted(planner, question)
    if layout is not None and len(layout.gpus) < question.composition.gpus:
        return YES
    return NO


def types_and_tp(planner: str) -> str:
    """TP answers dear TP messages, types answer a slow GPU type; partly: one of both."""
    asked = small(MIXED, 24, batch=64)
    plain = counted(planner, asked)
    dear = counted(
        planner,
        slower(asked, lambda _, c: replace(c, tp_communication_s=50 * c.tp_communication_s)),
    )
    slow = counted(planner, slower(asked, _slow_a100))
    if plain is None or dear is None or slow is None:
        return NO
    answers = (_degrees(plain) != _degrees(dear), _types(plain) != _types(slow))
    return {2: YES, 1: PARTLY, 0: NO}[sum(answers)]


def slower(
    question: Question, change: Callable[[tuple[str, str, int, int], LayerCost], LayerCost]
) -> Question:
    """The question with another profile."""
    profile = question.profile
    layers = {key: change(key, profile.layers[key]) for key in profile.layers}
    return replace(question, profile=replace(profile, layers=layers))


def _slow_a100(key: tuple[str, str, int, int], cost: LayerCost) -> LayerCost:
    if key[1] != "a100-40":
        return cost
    return replace(cost, forward_s=8 * cost.forward_s, backward_s=8 * cost.backward_s)


def _degrees(layout: Layout) -> set[tuple[str, int]]:
    return {(kind, tp) for one in pipelines(layout) for kind, tp, _ in one}


def _types(layout: Layout) -> set[tuple[str, ...]]:
    return {tuple(kind for kind, _, _ in one) for one in pipelines(layout)}


def node_sizes(planner: str) -> str:
    """One plan with a TP group on a large node and stages on single GPUs beside it."""
    layouts = returned(planner, small("h100=1x4+4x1", 16))
    for layout in layouts:
        groups = {g for grid in layout.grids for stage in grid.stages for g in stage.groups}
        nodes = {gpu[0] for group in groups for gpu in group.gpus}
        crosses = any(len(group.nodes) > 1 for group in groups)
        if max(group.tp for group in groups) > 1 and len(nodes) > 1 and not crosses:
            return YES
    return NO


def unequal_layers(planner: str) -> str:
    """A fast stage with half as many blocks again as a slow one; partly: unequal, not by speed."""
    layouts = returned(planner, small("h100=1x2,a6000=1x2", 16))

    def by_speed(one: list[tuple[str, int, int]]) -> bool:
        fast = [(tp, blocks) for kind, tp, blocks in one if kind == "h100"]
        slow = [(tp, blocks) for kind, tp, blocks in one if kind == "a6000"]
        if not fast or not slow or max(fast)[0] > min(slow)[0]:
            return False  # with more GPUs a stage of any type takes more
        return min(blocks for _, blocks in fast) >= 1.5 * max(blocks for _, blocks in slow)

    def unequal(one: list[tuple[str, int, int]]) -> bool:
        inner = [blocks for _, _, blocks in one]
        return max(inner) - min(inner) > 1

    if _any(layouts, by_speed):
        return YES
    return PARTLY if _any(layouts, unequal) else NO


def profiled(planner: str) -> str:
    """The estimate follows a slower profile in both passes; partly: in the forward pass alone."""
    if planner == "heddle":
        return YES if _follows_heddle() else NO
    asked = small("h100=1x4,a6000=1x4", 8)

    def estimate(forward: float, backward: float) -> float:
        changed = slower(
            asked,
            lambda _, c: replace(
                c, forward_s=forward * c.forward_s, backward_s=backward * c.backward_s
            ),
        )
        return BASELINES[planner](changed, Budget(evaluations=50)).plans[0].own_s

    plain, forward, backward = estimate(1, 1), estimate(2, 1), estimate(1, 2)
    if forward > plain and backward > plain:
        return YES
    return PARTLY if forward > plain else NO


def _follows_heddle() -> bool:
    asked = small("h100=1x4,a6000=1x4", 8)
    found = []
    for factor in (1.0, 2.0):
        changed = slower(asked, lambda _, c, f=factor: replace(c, backward_s=f * c.backward_s))
        given = (changed.workload, changed.composition, changed.profile)
        answer = heddle_plan(*given, budget_evaluations=50, method="search")
        found.append(answer.cost.iteration_s)
    return found[1] > found[0]


ROWS = (
    Row(
        "Adapt TP degree per stage",
        tp_by_stage,
        (NO, YES, YES, YES, NO, YES),
        "a returned plan has a pipeline with two TP degrees",
    ),
    Row(
        "Plan expert parallelism (MoE)",
        experts_spread,
        (NO, NO, NO, NO, NO, YES),
        "a plan fits where a layer's experts fit on no TP group of a node",
    ),
    Row(
        "Utilize partial GPUs",
        gpus_left,
        (PARTLY, YES, YES, YES, YES, YES),
        "the first plan that fits leaves out a GPU that is far slower",
    ),
    Row(
        "Joint device-TP search",
        types_and_tp,
        (PARTLY, YES, YES, PARTLY, NO, YES),
        "the first plan that fits answers dear TP messages by TP, and a slow GPU type by types",
    ),
    Row(
        "Non-uniform node sizes",
        node_sizes,
        (NO, NO, YES, YES, NO, YES),
        "a returned plan has TP on a large node, and single-GPU nodes beside it",
    ),
    Row(
        "Unequal layer partition",
        unequal_layers,
        (PARTLY, NO, YES, YES, YES, YES),
        "every fast stage has 1.5 times the blocks of a slow one, with no more GPUs",
    ),
    Row(
        "Profiled cost estimation",
        profiled,
        (PARTLY, YES, PARTLY, NO, PARTLY, YES),
        "the estimate follows a slower profile in both passes",
    ),
)


def marks(row: Row) -> tuple[str, ...]:
    """The marks of all planners."""
    return tuple(row.shown(planner) for planner in PLANNERS)
