"""worker/model/experts/mixture.py: under every tiling the numbers are those of a plain loop."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from planner.cost import formulas
from planner.cost.expert_parallel import Device, Tiling, expert_seconds
from planner.model.workload import Workload
from planner.profiles.entries import LinkCost
from planner.profiles.operators import Shape, layer_work
from tests.builders import demo_profile
from tests.unit.worker.model.experts.slot_order import added, exact_tilings
from tests.unit.worker.model.experts.tilings import (
    MANY,
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
    tokens_are_right(found[tiling])


def tokens_are_right(answers):
    told = [of for of in answers if of]
    assert told
    for of in told:
        assert of["result"] <= WITHIN
        assert of["input"] <= WITHIN


@pytest.mark.parametrize("tiling", TILINGS)
def test_gradients_of_all_ranks_that_have_an_expert_add_up_to_the_loops(tiling, found):
    experts_are_right(tiling, found[tiling])


def experts_are_right(tiling, answers):
    _, _, weights = looped(len(answers) // int(tiling.split()[0]))
    for index, (name, dim) in enumerate(zip(NAMES, (1, 1, 2), strict=True)):
        total = torch.zeros_like(weights[name])
        for of in filter(None, answers):
            block, ep, part, etp = of["box"]
            box = total.chunk(ep)[block].chunk(etp, dim=dim)[part]
            box += torch.tensor(of["experts"][index], dtype=torch.float64)
        assert (total - weights[name].grad).abs().max() <= WITHIN


@pytest.mark.parametrize("tiling", TILINGS)
def test_the_routers_gradient_is_whole_and_equal_on_a_tp_group(tiling, found):
    the_router_is_right(tiling, found[tiling])


def the_router_is_right(tiling, answers):
    _, _, weights = looped(len(answers) // int(tiling.split()[0]))
    total, seen = torch.zeros_like(weights["router"]), {}
    for of in filter(None, answers):
        seen.setdefault(of["replica"], []).append(of["router"])
    for of_replica in seen.values():
        assert all(router == of_replica[0] for router in of_replica)
        total += torch.tensor(of_replica[0], dtype=torch.float64)
    assert (total - weights["router"].grad).abs().max() <= WITHIN


def test_under_every_tiling_a_tokens_rows_are_added_in_the_order_of_its_routes():
    """In fp32 the order decides the bits of a sum of four; nothing else rounds here."""
    own, other = ([added(r, slots) for r in range(RANKS)] for slots in ([0, 1, 2, 3], [3, 2, 1, 0]))
    assert all(not torch.equal(one, two) for one, two in zip(own, other, strict=True))
    answers = run_ranks("tests.unit.worker.model.experts.slot_order:claims", RANKS, LIMIT_S)
    for answer in answers:
        assert len(answer) == len(exact_tilings())
        for tiling, (replica, found) in answer.items():
            assert torch.equal(torch.tensor(found), own[replica]), tiling


@pytest.mark.system
def test_under_every_tiling_of_eight_ranks_all_of_it_is_so():
    answers = run_ranks("tests.unit.worker.model.experts.tilings:claims_of_eight", MANY, 240.0)
    assert len(answers[0]) == len(tilings(MANY)) == 40
    for tiling in answers[0]:
        of_tiling = [answer[tiling] for answer in answers]
        tokens_are_right(of_tiling)
        experts_are_right(tiling, of_tiling)
        the_router_is_right(tiling, of_tiling)


@pytest.fixture(scope="module")
def sent():
    """What each rank sent, by tiling, where all experts are equally busy."""
    return run_ranks("tests.unit.worker.model.experts.tilings:traffic", RANKS, LIMIT_S)


def test_rows_travel_as_often_as_they_are_priced_in_both_passes(sent):
    byte_a_second = LinkCost(0.0, 1.0)
    profile = replace(demo_profile(), inside_links={"demo-fast": byte_a_second}, rings={})
    task = Workload(model=MODEL, global_batch=4, sequence_length=TRAVELLERS, precision="fp32")
    double = 2  # fp64 travels, the price is of fp32
    for answer in sent:
        assert list(answer) == TILINGS
        for tiling, (forward, backward) in answer.items():
            tp, ep, etp = map(int, tiling.split())
            shape = Shape(
                tp=tp,
                micro_batch=1,
                sequence_length=TRAVELLERS,
                value_bytes=4,
                ep=ep,
                etp=etp,
            )
            attention, *of_experts = layer_work(MODEL, "moe_block", shape).reduced_bytes or (0,)
            assert attention == TRAVELLERS * MODEL.hidden * 4 * (tp > 1)
            price = formulas.ring_factor(tp) * sum(of_experts)
            if (ep, etp) != (1, tp):
                devices = [Device("a", "demo-fast", None)] * RANKS
                price += expert_seconds(task, profile, Tiling(tp, ep, etp), devices, 1, None)
            assert forward == double * price
            assert backward == forward
