"""Arrays that the estimator works in, made once for a search: no other part of it makes any.

Invariant: what they hold is of no meaning between two calls, but for plans, random numbers and
what is said of the plan that was priced last.
Legend: K templates, D stages, T node classes, L blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.estimator.by_reference import by_reference
from planner.estimator.tables import MAX_DEPTH, MAX_TEMPLATES, Floats, Ints, Tables
from planner.estimator.unplaced_plan import UnplacedPlan, new_plan

MODULUS = 2147483647  # of the random numbers, see `planner.search.annealing.random`


@by_reference
class Workspace(NamedTuple):
    """Arrays that a search works in.

    Attributes:
        block_s: [D] of the stages of a template that is filled, as all up to `best`.
        fixed_s: [D] what they take besides their blocks.
        caps: [D].
        order: [D].
        split: [D] blocks of each stage, on trial.
        rows: [D, dense + 1, L + 1] seconds by the blocks of both kinds.
        least: [D + 1] fewest blocks that the first stages may cover.
        most: [D + 1] the most.
        best: [D + 1, L + 1] smallest sum of the first stages by the blocks that they cover.
        ways: [K, D] EP x ETP of the stages of a plan, into how many parts experts are cut; this and
            the next of no meaning without experts in the model.
        numel: [K, D] elements of a block's experts on one GPU.
        nic_s: [T] seconds per byte that a GPU sends between nodes while gradients are summed.
        held: [4, K, T] what a node class holds of each template, see `nic_share`.
        at: [2, K] the stage of each template, and the blocks to its end, on a walk over the layers.
        summed_s: [7, K] what the sums of that stage take so far; then a byte and a message of them,
            and the share of a GPU in what TP cuts.
        there: replicas as they are placed, each with the one filling that is chosen, see
            `whole_plan`.
        runs: [2, T, G + 1] runs of stages; this and the next three see `fill.runs`.
        on_nodes: [4, G + 1] what became of nodes and runs of a class.
        cut: [K] replicas that have a run that is cut.
        piece: [K, T] GPUs of the largest piece of theirs on a class.
        pipelines_s: [1] seconds of the pipelines of the plan that was priced last.
        is_by_stage: [1] 1 if the plan that was priced last is placed so.
        now: the plan that is worked on.
        trial: the plan that may come next.
        dirty: [K] templates in which they differ.
        random: [1] state of the random numbers.
    """

    block_s: Floats
    fixed_s: Floats
    caps: Ints
    order: Ints
    split: Ints
    rows: Floats
    least: Ints
    most: Ints
    best: Floats
    ways: Ints
    numel: Floats
    nic_s: Floats
    held: Ints
    at: Ints
    summed_s: Floats
    there: UnplacedPlan
    runs: Ints
    on_nodes: Ints
    cut: Ints
    piece: Ints
    pipelines_s: Floats
    is_by_stage: Ints
    now: UnplacedPlan
    trial: UnplacedPlan
    dirty: Ints
    random: Ints


def new_workspace(t: Tables, seed: int = 0) -> Workspace:
    """Room to fill templates and to price plans of them; the seed is that of random numbers."""
    classes = len(t.node_gpus)

    def ints(*shape: int) -> Ints:
        return np.zeros(shape, np.int64)

    return Workspace(
        block_s=np.zeros(MAX_DEPTH),
        fixed_s=np.zeros(MAX_DEPTH),
        caps=ints(MAX_DEPTH),
        order=ints(MAX_DEPTH),
        split=ints(MAX_DEPTH),
        rows=np.zeros((MAX_DEPTH, t.dense + 1, t.layers + 1)),
        least=ints(MAX_DEPTH + 1),
        most=ints(MAX_DEPTH + 1),
        best=np.zeros((MAX_DEPTH + 1, t.layers + 1)),
        ways=np.ones((MAX_TEMPLATES, MAX_DEPTH), np.int64),
        numel=np.zeros((MAX_TEMPLATES, MAX_DEPTH)),
        nic_s=np.zeros(classes),
        held=ints(4, MAX_TEMPLATES, classes),
        at=ints(2, MAX_TEMPLATES),
        summed_s=np.zeros((7, MAX_TEMPLATES)),
        there=new_plan(slots=2 * MAX_TEMPLATES, fillings=1),
        runs=ints(2, *t.nodes.shape),
        on_nodes=ints(4, t.nodes.shape[1]),
        cut=ints(MAX_TEMPLATES),
        piece=ints(MAX_TEMPLATES, classes),
        pipelines_s=np.zeros(1),
        is_by_stage=ints(1),
        now=new_plan(),
        trial=new_plan(),
        dirty=ints(MAX_TEMPLATES),
        random=np.array([1 + seed % (MODULUS - 1)]),
    )
