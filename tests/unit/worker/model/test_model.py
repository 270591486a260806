"""worker/model/model.py: layer by layer, and cut by TP, it is the model of the oracle."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from planner.model.arithmetic import Arithmetic, Rotary
from planner.model.shape import ModelShape
from planner.model.tensors import model_tensors
from planner.plans.ranks import RankMap
from tests.families import FAMILIES, MIXTURES
from tests.unit.worker.changes import plan, shards_of
from tests.unit.worker.model.computing import (
    ALONE,
    WHOLE,
    batch,
    layers_of,
    named,
    oracle,
    run,
    weights_of,
)
from tests.unit.worker.ranks import run_ranks
from worker.control.activity import Activity
from worker.device.device import CPU
from worker.model.forward_context import Documents
from worker.model.loss import vocabulary_loss
from worker.model.parallel import TensorParallel
from worker.model.rotary import rotate
from worker.world.world import World, rank_sets

GROUPED = ModelShape(name="grouped", layers=2, hidden=16, heads=4, kv_heads=2, ffn=32, vocab=64)
EQUAL = ModelShape(name="equal", layers=2, hidden=16, heads=4, kv_heads=4, ffn=32, vocab=64)
MODELS = [EQUAL, GROUPED, *FAMILIES.values(), *MIXTURES.values()]
ROWS = [(5, 7), (1, 3, 8)]  # documents of the two samples
CASES = {"rows": WHOLE, "documents": replace(WHOLE, documents=Documents.of(ROWS))}
WITH = pytest.mark.parametrize("case", CASES)


def oracle_of(model, case):
    return oracle(model, ROWS if case == "documents" else None)


@WITH
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_one_rank_computes_the_oracles_loss_and_gradients(model, case):
    layers = layers_of(model, ALONE, weights_of(model), CASES[case])
    tokens, labels = batch(model)
    loss = vocabulary_loss(ALONE)(run(layers, tokens), labels)
    loss.backward()
    expected, gradients = oracle_of(model, case)
    assert loss.item() == pytest.approx(expected, abs=1e-5)
    found = named(layers)
    assert found.keys() == gradients.keys()
    for name, parameter in found.items():
        assert torch.allclose(parameter.grad, gradients[name], atol=1e-5, rtol=1e-4), name


def test_rows_that_no_token_has_are_never_trained():
    model = FAMILIES["qwen2"]
    layers = layers_of(model, ALONE, weights_of(model))
    tokens, labels = batch(model)
    vocabulary_loss(ALONE)(run(layers, tokens), labels).backward()
    gradient = named(layers)["0.weight"].grad
    assert not gradient[model.vocab :].any()
    assert gradient[: model.vocab].any(dim=1).all()


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_row_of_the_padding_token_learns_from_the_head_alone(is_tied):
    model = replace(GROUPED, tied_head=is_tied)
    (tokens, labels), gradients = batch(model), {}
    padding = int(tokens[0, 0])
    for token in (None, padding):
        asked = replace(model, arithmetic=Arithmetic(padding_token=token))
        layers = layers_of(asked, ALONE, weights_of(asked))
        vocabulary_loss(ALONE)(run(layers, tokens), labels).backward()
        gradients[token] = named(layers)["0.weight"].grad
    others = [row for row in range(model.vocab) if row != padding]
    assert torch.equal(gradients[None][others], gradients[padding][others])
    assert gradients[None][padding].any()
    assert gradients[padding][padding].any().item() == is_tied


def test_a_tied_head_is_the_embeddings_very_parameter():
    layers = layers_of(FAMILIES["gpt2"], ALONE, weights_of(FAMILIES["gpt2"]))
    assert layers[0].weight is layers[-1].weight


def test_a_layer_owns_its_canonical_tensors():
    layers = layers_of(GROUPED, ALONE, weights_of(GROUPED))
    assert list(named(layers)) == [tensor.name for tensor in model_tensors(GROUPED)]


def test_the_sum_over_a_group_of_one_is_the_tensor_itself():
    tensor = torch.tensor([3.0])
    ALONE.all_reduce_(tensor)
    assert tensor.item() == 3.0


def test_a_group_of_a_world_that_broke_is_an_error():
    world = World(HashStore(), 1, 0, 1, ((0,),), Activity(), device=CPU)
    tp = TensorParallel(1, 0, world.groups[(0,)])
    world.leave(wait=True)
    with pytest.raises(ConnectionError, match="the world of this epoch is gone"):
        tp.all_reduce_(torch.zeros(1))


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 6))
def test_attention_sees_only_how_far_apart_two_tokens_are(one, other, both):
    generator = torch.Generator().manual_seed(7)
    q, k = (torch.randn(8, generator=generator) for _ in range(2))

    def product(i, j):
        places = torch.zeros(1, 1, 20, 8)
        places[0, 0, i], moved = q, places.clone()
        moved[0, 0, j] = k
        return (rotate(places, Rotary())[0, 0, i] @ rotate(moved, Rotary())[0, 0, j]).item()

    if one != other:
        assert product(one, other) == pytest.approx(product(one + both, other + both), abs=1e-4)


def claims(rank, store):
    """Loss and gradients of one rank of a TP group of two, of all models; runs on two ranks."""
    torch.set_num_threads(1)
    trained = plan("2x2")
    seat = RankMap.of(trained).seats[rank]
    world = World(store, 1, rank, 2, rank_sets(GROUPED, trained), Activity(), device=CPU)
    tp = TensorParallel(2, rank, world.groups[seat.tp_ranks])
    found = {}
    for model, case in itertools.product(MODELS, CASES):
        seat = RankMap.of(plan(f"2x{model.layers}")).seats[rank]
        whole = {name: (weight,) for name, weight in weights_of(model).items()}
        shards = {name: parts[0] for name, parts in shards_of(seat, whole, model).items()}
        layers = layers_of(model, tp, shards, CASES[case])
        tokens, labels = batch(model)
        loss = vocabulary_loss(tp)(run(layers, tokens), labels)
        loss.backward()
        gradients = {name: p.grad.tolist() for name, p in named(layers).items()}
        found[f"{model.name} {case}"] = loss.item(), gradients
    world.leave(wait=True)
    return found


@pytest.mark.slow
def test_two_ranks_of_a_tp_group_compute_the_oracles_loss_and_their_shard_of_its_gradients():
    found = run_ranks("tests.unit.worker.model.test_model:claims", 2)
    for model, case in itertools.product(MODELS, CASES):
        expected, gradients = oracle_of(model, case)
        whole = {name: (gradient,) for name, gradient in gradients.items()}
        for seat, of_models in zip(RankMap.of(plan(f"2x{model.layers}")).seats, found, strict=True):
            loss, mine = of_models[f"{model.name} {case}"]
            assert loss == pytest.approx(expected, abs=1e-5)
            shards = shards_of(seat, whole, model)
            assert mine.keys() == shards.keys()
            for name, gradient in mine.items():
                shard = shards[name][0]
                assert torch.allclose(torch.tensor(gradient), shard, atol=1e-5, rtol=1e-4), name


@pytest.mark.slow
def test_no_rank_imports_torchs_compiler_to_compute_again():
    """It takes 2 s of a core, in the first step after a change."""
    code = (
        "import sys, torch; from worker.model.recompute import computed_again; "
        "weight = torch.ones(3, requires_grad=True); "
        "computed_again(lambda x: (x * weight).relu() ** 2, torch.ones(3)).sum().backward(); "
        "assert weight.grad.tolist() == [2.0] * 3; "
        "assert not {'torch._dynamo', 'triton'} & set(sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr


@WITH
@pytest.mark.parametrize("how", ["selective", "full"])
@pytest.mark.parametrize("model", [EQUAL, GROUPED, FAMILIES["gpt2"]], ids=lambda model: model.name)
def test_what_is_computed_again_has_the_same_bits_and_keeps_less(model, how, case):
    found = {}
    for recompute in ("none", how):
        layers = layers_of(model, ALONE, weights_of(model), CASES[case])
        for layer in layers:
            layer.recompute = recompute
        tokens, labels = batch(model)
        kept = {}

        def pack(tensor, kept=kept):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = vocabulary_loss(ALONE)(run(layers, tokens), labels)
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in named(layers).items()}
        found[recompute] = (loss.item(), gradients, sum(kept.values()))
    (loss, gradients, most), (again, same, less) = found["none"], found[how]
    assert loss == again
    assert all(torch.equal(gradients[name], same[name]) for name in gradients)
    if how == "selective" and model.arithmetic.attention_dropout:
        assert less == most, "of attention with dropout nothing is kept anyway"
    else:
        assert less < most
