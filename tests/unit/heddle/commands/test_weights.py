"""heddle/commands/weights.py: weights are exported in little memory; a folder is checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from heddle.commands.weights import weights
from planner.model.catalogue import MODELS
from planner.model.shape import ModelShape
from planner.model.tensors import model_tensors
from planner.plans.ranks import RankMap
from tests.unit.worker.changes import SPEC, plan, shards_of, whole_state
from tests.unit.worker.weights.together import endings
from worker.errors import InvalidWeights
from worker.weights.hugging_face.config import config_of
from worker.weights.hugging_face.families import FAMILIES
from worker.weights.hugging_face.tensors import stored_tensors
from worker.weights.merging import Merge

TINY = MODELS["tiny-llama"]


def leave_parts(output, model, pipelines, state=None, config=None):
    """What ranks leave whose disks are their own."""
    state = state or whole_state(model)
    seats = RankMap.of(plan(*pipelines)).seats
    held = [{n: p[0] for n, p in shards_of(seat, state, model).items()} for seat in seats]
    spec = SPEC.model_copy(update={"output": str(output), "config": config})
    for one in endings(model, seats, held, spec):
        for step in one.steps:
            if not isinstance(step, Merge):
                step.run(lambda: True)
    return state


def hugging_face_folder(folder):
    """The config.json of a tiny model; the tensors for the file beside it."""
    (folder / "config.json").write_text(json.dumps(config_of(TINY)))
    return {t.name: torch.zeros(t.shape) for t in stored_tensors(TINY, FAMILIES["llama"])}


def run(*arguments):
    return CliRunner().invoke(
        weights, [str(argument) for argument in arguments], catch_exceptions=False
    )


def refusal(*arguments):
    with pytest.raises(InvalidWeights) as caught:
        run(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_parts_become_a_folder_and_stay(tmp_path):
    state = leave_parts(tmp_path / "run", TINY, ["2x3+1x3"])
    found = run("export", tmp_path / "run", tmp_path / "new" / "folder", "--output", "json")
    about = json.loads(found.stdout)
    assert (about["from"], about["model"], about["dtype"]) == ("3 parts", "tiny-llama", "float32")
    assert about["files"] == ["model.safetensors", "config.json"]
    held = load_file(tmp_path / "new" / "folder" / "model.safetensors")
    assert torch.equal(held["model.layers.4.mlp.down_proj.weight"], state["5.down"][0])
    assert (tmp_path / "run" / "parts" / "weights.index.json").exists()


@pytest.mark.parametrize(("dtype", "kept"), [("bf16", "bfloat16"), ("fp16", "float16")])
def test_another_precision_is_rounded_and_said(tmp_path, dtype, kept):
    state = leave_parts(tmp_path / "run", TINY, ["1x6"])
    run("export", tmp_path / "run", tmp_path / "out", "--dtype", dtype)
    held = load_file(tmp_path / "out" / "model.safetensors")
    wanted = state["1.q"][0].to(getattr(torch, kept))
    assert torch.equal(held["model.layers.0.self_attn.q_proj.weight"], wanted)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == kept


def test_a_weight_beyond_a_precision_is_refused(tmp_path):
    leave_parts(tmp_path / "run", TINY, ["1x6"])
    run("export", tmp_path / "run", tmp_path / "wide")
    path = tmp_path / "wide" / "model.safetensors"
    held = load_file(path)
    held["model.layers.0.self_attn.q_proj.weight"][0, 0] = 1e5
    save_file(held, path)
    said = refusal("export", tmp_path / "wide", tmp_path / "narrow", "--dtype", "fp16")
    assert "model.layers.0.self_attn.q_proj.weight" in said
    assert not (tmp_path / "narrow" / "config.json").exists()


def test_a_folder_is_exported_again_in_its_own_precision_and_in_smaller_files(tmp_path):
    state = leave_parts(tmp_path / "run", TINY, ["1x6"])
    run("export", tmp_path / "run", tmp_path / "a", "--dtype", "bf16")
    run("export", tmp_path / "a", tmp_path / "b", "--max-shard-mb", "1")
    run("export", tmp_path / "run", tmp_path / "c", "--max-shard-mb", "1")
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == (
        tmp_path / "a" / "model.safetensors"
    ).read_bytes()
    index = json.loads((tmp_path / "c" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * sum(t.numel for t in model_tensors(TINY))
    assert set(index["weight_map"].values()) == {
        f"model-0000{number}-of-00002.safetensors" for number in (1, 2)
    }
    assert state


def test_the_table_says_what_was_written(tmp_path):
    leave_parts(tmp_path / "run", TINY, ["1x6"])
    lines = run("export", tmp_path / "run", tmp_path / "out").stdout.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert rows["parameters"] == ["279,360"]
    assert rows["from"] == ["1", "part"]


def test_nothing_is_overwritten_unasked(tmp_path):
    leave_parts(tmp_path / "run", TINY, ["1x6"])
    out = tmp_path / "out"
    run("export", tmp_path / "run", out)
    assert refusal("export", tmp_path / "run", out) == (
        f"{out} holds a model already; name another folder or --overwrite"
    )
    run("export", tmp_path / "run", out, "--overwrite", "--dtype", "bf16")
    assert "is the folder that is read" in refusal("export", out, out, "--overwrite")
    (tmp_path / "file").touch()
    assert "is a file; name a folder" in refusal("export", out, tmp_path / "file")


def test_a_run_without_weights_is_refused(tmp_path):
    said = refusal("export", tmp_path, tmp_path / "out")
    assert "holds neither weights (config.json) nor parts" in said


def test_a_part_that_is_missing_is_named(tmp_path):
    leave_parts(tmp_path / "run", TINY, ["1x3+1x3"])
    (tmp_path / "run" / "parts" / "weights-stage1-slot0.safetensors").unlink()
    sentence = refusal("export", tmp_path / "run", tmp_path / "out")
    assert "the first is weights-stage1-slot0.safetensors; bring the parts" in sentence


def test_a_folder_that_fits_is_checked(tmp_path):
    leave_parts(tmp_path / "run", TINY, ["1x6"])
    run("export", tmp_path / "run", tmp_path / "out", "--dtype", "bf16")
    found = run("check", tmp_path / "out", "--output", "json")
    assert json.loads(found.stdout) == {
        "folder": str(tmp_path / "out"),
        "tensors": 57,
        "parameters": 279_360,
        "dtype": "bfloat16",
        "files": ["model.safetensors"],
        "missing": [],
        "left_over": [],
        "left_out": [],
        "wrong": [],
    }


def test_all_that_does_not_fit_is_listed_and_one_sentence_says_it(tmp_path, capsys):
    held = hugging_face_folder(tmp_path)
    held["model.norm.weight"] = torch.zeros(3)
    held |= {f"extra.{number}": torch.zeros(1) for number in range(5)}
    for block in range(6):
        del held[f"model.layers.{block}.mlp.up_proj.weight"]
    save_file(held, tmp_path / "model.safetensors")
    result = CliRunner().invoke(weights, ["check", str(tmp_path), "--output", "json"])
    assert isinstance(result.exception, InvalidWeights)
    assert result.exception.code == "Mismatch"
    assert result.exception.field == "model.layers.0.mlp.up_proj.weight"
    found = json.loads(result.stdout)
    assert found["missing"] == [f"model.layers.{block}.mlp.up_proj.weight" for block in range(6)]
    assert found["left_over"] == [f"extra.{number}" for number in range(5)]
    assert ["has shape [3]" in sentence for sentence in found["wrong"]] == [True]


LIMITED = """
import re, resource, sys
import torch
from pathlib import Path
from click.testing import CliRunner
from planner.model.tensors import model_tensors
from heddle.commands.weights import weights
from worker.weights.hugging_face.families import FAMILIES
from worker.weights.hugging_face.reading import open_weights
from worker.weights import merging
import rich.progress, worker.weights.hugging_face.writing, planner.model.config
torch.set_num_threads(1)
run, out, room = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])

def allow(mapped):
    "Allow what is used now, files that are mapped, and the room."
    used = int(re.search(r"VmData:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + mapped + room, resource.RLIM_INFINITY))
    try:
        torch.ones((mapped + 2 * room) // 4)
    except RuntimeError:
        return
    raise SystemExit("the limit is none")

parts = merging.parts_in(run)
allow(sum(path.stat().st_size for path in parts.folder.iterdir()))
result = CliRunner().invoke(weights, ["export", str(run), str(out)], catch_exceptions=False)
allow((out / "model.safetensors").stat().st_size)
folder = open_weights(out, parts.model, FAMILIES["gpt2"])
tensor = model_tensors(parts.model)[0]
rows = folder.first_rows(tensor, 0, tensor.rows // 16)
assert rows.shape[0] == tensor.rows // 16
"""


@pytest.mark.slow
def test_a_model_is_exported_and_read_in_far_less_memory_than_it_has(tmp_path):
    """58 MB of weights, some of them transposed, with room for 24 MB beside the mapped files."""
    model = ModelShape(
        name="gpt", layers=1, hidden=512, heads=8, kv_heads=8, ffn=2048, vocab=24_000, gated=False,
        rotary=False, max_positions=64, tied_head=True, bias=True, qkv_bias=True,
    )  # fmt: skip
    state = {t.name: (torch.zeros(t.shape),) for t in model_tensors(model)}
    config = {"model_type": "gpt2", "n_embd": 512}
    leave_parts(tmp_path / "run", model, ["2x1"], state, config)
    root = Path(__file__).parents[4]
    command = [sys.executable, "-c", LIMITED, tmp_path / "run", tmp_path / "out", str(24 * 2**20)]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr[-2000:]
    assert (tmp_path / "out" / "model.safetensors").stat().st_size > 55 * 2**20


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"model_type": "llama", "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
            "dynamic",
        ),
        ({"model_type": "opt", "do_layer_norm_before": False}, "do_layer_norm_before"),
    ],
)
def test_a_model_that_is_not_trained_is_refused_by_its_fields_first(tmp_path, config, words):
    shape = dict.fromkeys(("hidden_size", "intermediate_size", "ffn_dim"), 64)
    shape |= {"num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 256}
    (tmp_path / "config.json").write_text(json.dumps(shape | config))
    save_file({"other": torch.zeros(1)}, tmp_path / "model.safetensors")
    said = refusal("check", tmp_path)
    assert words in said
    assert "can be planned and priced but not trained" in said


def test_a_weight_that_is_no_finite_number_is_found(tmp_path):
    held = hugging_face_folder(tmp_path)
    held["model.layers.3.mlp.up_proj.weight"][-1, -1] = float("nan")
    save_file(held, tmp_path / "model.safetensors")
    said = refusal("check", tmp_path)
    assert "'model.layers.3.mlp.up_proj.weight' in " in said
    assert "holds a number that is not finite" in said
