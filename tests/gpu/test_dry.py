"""Every check of the first run on a GPU holds on the simulated device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.checks import CHECKS, TWO

ROOT = Path(__file__).parents[2]
LIMIT_S = 2400.0  # on a busy machine; a quiet one needs three minutes


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(2500)
@pytest.mark.parametrize(("further", "checks"), [((), CHECKS), (("--gpus", "2"), TWO)])
def test_all_checks_hold_on_the_simulated_device(tmp_path, further, checks):
    done = subprocess.run(
        [str(ROOT / "tests" / "gpu" / "run.sh"), "--dry", *further],
        env={**os.environ, "PYTHON": sys.executable, "OUT": str(tmp_path), "PATIENCE": "4"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["check"]: line["ok"] for line in lines} == dict.fromkeys(checks, True)
    assert done.returncode == 0
    if further:
        return
    (update,) = (line for line in lines if line["check"] == "update")
    assert update["processor"] == update["whole"]
    (story,) = (line for line in lines if line["check"] == "story")
    assert {family["apart"] for family in story["families"].values()} == {0.0}
