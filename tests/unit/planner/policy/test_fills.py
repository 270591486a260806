"""The fill as choices: masks that can be completed, and the price that every plan has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cluster.composition import Composition
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.policy.environment import Constructions
from planner.policy.rollouts import UniformChooser, play
from planner.policy.schema import FILL_HEADS, FeatureSchema
from planner.profiles.generator import find_profile
from planner.search.candidate import Judge
from planner.search.kernel_search import KernelSearch
from tests.unit.planner.policy.conftest import GPUS, environment_on

FLAT = FeatureSchema(("a100-40", "h100"), (1, 2, 4, 8), 24, 8, learns_fill=True)
BATCH = 256


class Edge:
    """Takes the first or the last candidate that a mask keeps, of everything."""

    def __init__(self, *, last):
        self.last = last

    def pick(self, mask):
        assert mask.any(axis=1).all()
        return (
            mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1) if self.last else mask.argmax(axis=1)
        )

    def depths(self, view):
        return self.pick(view.mask)

    def stages(self, view):
        classes = self.pick(view.class_mask)
        return classes, self.pick(view.mask[np.arange(len(classes)), classes])

    def fill(self, view):
        return self.pick(view.mask)


class Watching(UniformChooser):
    """Draws uniformly, and keeps what the heads of the fill were offered."""

    def __init__(self, generator):
        super().__init__(generator)
        self.seen = []

    def fill(self, view):
        assert view.mask.any(axis=1).all()
        assert np.isfinite(view.features).all()
        self.seen.append(view)
        return super().fill(view)


def on(gpus, *, templates=8, flat=True, batch=BATCH):
    one = environment_on(gpus, replace(FLAT, learns_fill=flat), batch=batch)
    return replace(one, wishes=one.wishes._replace(max_templates=templates))


def played(environments, each, chooser):
    constructions = Constructions(environments, each)
    play(constructions, chooser)
    return constructions


def build(one, stages, layers, replicas, size):
    """One template: (node class, index of TP) of each stage, layers, n, index of b."""
    constructions, row = Constructions([one], 1), np.array([0])
    constructions.open(row, np.array([len(stages)]))
    for (kind, degree), count in zip(stages, layers, strict=True):
        constructions.place(row, np.array([kind]), np.array([degree]))
        constructions.fill("layers", row, np.array([count - 1]))
    constructions.fill("replicas", row, np.array([replicas - 1]))
    constructions.fill("micro_batch", row, np.array([size]))
    constructions.close(row)
    return constructions


@pytest.mark.parametrize("gpus", [GPUS, "h100=4x4", "a100-40=5x2+2x1,h100=1x8"])
@pytest.mark.parametrize("chooser", [0, 1, 2, Edge(last=False), Edge(last=True)])
def test_every_choice_that_is_kept_can_be_completed(gpus, chooser):
    if isinstance(chooser, int):
        chooser = UniformChooser(np.random.default_rng(chooser))
    one = on(gpus)
    constructions = played([one], 32, chooser)
    for row in range(32):
        used = np.zeros(len(one.menu.tp), np.int64)
        for depth, stages, fill in constructions.decisions(row):
            layers, replicas = 1 + np.array(fill[:depth]), 1 + fill[depth]
            assert layers.sum() == one.menu.layers
            assert (layers >= 1).all()
            assert 0 <= fill[depth + 1] < len(one.pricing.tables.sizes)
            for kind, degree in stages:
                option = int(one.menu.first_option[kind]) + degree
                used[option] += replicas * one.menu.tp[option]
        for c in range(len(one.menu.class_type)):
            start, stop = one.menu.first_option[c], one.menu.first_option[c + 1]
            for o in range(start, stop):  # blocks of powers of two: room is what counts
                assert used[o:stop].sum() <= one.menu.room[o]


def test_the_last_stage_takes_exactly_the_rest_and_the_others_leave_one_for_each():
    chooser = Watching(np.random.default_rng(0))
    constructions = played([on(GPUS, templates=1)], 64, chooser)
    views = [view for view in chooser.seen if view.head == "layers"]
    assert {view.head for view in chooser.seen} == set(FILL_HEADS)
    depths = np.zeros(64, np.int64)
    for view in views:
        depths[view.rows] += 1
    total = constructions.environments[0].menu.layers
    for stage, view in enumerate(views):
        last = depths[view.rows] == stage + 1
        assert (view.mask[last].sum(axis=1) == 1).all()
        most = view.mask.shape[1] - view.mask[:, ::-1].argmax(axis=1)
        assert (most[~last] <= total - (depths[view.rows] - 1)[~last]).all()
        if stage == 0:
            assert (most[~last] == total - (depths[view.rows] - 1)[~last]).all()


def test_as_many_replicas_are_offered_as_the_fill_would_take():
    chooser = Watching(np.random.default_rng(0))
    rows = np.array([0])
    constructions = Constructions([on("h100=4x4")], 1)
    constructions.open(rows, np.array([2]))
    for _ in range(2):
        constructions.place(rows, np.array([0]), np.array([2]))
        constructions.fill("layers", rows, np.array([15]))
    view = constructions.observe_fill("replicas", rows)
    assert view.mask.tolist() == [[True, True]]
    chooser.fill(view)


def test_what_the_fill_determines_can_be_chosen_at_the_same_price():
    compared = 0
    for gpus in ("h100=4x4", GPUS):
        one = on(gpus, templates=1, flat=False)
        found = played([one], 64, UniformChooser(np.random.default_rng(1))).elites[0]
        tables = one.pricing.tables
        for e in range(min(16, int(found.number[0]))):
            depth, size = int(found.depth[e, 0]), int(found.size[e, 0])
            if found.most[e, 0] < tables.batch // tables.sizes[size]:
                continue  # a filling for few micro-batches, which is not among the choices
            options = found.options[e, 0, :depth]
            stages = [(int(tables.option_type[o]), int(one.menu.degree[o])) for o in options]
            layers = found.blocks[e, 0, :depth]
            again = build(on(gpus), stages, layers, int(found.replicas[e, 0]), size)
            assert again.seconds[0] == pytest.approx(float(found.value[e]), rel=1e-12)
            compared += 1
    assert compared > 10


def test_a_flat_plan_has_the_price_of_the_evaluator():
    gpus = "h100=4x4,a100-40=2x4"
    a100, h100 = (0, 2), (1, 2)  # TP 4 of each
    one = on(gpus)
    workload = Workload(find_model("llama3-8b"), BATCH, 2048, "fp16")
    judge = Judge(workload, Composition.from_text(gpus), find_profile(workload))
    for stages, layers, replicas in (
        ((h100, h100), (10, 22), 2),
        ((h100, h100), (16, 16), 1),
        ((h100, a100), (24, 8), 2),
    ):
        found = build(one, stages, layers, replicas, 1)
        kernel = KernelSearch(one.pricing, one.wishes, 0)
        kernel.take(found.elites[0], 1)
        ((seconds, recipe),) = kernel.recipes()
        candidate = judge.settle(recipe)
        assert candidate.price.iteration_s == pytest.approx(seconds, rel=1e-9)
        (template,) = candidate.plan.templates
        assert tuple(stage.layers for stage in template.stages) == layers
        assert (template.replicas, template.micro_batch) == (replicas, 2)


def test_a_template_that_does_not_fit_its_memory_ends_without_a_plan():
    one = on("h100=4x4")
    assert build(one, ((0, 2), (0, 2)), (16, 16), 1, 0).throughput[0] > 0
    lopsided = build(one, ((0, 0), (0, 2)), (31, 1), 1, 0)
    assert lopsided.throughput[0] == 0
    assert lopsided.evaluations == 1
    assert not len(lopsided.live)


def test_a_plan_with_more_replicas_than_samples_of_its_micro_batch_is_none():
    one = on("h100=4x4", batch=8)
    stages, layers = ((0, 2), (0, 2)), (16, 16)
    assert build(one, stages, layers, 2, 2).throughput[0] > 0  # two times four samples
    assert build(one, stages, layers, 2, 3).throughput[0] == 0  # two times eight


def test_compositions_with_different_numbers_of_candidates_stand_beside_each_other():
    chooser = Watching(np.random.default_rng(2))
    constructions = played([on("h100=1x4"), on("h100=6x4")], 64, chooser)
    first = next(view for view in chooser.seen if view.head == "replicas")
    most = first.mask.sum(axis=1)
    assert most[first.rows < 64].max() <= 4
    assert most[first.rows >= 64].max() > 4
    assert (constructions.best > 0).all()
