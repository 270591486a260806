"""worker/model/experts/mixture.py: under every tiling the numbers are those of a plain loop."""

from __future__ import annotations

import pytest
import torch

from planner.cost import formulas
from tests.unit.worker.model.experts.tilings import (
    MODEL,
    NAMES,
    RANKS,
    TRAVELLERS,
    looped,
    tilings,
)
from tests.unit.worker.ranks import run_ranks

pytestmark = pytest.mark.slow
LIMIT_S = 60.0
WITHIN = 1e-12  # of fp64
TILINGS = [f"{tp} {ep} {etp}" for tp, ep, etp in tilings()]


@pytest.fixture(scope="module")
def found():
    """{tiling: what each rank found}."""
    answers = run_ranks("tests.unit.worker.model.experts.tilings:claims", RANKS, LIMIT_S)
    return {tiling: [answer[tiling] for answer in answers] for tiling in TILINGS}


@pytest.mark.parametrize("tiling", TILINGS)
def test_results_and_gradients_of_tokens_are_those_of_a_loop(tiling, found):
    told = [of for of in found[tiling] if of]
    assert told
    for of in told:
        assert of["result"] <= WITHIN
        assert of["input"] <= WITHIN


@pytest.mark.parametrize("tiling", TILINGS)
def test_gradients_of_all_ranks_that_have_an_expert_add_up_to_the_loops(tiling, found):
    _, _, weights = looped(RANKS // int(tiling.split()[0]))
    for index, (name, dim) in enumerate(zip(NAMES, (1, 1, 2), strict=True)):
        total = torch.zeros_like(weights[name])
        for of in filter(None, found[tiling]):
            block, ep, part, etp = of["box"]
            box = total.chunk(ep)[block].chunk(etp, dim=dim)[part]
            box += torch.tensor(of["experts"][index], dtype=torch.float64)
        assert (total - weights[name].grad).abs().max() <= WITHIN


@pytest.mark.parametrize("tiling", TILINGS)
def test_the_routers_gradient_is_whole_and_equal_on_a_tp_group(tiling, found):
    _, _, weights = looped(RANKS // int(tiling.split()[0]))
    total, seen = torch.zeros_like(weights["router"]), {}
    for of in filter(None, found[tiling]):
        seen.setdefault(of["replica"], []).append(of["router"])
    for of_replica in seen.values():
        assert all(router == of_replica[0] for router in of_replica)
        total += torch.tensor(of_replica[0], dtype=torch.float64)
    assert (total - weights["router"].grad).abs().max() <= WITHIN


@pytest.fixture(scope="module")
def sent():
    """What each rank sent, by tiling, where all experts are equally busy."""
    return run_ranks("tests.unit.worker.model.experts.tilings:traffic", RANKS, LIMIT_S)


def test_rows_travel_as_often_as_they_are_priced_in_both_passes(sent):
    for answer in sent:
        for tiling, (forward, backward) in answer.items():
            tp, ep, etp = map(int, tiling.split())
            tokens = TRAVELLERS / tp * MODEL.hidden * 8  # bytes of this rank's run
            rows = MODEL.experts.per_token * tokens
            there_and_back = 2 * rows * formulas.all_to_all_factor(ep, 1)
            in_the_run = formulas.ring_factor(etp) * rows * etp
            joined = formulas.ring_factor(tp) * tokens * tp / 2  # half an all-reduce
            assert forward == there_and_back + in_the_run + joined
            assert backward == forward
