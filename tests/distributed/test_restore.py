"""Random jobs that go on from a checkpoint under another plan, as plain torch goes on."""

from __future__ import annotations

import pytest

from tests.distributed.exactness import cases, judged, ranks_find
from tests.unit.worker.data.lines import prepared_lines

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(700)]  # forks ranks
SAMPLE = (5, 7, 6)  # seed, jobs, steps: each family once, the checkpoint after half of the steps
LIMIT_S = 600.0


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory):
    """(prefix of the data, what the ranks answered of each case)."""
    prefix = prepared_lines(tmp_path_factory.mktemp("lines"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VAULT", str(tmp_path_factory.mktemp("vault")))
        return prefix, ranks_find(SAMPLE, prefix, LIMIT_S)


@pytest.mark.parametrize("index", range(SAMPLE[1]), ids=[str(case) for case in cases(*SAMPLE)])
def test_a_job_goes_on_from_a_checkpoint_as_plain_torch_does(index, found):
    prefix, answers = found
    result = judged(cases(*SAMPLE)[index], prefix, answers[index])
    assert result.worst <= result.allowed
