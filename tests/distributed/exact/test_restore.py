"""Random jobs that go on from a checkpoint under another plan, as plain torch goes on."""

from __future__ import annotations

import pytest

from tests.distributed.exact.exactness import cases, ranks_find
from tests.distributed.exact.judged import judged

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(700)]  # forks ranks
# Seed, jobs, steps: each family once, the checkpoint after half of the steps.  Mixtures of
# experts do so in `test_exact_experts.py`.
SAMPLE = (5, 7, 6, "restored dense")
LIMIT_S = 600.0


def test_jobs_go_on_from_a_checkpoint_as_plain_torch_does(lines):
    for case, answer in zip(cases(*SAMPLE), ranks_find(SAMPLE, lines, LIMIT_S), strict=True):
        result = judged(case, lines, answer)
        assert result.worst <= result.allowed, str(case)
