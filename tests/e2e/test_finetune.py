"""docs/examples/finetune: a model that has learnt Python learns English, and others load it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from planner.model.config import model_from_config, read_config
from planner.model.tensors import model_tensors
from worker.engine.reference.forward import forward
from worker.weights.hugging_face.families import FAMILIES
from worker.weights.hugging_face.reading import open_weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "finetune"
FALL = 0.10  # of the held-out loss, at least
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the example leaves."""
    made = tmp_path_factory.mktemp("finetune")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(EXAMPLE / "run.sh"), str(made)],
        env={**os.environ, "PATH": path, "XDG_CACHE_HOME": str(made / "cache")},
        capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (made / "said").write_text(done.stdout)
    return made


def held_out(folder: Path) -> list[float]:
    """The losses on the held-out part, by step."""
    files = sorted((folder / "measurements").glob("evaluations-*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [row["held_out_loss"] for row in sorted(rows, key=lambda row: row["step"])]


def test_a_node_joined_and_one_was_lost(folder: Path) -> None:
    said = (folder / "said").read_text()
    assert "node third joins" in said
    assert "node second is killed without notice" in said
    assert "The job trained 120 steps" in said


def test_the_model_has_learnt_english(folder: Path) -> None:
    losses = held_out(folder / "finetuned")
    assert losses[-1] <= (1 - FALL) * losses[0]


def test_each_step_is_a_line_whatever_the_epoch(folder: Path) -> None:
    files = sorted((folder / "finetuned" / "measurements").glob("steps-*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert len(files) > 1
    assert sorted({row["step"] for row in rows}) == list(range(120))
    assert all(row["forward_s"] > 0 and row["memory_bytes"] > 0 for row in rows)


def test_transformers_gives_the_same_logits(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    source = folder / "finetuned"
    shape = model_from_config(source / "config.json")
    opened = open_weights(source, shape, FAMILIES[read_config(source)["model_type"]])
    weights = {t.name: opened.first_rows(t, 0, t.rows) for t in model_tensors(shape)}
    tokens = torch.tensor([list(b"The expression list yields an iterable.")])
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(source)(input_ids=tokens).logits
    assert (theirs - forward(shape, weights, tokens)).abs().max() < TOLERANCE
