"""`transformers` saves, ranks of a plan read and end, and `transformers` loads the same bits."""

from __future__ import annotations

import json

import pytest
import torch

from planner.plans.ranks import RankMap
from tests import hugging_face
from tests.unit.worker.changes import SPEC, plan
from tests.unit.worker.weights.hugging_face.golden import KINDS
from tests.unit.worker.weights.together import end
from worker.checkpoint.start_source import FirstWeights
from worker.control.activity import Activity
from worker.state.shards import TargetShards
from worker.weights.hugging_face.families import FAMILIES
from worker.weights.hugging_face.reading import open_weights
from worker.weights.hugging_face.writing import Wanted, folder_files, write_folder

pytestmark = pytest.mark.slow  # imports transformers


def first_weights(model, folder, seat, kind):
    """What a rank starts with."""
    rows = open_weights(folder, model, FAMILIES[kind]).first_rows
    shards = TargetShards.first(model, seat, FirstWeights(rows).fill, Activity()).shards
    return {name: parts[0] for name, parts in shards.items()}


def through_ranks(kind, source, output, pipelines):
    """Read under a plan, and end the job at once."""
    model = hugging_face.shape_of(source)
    config = json.loads((source / "config.json").read_text())
    spec = SPEC.model_copy(update={"config": config, "folder": str(source), "output": str(output)})
    seats = RankMap.of(plan(*pipelines)).seats
    weights = [first_weights(model, source, seat, kind) for seat in seats]
    end(model, seats, weights, spec)


@pytest.mark.parametrize("kind", KINDS)
def test_what_transformers_loads_is_bitwise_what_it_saved(tmp_path, kind):
    from transformers import AutoModelForCausalLM

    saved = hugging_face.save(kind, tmp_path / "source")
    (tmp_path / "source" / "tokenizer.json").write_text("{}")
    output = tmp_path / "output"
    through_ranks(kind, tmp_path / "source", output, ["2x1+2x1"])
    loaded, told = AutoModelForCausalLM.from_pretrained(output, output_loading_info=True)
    assert not any(told[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    wanted, found = saved.state_dict(), loaded.state_dict()
    assert list(found) == list(wanted)
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    assert {path.name for path in output.iterdir()} == {
        path.name for path in (tmp_path / "source").iterdir()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_has_the_very_bytes_that_save_pretrained_writes(tmp_path, kind):
    hugging_face.save(kind, tmp_path / "source")
    through_ranks(kind, tmp_path / "source", tmp_path / "output", ["1x2", "2x2"])
    for path in (tmp_path / "source").iterdir():
        assert (tmp_path / "output" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3"])
def test_experts_in_one_tensor_are_read_by_any_holder_and_written_one_by_one(tmp_path, kind):
    model = hugging_face.save(kind, tmp_path / "source")
    shard = hugging_face.SHARD
    model.save_pretrained(tmp_path / "fused", save_original_format=False, max_shard_size=shard)
    through_ranks(kind, tmp_path / "fused", tmp_path / "output", ["1x2", "2x2"])
    name = "model.safetensors"
    assert (tmp_path / "output" / name).read_bytes() == (tmp_path / "source" / name).read_bytes()


@pytest.mark.parametrize("options", [{"max_shard_size": hugging_face.SHARD}, {}])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sharded_and_half_precision_sources_are_read(tmp_path, options, dtype):
    model = hugging_face.model_of("qwen3").to(dtype)
    model.save_pretrained(tmp_path / "source", **options)
    through_ranks("qwen3", tmp_path / "source", tmp_path / "output", ["1x1+2x1"])
    from safetensors.torch import load_file

    found = load_file(tmp_path / "output" / "model.safetensors")
    wanted = model.state_dict()
    assert {name: tensor.dtype for name, tensor in found.items()} == dict.fromkeys(
        wanted, torch.float32
    )
    assert all(torch.equal(found[name], wanted[name].float()) for name in wanted)


def test_routers_and_biases_of_deepseek_are_fp32_in_a_folder_of_bf16(tmp_path):
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    source, output = tmp_path / "source", tmp_path / "output"
    hugging_face.save("deepseek_v3", source)
    model, config = hugging_face.shape_of(source), json.loads((source / "config.json").read_text())
    held = open_weights(source, model, FAMILIES["deepseek_v3"])
    output.mkdir()
    write_folder(output, folder_files(Wanted(model, config, None, torch.bfloat16), held), set())
    found = load_file(output / "model.safetensors")
    kept = {name for name, tensor in found.items() if tensor.dtype == torch.float32}
    assert kept == {name for name in found if ".mlp.gate." in name}
    assert open_weights(output, model, FAMILIES["deepseek_v3"]).dtypes == (torch.bfloat16,)
    wanted, loaded = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).state_dict()
        for folder in (source, output)
    )
    assert all(torch.equal(loaded[name], tensor) for name, tensor in wanted.items())
