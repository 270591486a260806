"""Plans of the estimator as unplaced candidates, which can be placed.

The fill of a plan is in its arrays, and the variant of each stage (recomputation, EP, ETP) is the
fastest one that fits.
"""

from __future__ import annotations

import math

from planner.cost.batch_split import Lane
from planner.estimator.build_tables import Pricing
from planner.estimator.fill.filling import variant_of
from planner.estimator.fill.stage import slot_of
from planner.estimator.unplaced_plan import UnplacedPlan
from planner.estimator.whole_plan import iteration_seconds
from planner.estimator.workspace import Workspace
from planner.search.candidate import UnplacedCandidate, stages_first
from planner.search.fill import Filling, Structure


def unplaced_candidate_of(
    pricing: Pricing, plan: UnplacedPlan, work: Workspace
) -> UnplacedCandidate:
    """A plan whose templates have one filling each, as `load_top` leaves it."""
    iteration_seconds(pricing.tables, plan, work, math.inf)
    by_stage = bool(work.is_by_stage[0])
    rows = [_template_of(pricing, plan, k, by_stage=by_stage) for k in range(int(plan.number[0]))]
    return tuple(sorted(rows, key=stages_first))


def _template_of(
    pricing: Pricing, plan: UnplacedPlan, k: int, *, by_stage: bool
) -> tuple[Structure, int, Filling]:
    """Slot k: stages, replicas and fill."""
    tables = pricing.tables
    depth, size = int(plan.depth[k]), int(plan.size[k, 0])
    replicas, most = int(plan.replicas[k]), int(plan.most[k, 0])
    options = plan.options[k, :depth].tolist()
    blocks = tuple(plan.blocks[k, 0, :depth].tolist())
    stage_configs, start = [], 0
    for s, option in enumerate(options):
        stop = start + blocks[s]
        dense = min(stop, tables.dense) - min(start, tables.dense)
        sparse = blocks[s] - dense
        slot = slot_of(option, size, s, depth, most, replicas)
        variant = variant_of(tables, slot, dense, sparse)
        assert variant >= 0, f"stage {s} of a priced plan does not fit"
        chosen = pricing.variants[option][variant]
        stage_configs.append((chosen.recompute, *((chosen.ep, chosen.etp) if sparse else (1, 0))))
        start = stop
    lane = Lane(int(tables.sizes[size]), float(plan.tau_s[k, 0]), float(plan.sum_s[k, 0]), most)
    classes = tuple(int(tables.option_type[option]) for option in options)
    structure = tuple(pricing.options[option] for option in options)
    filling = Filling(
        layers=blocks,
        lane=lane,
        stage_configs=tuple(stage_configs),
        classes=() if pricing.by_type else classes,
        by_stage=by_stage,
        any_speed=pricing.any_speed,
    )
    return structure, replicas, filling
