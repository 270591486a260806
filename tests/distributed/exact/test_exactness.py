"""A sample of random jobs: each trains as plain torch does, through a change of plan.

`python -m benchmarks.exactness` is the whole campaign: more jobs, of 50 steps.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from planner.plans.ranks import RankMap
from tests.distributed.exact.exactness import cases, ranks_find
from tests.distributed.exact.judged import claim

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]  # imports DeepSpeed, forks ranks
SAMPLE = (6, 7, 4)  # seed, jobs, steps: each family once
FURTHER = (12, 14, 6)  # each family twice, in other precisions
LIMIT_S = 600.0  # on a busy machine; a quiet one needs a minute


@pytest.fixture(scope="module")
def sample(lines):
    return ranks_find(SAMPLE, lines, LIMIT_S)


@pytest.fixture(scope="module")
def further(lines):
    return ranks_find(FURTHER, lines, LIMIT_S)


@pytest.mark.parametrize("index", range(SAMPLE[1]), ids=[str(case) for case in cases(*SAMPLE)])
def test_a_job_trains_as_plain_torch_does_and_all_holders_are_equal(index, lines, sample):
    claim(SAMPLE, lines, sample, index)


@pytest.mark.system
@pytest.mark.parametrize("index", range(FURTHER[1]), ids=[str(case) for case in cases(*FURTHER)])
def test_so_do_further_jobs(index, lines, further):
    claim(FURTHER, lines, further, index)


def test_the_sample_has_each_family_once_and_both_of_all_else():
    drawn = cases(*SAMPLE)
    assert len({case.model.name for case in drawn}) == SAMPLE[1]
    assert {case.spec.precision for case in drawn} == {"fp32", "bf16", "fp16"}
    for what in ("tied_head", "dropout"):
        assert {getattr(case.model, what) for case in drawn} == {True, False}
    assert {case.spec.data.document_mask for case in drawn} == {True, False}
    assert {case.spec.precision for case in drawn if sends_slices(case)} >= {"fp32", "bf16"}


def sends_slices(case):
    """Whether neighbouring stages of a plan are on different nodes, and one has TP."""
    return any(
        here != there and max(len(source), len(target)) > 1
        for plan in case.plans
        for pipeline in RankMap.of(plan).pipelines
        for (source, here), (target, there) in pairwise(
            zip(pipeline.ranks, pipeline.nodes, strict=True)
        )
    )


def test_the_further_jobs_have_each_family_in_two_precisions():
    drawn = cases(*FURTHER)
    assert len({(case.model.name, case.spec.precision) for case in drawn}) == FURTHER[1]
