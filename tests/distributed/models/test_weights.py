"""A job starts from weights that `transformers` saved, and it loads what the job leaves."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from planner.plans.plan import Plan
from tests import hugging_face
from tests.distributed.pods import Pods, place, template
from worker.contract import TrainingSpec
from worker.data.dataset import Dataset
from worker.training_settings import Corpus, DataSpec

pytestmark = [pytest.mark.slow, pytest.mark.system]
BATCH, LENGTH, VOCAB = 6, 32, 300
TOLERANCE = 1e-5


MODELS = {  # grouped queries; and a tied head, learned positions, fused matrices, biases
    "llama": {"num_hidden_layers": 6, "rms_norm_eps": 1e-5},
    "gpt2": {"n_layer": 6, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
}


@pytest.fixture(scope="module", params=sorted(MODELS))
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a small model with random weights, in several files."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, folder = request.param, tmp_path_factory.mktemp(request.param)
    torch.manual_seed(5)
    sizes = {**hugging_face.CONFIGS[kind], **MODELS[kind], "vocab_size": VOCAB}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes))
    model.save_pretrained(folder, max_shard_size=50_000)
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def pods(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    found = Pods(tmp_path_factory.mktemp("pods"))
    try:
        found.start("a", gpus=8)
        yield found
    finally:
        found.close()


def spec(source: Path, corpus: Path, output: Path, steps: int) -> TrainingSpec:
    return TrainingSpec(
        model=source.name,
        shape=hugging_face.shape_of(source).to_json(),
        config=json.loads((source / "config.json").read_text()),
        folder=str(source),
        weights=str(source),
        data=DataSpec(blend=(Corpus(path=str(corpus)),)),
        global_batch=BATCH,
        sequence_length=LENGTH,
        steps=steps,
        warmup_steps=0,
        learning_rate=3e-3,
        output=str(output),
    )


def plan(first: int) -> Plan:
    """Two pipelines, TP 2 and 1, so that no rank holds a whole model that it could read."""
    gpus = [("a", first + gpu) for gpu in range(4)]
    return place((template("2x4+1x2", 1, 4), template("1x6", 2, 1)), gpus)


def train(pods: Pods, epoch: int, job: TrainingSpec) -> list[float]:
    first = 4 * (epoch - 1)
    directive = pods.directive(epoch, plan(first), job, "a", reason="start")
    pods.change(directive)
    report = pods.pods["a"].wait(
        lambda r: all(x.phase == "done" for x in r.ranks if x.slot >= first)
    )
    return [step.loss for step in report.steps if step.epoch == epoch]


def loss_of(folder: Path, job: TrainingSpec, step: int) -> float:
    """What `transformers` says of the samples of a step."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    dataset = Dataset(job.data, LENGTH, VOCAB)
    ids = range(step * BATCH, (step + 1) * BATCH)
    tokens = torch.from_numpy(np.stack([dataset.sample(job.seed, i).tokens for i in ids]))
    with torch.no_grad():
        return float(model(input_ids=tokens[:, :-1], labels=tokens[:, :-1].clone(),
                           shift_labels=tokens[:, 1:].contiguous()).loss)  # fmt: skip


def test_training_goes_on_from_the_weights_and_their_folder_takes_its_place(
    pods: Pods, source: Path, corpus: Path, tmp_path: Path
) -> None:
    """What a job of two steps left has the loss that a job of three steps had at its third."""
    first = spec(source, corpus, tmp_path / "two", 2)
    short = train(pods, 1, first)
    long = train(pods, 2, spec(source, corpus, tmp_path / "three", 3))
    assert short == long[:2]
    assert abs(loss_of(source, first, 0) - short[0]) < TOLERANCE
    assert abs(loss_of(tmp_path / "two", first, 2) - long[2]) < TOLERANCE
    assert abs(long[2] - long[0]) > 100 * TOLERANCE, "it has trained"
    names = {path.name for path in (tmp_path / "two").iterdir()} - {"measurements"}
    assert names == {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}


def test_a_folder_of_another_model_is_refused_before_anything_starts(
    pods: Pods, source: Path, corpus: Path, tmp_path: Path
) -> None:
    right = spec(source, corpus, tmp_path / "out", 2)
    job = right.model_copy(update={"config": {**(right.config or {}), "eos_token_id": 3}})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps(right.config))
    job = job.model_copy(update={"folder": str(tmp_path / "other")})
    status, answer = pods.pods["a"].put(pods.directive(3, plan(0), job, "a", reason="start"))
    assert status == 400
    assert "and eos_token_id 3, that of " in answer["error"]
