"""Where no port is free the next groups cannot form: the old plan trains on, and grows later."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a network of its own"),
]
ROOT = Path(__file__).parents[3]


def test_a_change_that_finds_no_port_is_cancelled_and_the_old_plan_trains_on(
    tmp_path: Path, corpus: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.distributed.errors.few_ports",
        str(tmp_path),
        str(corpus),
    ]
    done = subprocess.run(
        ["unshare", "--net", *command], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout)
    failed = [row for row in said["failed"] if row[2] is not None]
    assert "other" in {kind for _, _, kind, _ in failed}, "no peer's fault, and told apart from it"
    for _, _, kind, error in failed:
        assert error.startswith("cannot prepare epoch 2: ")
        assert kind == "lost peer" or "no port" in error
    assert said["later"] == [[0, "training", 1], [1, "training", 1]]
