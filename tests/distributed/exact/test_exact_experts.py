"""Mixtures of experts under any tiling train as plain torch does, through a change of plan and a
checkpoint that a third plan goes on from.

Experts are spread over GPUs and replicas, cut and copied; replicas have unequal micro-batches, and
some plans ZeRO.  Each expert has as many visits in each step as in plain torch.
"""

from __future__ import annotations

import pytest

from tests.distributed.exact.exactness import cases, ranks_find
from tests.distributed.exact.judged import claim, elsewhere_of
from tests.distributed.exact.visits import visits_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]  # imports DeepSpeed, forks ranks
SAMPLE = (2, 5, 6, "fp32 mixtures")  # seed, jobs, steps
CAMPAIGN = (7, 10, 6, "mixtures")  # each family in two precisions
LIMIT_S = 600.0  # on a busy machine; a quiet one needs half a minute


@pytest.fixture(scope="module")
def sample(lines):
    return ranks_find(SAMPLE, lines, LIMIT_S)


@pytest.fixture(scope="module")
def campaign(lines):
    return ranks_find(CAMPAIGN, lines, LIMIT_S)


@pytest.mark.parametrize("index", range(SAMPLE[1]), ids=[str(case) for case in cases(*SAMPLE)])
def test_a_mixture_trains_as_plain_torch_does_and_all_holders_are_equal(index, lines, sample):
    claim(SAMPLE, lines, sample, index)


@pytest.mark.system
@pytest.mark.parametrize("index", range(CAMPAIGN[1]), ids=[str(case) for case in cases(*CAMPAIGN)])
def test_so_does_a_mixture_in_any_precision(index, lines, campaign):
    claim(CAMPAIGN, lines, campaign, index)


def test_a_visit_of_another_expert_is_found_and_a_lost_one_refused():
    told = [{"1/0/2": [3, 1], "2/0/2": [2, 2]}, {"1/0/2": [3, 1]}, {"1/2/2": [0, 4]}]
    assert visits_of(told) == [[3, 5], [2, 2]]  # a TP group tells once what two ranks tell
    assert elsewhere_of([visits_of(told)], [[[3, 5], [2, 2]]]) == 0
    assert elsewhere_of([visits_of(told)], [[[4, 4], [0, 4]]]) == 3
    with pytest.raises(AssertionError, match="differs between ranks"):
        visits_of([{"1/0/2": [3, 1]}, {"1/0/2": [2, 2]}])
    with pytest.raises(AssertionError, match="visits k experts"):
        elsewhere_of([[[3, 1]]], [[[3, 2]]])


def test_the_sample_goes_on_from_checkpoints_with_zero_and_without():
    drawn = cases(*SAMPLE)
    assert {(len(case.plans), case.restored) for case in drawn} == {(3, 2)}
    assert {plan.zero for case in drawn for plan in case.plans} == {0, 1}


def test_the_sample_spreads_cuts_and_copies_experts_over_unequal_replicas():
    templates = [t for case in cases(*SAMPLE) for plan in case.plans for t in plan.templates]
    stages = [stage for template in templates for stage in template.stages]
    assert any(stage.ep > 1 and stage.expert_tp > 1 for stage in stages)
    assert any(stage.ep > 1 and stage.tp > 1 for stage in stages)
    assert any(stage.expert_tp > stage.tp for stage in stages)
    assert any(stage.is_tiled and stage.ep == 1 and stage.expert_tp < stage.tp for stage in stages)
    unequal = [one for one in templates if len(set(one.micro_batches)) > 1]
    assert any(one.is_in_lock_step for one in unequal)
