"""The demo in short: a node joins, one is killed, and the losses stay those of one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
HEDDLE = Path(sys.executable).with_name("heddle")
SCRIPT = """
- {at_step: 3, join: {name: fast-3, type: demo-fast, gpus: 3}}
# A pod takes up to 15 s to start on a busy machine, and a step 0.8 s.
- {at_step: 36, kill: fast-2}
"""


def test_a_job_lives_through_a_join_and_a_kill_and_trains_as_one_process_does(tmp_path):
    script = tmp_path / "script.yaml"
    script.write_text(SCRIPT)
    command = [HEDDLE, "demo", "--headless", "--output", "json", "--steps", "46"]
    done = subprocess.run(
        [*command, "--script", script], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert [epoch["reason"] for epoch in result["epochs"]] == ["start", "join", "loss"]
    assert len(result["losses"]) == len(result["reference_losses"]) == 46
    assert result["max_loss_difference"] <= 1e-5
    moves = [epoch["reconfiguration"] for epoch in result["epochs"][1:]]
    assert all(move["steps_lost"] == 0 for move in moves)
    assert all(move["state_digest_before"] == move["state_digest_after"] for move in moves)
    assert result["orphan_processes"] == 0
