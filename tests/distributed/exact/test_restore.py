"""Random jobs that go on from a checkpoint under another plan, as plain torch goes on."""

from __future__ import annotations

import pytest

from tests.distributed.exact.exactness import cases, judged, ranks_find
from tests.unit.worker.data.lines import prepared_lines

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(700)]  # forks ranks
# Seed, jobs, steps: each family once, the checkpoint after half of the steps.
SAMPLES = {"dense": (5, 7, 6), "mixtures": (5, 5, 6, "fp32 mixtures")}
LIMIT_S = 600.0


@pytest.fixture(scope="module", params=SAMPLES)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """(the cases, the prefix of the data, what the ranks answered of each case)."""
    prefix, sample = prepared_lines(tmp_path_factory.mktemp("lines")), SAMPLES[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VAULT", str(tmp_path_factory.mktemp("vault")))
        return cases(*sample), prefix, ranks_find(sample, prefix, LIMIT_S)


def test_jobs_go_on_from_a_checkpoint_as_plain_torch_does(found):
    jobs, prefix, answers = found
    for case, answer in zip(jobs, answers, strict=True):
        result = judged(case, prefix, answer)
        assert result.worst <= result.allowed, str(case)
