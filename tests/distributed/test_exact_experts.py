"""Mixtures of experts under any tiling train as plain torch does, through a change of plan.

Experts are spread over GPUs and replicas, cut and copied; replicas have unequal micro-batches.
"""

from __future__ import annotations

import pytest

from tests.distributed.exactness import Case, cases, judged, ranks_find
from tests.unit.worker.data.lines import prepared_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]  # imports DeepSpeed, forks ranks
SAMPLE = (2, 6, 4, "fp32 mixtures")  # seed, jobs, steps
CAMPAIGN = (7, 10, 6, "mixtures")  # each family in two precisions
LIMIT_S = 600.0  # on a busy machine; a quiet one needs half a minute


def claimed(wanted, prefix, answers, index):
    case: Case = cases(*wanted)[index]
    result = judged(case, prefix, answers[index])
    assert result.worst <= result.allowed
    assert result.copies > 0 or all(plan.gpus == 1 for plan in case.plans)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory):
    return prepared_lines(tmp_path_factory.mktemp("lines"))


@pytest.fixture(scope="module")
def sample(prefix):
    return ranks_find(SAMPLE, prefix, LIMIT_S)


@pytest.fixture(scope="module")
def campaign(prefix):
    return ranks_find(CAMPAIGN, prefix, LIMIT_S)


@pytest.mark.parametrize("index", range(SAMPLE[1]), ids=[str(case) for case in cases(*SAMPLE)])
def test_a_mixture_trains_as_plain_torch_does_and_all_holders_are_equal(index, prefix, sample):
    claimed(SAMPLE, prefix, sample, index)


@pytest.mark.system
@pytest.mark.parametrize("index", range(CAMPAIGN[1]), ids=[str(case) for case in cases(*CAMPAIGN)])
def test_so_does_a_mixture_in_any_precision(index, prefix, campaign):
    claimed(CAMPAIGN, prefix, campaign, index)


def test_the_sample_spreads_cuts_and_copies_experts_over_unequal_replicas():
    templates = [t for case in cases(*SAMPLE) for plan in case.plans for t in plan.templates]
    stages = [stage for template in templates for stage in template.stages]
    assert any(stage.ep > 1 and stage.expert_tp > 1 for stage in stages)
    assert any(stage.ep > 1 and stage.tp > 1 for stage in stages)
    assert any(stage.expert_tp > stage.tp for stage in stages)
    assert any(stage.is_tiled and stage.ep == 1 and stage.expert_tp < stage.tp for stage in stages)
    unequal = [one for one in templates if len(set(one.micro_batches)) > 1]
    assert any(one.is_in_lock_step for one in unequal)
