"""hugging_face/reading.py: what does not fit is named before a number is read."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from planner.model.shape import ModelShape
from planner.model.tensors import model_tensors
from tests.families import MIXTURES
from tests.refusals import WORDS, refused
from worker.errors import InvalidWeights
from worker.weights.hugging_face.families import FAMILIES
from worker.weights.hugging_face.reading import INDEX, open_weights
from worker.weights.hugging_face.tensors import stored_tensors

MODEL = ModelShape(name="small", layers=2, hidden=16, heads=4, kv_heads=2, ffn=32, vocab=200)
LLAMA = FAMILIES["llama"]


def weights(model=MODEL, family=LLAMA):
    return {
        tensor.name: torch.arange(tensor.numel, dtype=torch.float32).reshape(tensor.shape)
        for tensor in stored_tensors(model, family)
    }


def save(folder, tensors):
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    return folder


def opened(folder, model=MODEL, family=LLAMA):
    return open_weights(folder, model, family)


def refusal(code, field, folder, model=MODEL, family=LLAMA):
    """The sentence of a refusal with this code, about this tensor or file."""
    with refused(InvalidWeights, code, field) as caught:
        opened(folder, model, family)
    sentence = str(caught.value)
    assert len(sentence.split()) <= WORDS, sentence
    return sentence.replace(str(folder), "FOLDER")


def test_any_rows_of_any_tensor_are_those_of_the_file_and_padded_rows_are_zero(tmp_path):
    held = weights()
    folder = opened(save(tmp_path, held))
    for tensor in model_tensors(MODEL):
        whole = folder.first_rows(tensor, 0, tensor.rows)
        assert whole.shape == tensor.shape
        half = folder.first_rows(tensor, tensor.rows // 2, tensor.rows)
        dim, rows = tensor.row_dim, tensor.rows
        assert torch.equal(half, whole.narrow(dim, rows // 2, rows - rows // 2))
    (embedding, *_, head) = model_tensors(MODEL)
    for tensor, name in ((embedding, "model.embed_tokens.weight"), (head, "lm_head.weight")):
        whole = folder.first_rows(tensor, 0, 256)
        assert torch.equal(whole[:200], held[name])
        assert not whole[200:].any()
        assert not folder.first_rows(tensor, 224, 256).any()


def test_what_is_read_is_memory_of_its_own(tmp_path):
    folder = opened(save(tmp_path, weights()))
    tensor = model_tensors(MODEL)[1]
    folder.first_rows(tensor, 0, tensor.rows).fill_(7.0)
    assert not (folder.first_rows(tensor, 0, tensor.rows) == 7.0).all()


def test_missing_and_left_over_names_are_one_sentence(tmp_path):
    held = weights()
    for name in ("model.norm.weight", "lm_head.weight"):
        del held[name]
    held |= {f"model.layers.{block}.mlp.w": torch.zeros(1) for block in range(5)}
    said = refusal("Mismatch", "model.norm.weight", save(tmp_path, held))
    assert "lacks 2 tensors (model.norm.weight and 1 more) of model 'small'" in said
    assert "holds 5 tensors (model.layers.0.mlp.w and 4 more) not of it" in said


def test_a_name_that_the_model_lacks_is_the_field_where_none_is_missing(tmp_path):
    held = weights() | {"extra": torch.zeros(1)}
    refusal("Mismatch", "extra", save(tmp_path, held))


def test_a_wrong_shape_is_named(tmp_path):
    held = weights()
    held["model.norm.weight"] = torch.zeros(17)
    said = refusal("Mismatch", "model.norm.weight", save(tmp_path, held))
    assert "has shape [17], the model 'small' wants [16]" in said


def test_numbers_that_are_no_floats_are_refused(tmp_path):
    held = weights()
    held["model.norm.weight"] = torch.zeros(16, dtype=torch.int8)
    refusal("Unsupported", "model.norm.weight", save(tmp_path, held))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-2.bin", "x.pt"])
def test_pickled_weights_are_refused_with_how_to_convert_them(tmp_path, name):
    (tmp_path / name).touch()
    sentence = refusal("Unsupported", name, tmp_path)
    assert sentence.startswith(f"weights folder FOLDER holds {name}, which is pickled")
    assert "save_pretrained('FOLDER')" in sentence


def test_a_folder_without_weights_or_none_at_all_is_refused(tmp_path):
    refusal("Missing", "model.safetensors", tmp_path)
    refusal("Missing", "folder", tmp_path / "none")


def test_a_damaged_file_is_refused(tmp_path):
    save(tmp_path, weights())
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    refusal("Unreadable", "model.safetensors", tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", "{x", '{"weight_map": 3}', "[" * 100_000])
def test_a_damaged_index_is_refused(tmp_path, content):
    (tmp_path / INDEX).write_text(content)
    refusal("Unreadable", INDEX, tmp_path)


@pytest.mark.parametrize("file", ["../model.safetensors", "model.bin"])
def test_an_index_names_safetensors_files_of_its_folder_only(tmp_path, file):
    content = {"weight_map": {"lm_head.weight": file}}
    (tmp_path / INDEX).write_text(json.dumps(content))
    assert repr(file) in refusal("Malformed", INDEX, tmp_path)


def test_an_index_that_promises_too_much_is_refused(tmp_path):
    held = weights()
    index = {"weight_map": dict.fromkeys(held, "model.safetensors")}
    del held["model.norm.weight"]
    save(tmp_path, held)
    (tmp_path / INDEX).write_text(json.dumps(index))
    refusal("Damaged", "model.norm.weight", tmp_path)


def test_files_of_the_bare_model_and_masks_of_old_files_are_read(tmp_path):
    model = ModelShape(
        name="gpt", layers=1, hidden=16, heads=4, kv_heads=4, ffn=32, vocab=200, gated=False,
        rotary=False, max_positions=32, tied_head=True, bias=True, qkv_bias=True,
    )  # fmt: skip
    held = weights(model, FAMILIES["gpt2"])
    bare = {name.removeprefix("transformer."): tensor for name, tensor in held.items()}
    bare |= {"h.0.attn.bias": torch.zeros(1, 1, 4, 4), "h.0.attn.masked_bias": torch.zeros(1)}
    folder = opened(save(tmp_path, bare), model, FAMILIES["gpt2"])
    tensors = {tensor.name: tensor for tensor in model_tensors(model)}
    fused = held["transformer.h.0.attn.c_attn.weight"]  # [in, queries, keys and values]
    assert torch.equal(folder.first_rows(tensors["1.k"], 4, 12), fused[:, 20:28].T)
    bias = held["transformer.h.0.attn.c_attn.bias"]
    assert torch.equal(folder.first_rows(tensors["1.v_bias"], 0, 16), bias[32:])


def test_a_tied_head_reads_the_embedding_and_a_second_copy_is_left_alone(tmp_path):
    model = ModelShape(
        name="tied", layers=1, hidden=16, heads=4, kv_heads=4, ffn=32, vocab=200, tied_head=True
    )
    held = weights(model)
    assert "lm_head.weight" not in held
    folder = opened(save(tmp_path, held | {"lm_head.weight": torch.zeros(200, 16)}), model)
    found = folder.first_rows(model_tensors(model)[0], 0, 256)
    assert torch.equal(found[:200], held["model.embed_tokens.weight"])


V3 = replace(MIXTURES["deepseek-v3"], name="small")
DEEPSEEK = FAMILIES["deepseek_v3"]
BEHIND = "model.layers.4.mlp.experts.0.up_proj.weight"  # the model has blocks 0 to 3


def test_blocks_behind_the_last_one_are_left_out_and_named(tmp_path):
    held = weights(V3, DEEPSEEK) | {BEHIND: torch.zeros(2, 2)}
    folder = opened(save(tmp_path, held), V3, DEEPSEEK)
    assert folder.left_out == (BEHIND,)
    assert folder.fault is None
    said = refusal("Mismatch", BEHIND, tmp_path, V3, FAMILIES["deepseek_v2"])
    assert f"holds 1 tensor ({BEHIND})" in said


def test_an_expert_that_is_missing_is_one_sentence(tmp_path):
    held = weights(V3, DEEPSEEK)
    name = "model.layers.3.mlp.experts.5.down_proj.weight"
    del held[name]
    said = refusal("Missing", name, save(tmp_path, held), V3, DEEPSEEK)
    assert f"lacks 1 tensor ({name})" in said


def fused(held):
    """The same with the experts of a block in one tensor for all."""
    found = {name: tensor for name, tensor in held.items() if ".experts." not in name}
    for block in (2, 3):
        before = f"model.layers.{block}.mlp.experts."
        gates, ups, downs = (
            torch.stack([held[f"{before}{e}.{name}.weight"] for e in range(V3.experts.count)])
            for name in ("gate_proj", "up_proj", "down_proj")
        )
        found |= {f"{before}gate_up_proj": torch.cat([gates, ups], 1), f"{before}down_proj": downs}
    return found


GATE_UP = "model.layers.2.mlp.experts.gate_up_proj"


def test_experts_in_one_tensor_are_those_of_the_files_with_one_for_each(tmp_path):
    held = weights(V3, DEEPSEEK)
    one, other = save(tmp_path / "one", held), save(tmp_path / "other", fused(held))
    plain, stacked = opened(one, V3, DEEPSEEK), opened(other, V3, DEEPSEEK)
    assert stacked.not_finite() is None
    for tensor in model_tensors(V3):
        half = tensor.rows // 2
        wanted = plain.first_rows(tensor, half, tensor.rows, range(1, 3))
        assert torch.equal(stacked.first_rows(tensor, half, tensor.rows, range(1, 3)), wanted)


def test_a_number_in_a_tensor_of_all_experts_that_is_not_finite_is_named(tmp_path):
    held = fused(weights(V3, DEEPSEEK))
    held[GATE_UP][-1, -1, -1] = float("nan")
    fault = opened(save(tmp_path, held), V3, DEEPSEEK).not_finite()
    assert fault is not None
    assert (fault.code, fault.field) == ("OutOfRange", GATE_UP)


def test_a_tensor_of_all_experts_is_whole_and_the_only_one(tmp_path):
    held = fused(weights(V3, DEEPSEEK))
    few = {**held, GATE_UP: held[GATE_UP][:-1].contiguous()}
    refusal("Mismatch", GATE_UP, save(tmp_path / "few", few), V3, DEEPSEEK)
    lacking = {name: tensor for name, tensor in held.items() if name != GATE_UP}
    one = "model.layers.2.mlp.experts.0.{}_proj.weight"
    said = refusal("Missing", one.format("gate"), save(tmp_path / "lacking", lacking), V3, DEEPSEEK)
    assert f"lacks 16 tensors ({one.format('gate')} and 15 more)" in said
    twice = {**held, one.format("up"): torch.zeros(24, 32)}
    refusal("Mismatch", one.format("gate"), save(tmp_path / "twice", twice), V3, DEEPSEEK)


@pytest.mark.parametrize("block", [3, 4])
def test_weights_in_fp8_are_refused_with_their_conversion(tmp_path, block):
    name = f"model.layers.{block}.self_attn.o_proj.weight"
    held = weights(V3, DEEPSEEK) | {name: torch.zeros(32, 32, dtype=torch.float8_e4m3fn)}
    scale = f"{name}_scale_inv"
    folder = save(tmp_path, held | {scale: torch.ones(1, 1)})
    assert "convert it to bf16" in refusal("Unsupported", scale, folder, V3, DEEPSEEK)
