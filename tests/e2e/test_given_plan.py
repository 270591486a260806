"""`heddle train --plan`: a plan that the planner would not choose gives the same losses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from planner.model.catalogue import MODELS
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
HEDDLE = str(Path(sys.executable).parent / "heddle")
ROOT = Path(__file__).parents[2]
BATCH, STEPS = 4, 6


def trained(folder: Path, name: str, *options: str) -> dict[str, object]:
    """The result of a run on two emulated GPUs."""
    command = [HEDDLE, "train", str(folder / "job.yaml"), "--nodes", str(folder / "nodes.yaml")]
    command += ["--output", "json", "--output-path", str(folder / name), *options]
    done = subprocess.run(
        command, capture_output=True, text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_a_given_plan_trains_the_same_losses_as_the_planners(tmp_path: Path) -> None:
    body = yaml.safe_load((ROOT / "manifests" / "examples" / "tiny.yaml").read_text())
    body["spec"]["steps"] = STEPS
    body["spec"]["training"] |= {"globalBatch": BATCH, "sequenceLength": 128}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(body))
    nodes = "".join(f"- {{name: node-{n}, type: demo-fast, gpus: 1}}\n" for n in range(2))
    (tmp_path / "nodes.yaml").write_text(nodes)
    layers = MODELS["tiny-llama"].layers
    stages = (
        Stage(gpu_type="demo-fast", tp=1, layers=layers - 1),
        Stage(gpu_type="demo-fast", tp=1, layers=1),
    )  # uneven, so slower
    placement = tuple(PlacedStage(0, 0, stage, f"node-{stage}", (0,)) for stage in range(2))
    plan = Plan((FilledTemplate(stages, 1, (BATCH,)),), placement)
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()))

    usual = trained(tmp_path, "usual")
    given = trained(tmp_path, "given", "--plan", str(tmp_path / "plan.json"))

    digests = [[epoch["plan"]["digest"] for epoch in run["epochs"]] for run in (usual, given)]
    assert digests[1] == [plan.digest]
    assert plan.digest not in digests[0]
    assert len(given["losses"]) == STEPS
    assert given["losses"] == pytest.approx(usual["losses"], abs=1e-5)
