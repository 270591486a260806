"""Arrays that the kernel works in, made once for a search: nothing else of the kernel makes any.

Invariant: what they hold is of no meaning between two calls, experts of the last price apart.
Legend: K templates, D stages, T node classes, G GPUs of the largest node, L blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.estimator.by_reference import by_reference
from planner.estimator.fill.general_split import SplitWorkspace, new_split_workspace
from planner.estimator.tables import MAX_DEPTH, MAX_TEMPLATES, Floats, Ints, Tables
from planner.estimator.unplaced_plan import UnplacedPlan, new_plan


@by_reference
class StageExperts(NamedTuple):
    """The routed experts of every stage of a plan; of no meaning without experts in the model.

    Attributes:
        ways: [K, D] EP x ETP, into how many parts experts are cut.
        numel: [K, D] elements of a block's experts on one GPU.
    """

    ways: Ints
    numel: Floats


@by_reference
class PriceWorkspace(NamedTuple):
    """What the price of a plan works in.

    Attributes:
        experts: of its stages.
        nic_s: [T] seconds per byte that a GPU sends between nodes while gradients are summed.
        held: [4, K, T] what a node class holds of each template, see `nic_share`.
        at: [2, K] the stage of each template, and the blocks to its end, on a walk over the layers.
        summed_s: [7, K] what the sums of that stage take so far; then a byte and a message of them,
            and the share of a GPU in what TP cuts.
        order: [2, K] templates, the hardest to place first, and how hard each is.
        free: [T, G + 1] nodes by class and free GPUs.
        fixed_s: [D] what the stages of a template take besides their blocks.
        by_stage: the templates, each with the one filling that is chosen, see `whole_plan`.
        is_by_stage: [1] 1 if the plan that was priced last is placed so.
    """

    experts: StageExperts
    nic_s: Floats
    held: Ints
    at: Ints
    summed_s: Floats
    order: Ints
    free: Ints
    fixed_s: Floats
    by_stage: UnplacedPlan
    is_by_stage: Ints


@by_reference
class Workspace(NamedTuple):
    """What a search works in.

    Attributes:
        block_s: [D] of the stages of a template that is filled, as all up to `rows`.
        fixed_s: [D].
        caps: [D].
        order: [D].
        trial: [D].
        rows: [D, dense + 1, L + 1].
        splits: of its blocks.
        price: of a plan.
        dirty: [K] templates that a step of the annealing has changed.
    """

    block_s: Floats
    fixed_s: Floats
    caps: Ints
    order: Ints
    trial: Ints
    rows: Floats
    splits: SplitWorkspace
    price: PriceWorkspace
    dirty: Ints


def new_price_workspace(t: Tables) -> PriceWorkspace:
    """Room to price plans."""
    classes = len(t.node_gpus)
    shape = (MAX_TEMPLATES, MAX_DEPTH)
    return PriceWorkspace(
        StageExperts(np.ones(shape, np.int64), np.zeros(shape)),
        np.zeros(classes),
        np.zeros((4, MAX_TEMPLATES, classes), np.int64),
        np.zeros((2, MAX_TEMPLATES), np.int64),
        np.zeros((7, MAX_TEMPLATES)),
        np.zeros((2, MAX_TEMPLATES), np.int64),
        np.zeros((classes, int(t.node_gpus.max()) + 1), np.int64),
        np.zeros(MAX_DEPTH),
        new_plan(),
        np.zeros(1, np.int64),
    )


def new_workspace(t: Tables) -> Workspace:
    """Room to fill templates and to price plans of them."""
    return Workspace(
        np.zeros(MAX_DEPTH),
        np.zeros(MAX_DEPTH),
        np.zeros(MAX_DEPTH, np.int64),
        np.zeros(MAX_DEPTH, np.int64),
        np.zeros(MAX_DEPTH, np.int64),
        np.zeros((MAX_DEPTH, t.dense + 1, t.layers + 1)),
        new_split_workspace(MAX_DEPTH, t.layers),
        new_price_workspace(t),
        np.zeros(MAX_TEMPLATES, np.int64),
    )
