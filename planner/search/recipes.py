"""Plans of the estimator as recipes, which can be placed.

A plan of the estimator is rows of arrays (`planner.estimator.elite_set`); its fill is in them, and
the variant of each stage (recomputation, EP, ETP) is the fastest one that fits.
"""

from __future__ import annotations

from planner.cost.batch_split import Lane
from planner.estimator.build_tables import Pricing
from planner.estimator.elite_set import EliteSet, load_elite
from planner.estimator.fill.filling import variant_of
from planner.estimator.fill.stage import slot_of
from planner.estimator.unplaced_plan import UnplacedPlan
from planner.estimator.whole_plan import iteration_seconds
from planner.estimator.workspace import Workspace
from planner.search.candidate import Recipe, stages_first
from planner.search.fill import Filling, Structure


def recipe_of(
    pricing: Pricing, elites: EliteSet, row: int, plan: UnplacedPlan, work: Workspace
) -> Recipe:
    """The plan in that row of a pool.

    Args:
        pricing: that it was priced with.
        elites: the pool.
        row: of the plan.
        plan: scratch space.
        work: likewise.
    """
    load_elite(elites, row, plan)
    iteration_seconds(pricing.tables, plan, work.price, float("inf"))
    by_stage = bool(work.price.is_by_stage[0])
    templates = range(int(elites.templates[row]))
    rows = [_template_of(pricing, elites, row, k, by_stage=by_stage) for k in templates]
    return tuple(sorted(rows, key=stages_first))


def _template_of(
    pricing: Pricing, elites: EliteSet, row: int, k: int, *, by_stage: bool
) -> tuple[Structure, int, Filling]:
    """Template k of that row: stages, replicas and fill."""
    tables = pricing.tables
    depth, size = int(elites.depth[row, k]), int(elites.size[row, k])
    replicas, most = int(elites.replicas[row, k]), int(elites.most[row, k])
    options = [int(o) for o in elites.options[row, k, :depth]]
    blocks = tuple(int(n) for n in elites.blocks[row, k, :depth])
    ways, start = [], 0
    for s, option in enumerate(options):
        stop = start + blocks[s]
        dense = min(stop, tables.dense) - min(start, tables.dense)
        sparse = blocks[s] - dense
        slot = slot_of(option, size, s, depth, most, replicas)
        variant = variant_of(tables, slot, dense, sparse)
        assert variant >= 0, f"stage {s} of a priced plan does not fit"
        chosen = pricing.variants[option][variant]
        ways.append((chosen.recompute, *((chosen.ep, chosen.etp) if sparse else (1, 0))))
        start = stop
    lane = Lane(
        int(tables.sizes[size]), float(elites.tau_s[row, k]), float(elites.sum_s[row, k]), most
    )
    classes = tuple(int(tables.option_type[option]) for option in options)
    structure = tuple(pricing.options[option] for option in options)
    filling = Filling(blocks, lane, tuple(ways), () if pricing.by_type else classes, by_stage)
    return structure, replicas, filling
