"""The columns of a search: where they come from, and that each fits alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.cluster.composition import Composition
from planner.estimator.bag import new_bag
from planner.estimator.bench import new_bench
from planner.estimator.build_tables import pricing_of
from planner.estimator.elites import new_elites
from planner.estimator.objective import Wishes
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import find_profile
from planner.search.annealing.uniform_plans import start
from planner.search.column_generation.column_mixer import ColumnMixer
from planner.search.column_generation.column_pool import uses_of
from planner.search.column_generation.columns import ColumnSearch

WISHES = Wishes(12, 8, 0, math.inf, math.inf)


def ask(model: str, text: str):
    workload = Workload(find_model(model), 512, 2048, "fp16")
    pricing = pricing_of(workload, Composition.from_text(text), find_profile(workload))
    assert pricing is not None
    t, elites = pricing.tables, new_elites()
    start(t, WISHES, new_bag(), new_bench(t), elites)
    return pricing, elites


def test_templates_of_stages_that_are_all_alike_become_columns():
    pricing, elites = ask("llama3-8b", "a100-80=2x4,h100=2x2")
    t, mixer = pricing.tables, ColumnMixer(pricing.tables, WISHES)
    mixer.take_uniform(elites)
    pool = mixer.pool
    rows = range(int(pool.number[0]))
    held = {(*set(pool.options[c, : pool.depth[c]].tolist()), int(pool.depth[c])) for c in rows}
    assert len(held) == len(rows), "each once, of one option"
    for option, tp in enumerate(t.option_tp.tolist()):
        depths = {depth for one, depth in held if one == option}
        assert max(depths) == min(12, int(t.room[option]) // tp)


@pytest.mark.slow
def test_every_column_fits_alone():
    pricing, elites = ask("qwen3-32b", "a100-40=2x2+4x1,a100-80=2x2+4x1,h100=8x1")
    t, search = pricing.tables, ColumnSearch(pricing, WISHES, 0)
    search.run(elites, lambda: False, 1)
    pool = search.mixer.pool
    uses = np.zeros((len(t.option_tp), int(pool.number[0])))
    uses_of(t, pool, uses)
    assert uses.shape[1] > 0
    assert (uses <= t.room[:, None]).all()
