"""A sample of random jobs: each trains as plain torch does, through a change of plan.

`python -m benchmarks.exactness` is the whole campaign: more jobs, of 50 steps.
"""

from __future__ import annotations

import pytest

from tests.distributed.exactness import Case, cases, judged, ranks_find
from tests.unit.worker.data.lines import prepared_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]  # imports DeepSpeed, forks ranks
SAMPLE = (11, 14, 6)  # seed, jobs, steps: each family twice, in other precisions
LIMIT_S = 600.0  # on a busy machine; a quiet one needs a minute


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory):
    """(prefix of the data, what the ranks answered of each case)."""
    prefix = prepared_lines(tmp_path_factory.mktemp("lines"))
    return prefix, ranks_find(SAMPLE, prefix, LIMIT_S)


@pytest.mark.parametrize("index", range(SAMPLE[1]), ids=[str(case) for case in cases(*SAMPLE)])
def test_a_job_trains_as_plain_torch_does_and_all_holders_are_equal_bit_by_bit(index, found):
    prefix, answers = found
    case: Case = cases(*SAMPLE)[index]
    result = judged(case, prefix, answers[index])
    assert result.worst <= result.allowed
    assert result.copies > 0 or all(plan.gpus == 1 for plan in case.plans)


def test_the_sample_has_each_family_in_two_precisions_and_both_of_all_else():
    drawn = cases(*SAMPLE)
    kinds = {(case.model.name, case.spec.precision) for case in drawn}
    assert len(kinds) == SAMPLE[1]
    assert {case.spec.precision for case in drawn} == {"fp32", "bf16", "fp16"}
    for what in ("tied_head", "dropout"):
        assert {getattr(case.model, what) for case in drawn} == {True, False}
    assert {case.spec.data.document_mask for case in drawn} == {True, False}
