"""heddle/convert/experts: mixtures of experts in Megatron's arguments."""

from __future__ import annotations

import pytest
import torch

from heddle.convert.experts import with_experts
from heddle.convert.words import read_words
from heddle_operator.apis.errors import InvalidArguments
from planner.model.config import model_of_config
from tests.refusals import refused
from tests.unit.heddle.convert.test_megatron import GPT2, LLAMA, turned
from worker.model.experts.routing import auxiliary_loss, route

EXPERTS = "--num-experts 4 --moe-ffn-hidden-size 48 "
QWEN3 = LLAMA + "--qk-layernorm " + EXPERTS


def test_experts_are_mixtrals():
    found = turned(LLAMA + EXPERTS).config
    assert found["model_type"] == "mixtral"
    experts = model_of_config(found, "mine").experts
    assert (experts.count, experts.per_token, experts.ffn) == (4, 2, 48)
    assert experts.routing.renormalise
    assert not experts.dense_blocks
    assert not experts.auxiliary


def test_with_norms_of_q_and_k_they_are_qwen3s():
    arguments = "--moe-layer-freq ([0]*1+[1]*1) --moe-router-topk 3 --moe-router-pre-softmax"
    found = turned(QWEN3 + arguments).config
    experts = model_of_config(found, "mine").experts
    assert (experts.per_token, experts.ffn, experts.dense_blocks) == (3, 48, 1)
    assert not experts.routing.renormalise
    assert turned(QWEN3).config["norm_topk_prob"]


def test_experts_have_the_width_of_the_dense_block_where_none_is_said():
    assert turned(LLAMA + "--num-experts 4").config["intermediate_size"] == 128


def test_the_loss_of_each_sample_counts_as_much_as_megatrons():
    said = "--moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 0.03"
    experts = model_of_config(turned(QWEN3 + "--moe-router-topk 3 " + said).config, "mine").experts
    samples, length, blocks = 2, 16, 2
    generator = torch.Generator().manual_seed(1)
    megatron, ours = 0.0, 0.0
    for _ in range(blocks):
        logits = torch.randn(samples * length, experts.count, generator=generator)
        routes = route(logits, experts.routing, experts.per_token)
        ours += float(auxiliary_loss(routes, samples)) * experts.auxiliary / blocks / samples
        for sample in range(samples):
            rows = slice(sample * length, (sample + 1) * length)
            counts = torch.bincount(routes.chosen[rows].flatten(), minlength=experts.count)
            sums = routes.scores[rows].sum(0)
            share = experts.count * 0.03 / (length * length * experts.per_token)
            megatron += share * float((sums * counts).sum()) / samples
    assert ours == pytest.approx(megatron, rel=1e-5)


def test_without_a_coefficient_the_kind_of_the_loss_does_not_matter():
    for kind in ("aux_loss", "seq_aux_loss", "none"):
        config = turned(LLAMA + EXPERTS + f"--moe-router-load-balancing-type {kind}").config
        assert config["output_router_logits"] is False


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ("--moe-aux-loss-coeff 0.01", "--moe-router-load-balancing-type"),
        ("--moe-router-load-balancing-type sinkhorn", "--moe-router-load-balancing-type"),
        ("--moe-z-loss-coeff 1e-3", "--moe-z-loss-coeff"),
        ("--moe-input-jitter-eps 0.1", "--moe-input-jitter-eps"),
        ("--moe-expert-capacity-factor 1.0", "--moe-expert-capacity-factor"),
        ("--moe-shared-expert-intermediate-size 64", "--moe-shared-expert-intermediate-size"),
        ("--moe-router-score-function sigmoid", "--moe-router-score-function"),
        ("--moe-router-num-groups 2", "--moe-router-num-groups"),
        ("--moe-router-topk-scaling-factor 2.5", "--moe-router-topk-scaling-factor"),
        ("--moe-router-enable-expert-bias", "--moe-router-enable-expert-bias"),
        ("--moe-shared-expert-gate", "--moe-shared-expert-gate"),
        ("--mtp-num-layers 1", "--mtp-num-layers"),
        ("--moe-layer-freq 2", "--moe-layer-freq"),
        ("--moe-layer-freq [1,0]", "--moe-layer-freq"),
        ("--moe-layer-freq [0]*2", "--moe-layer-freq"),
    ],
)
def test_what_would_train_another_model_is_refused(arguments, field):
    with refused(InvalidArguments, "Unsupported", field):
        turned(QWEN3 + arguments)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("--moe-layer-freq [1]*3", "Contradiction"),
        ("--moe-layer-freq exec(x)", "Malformed"),
        ("--moe-layer-freq 0", "Malformed"),
        ("--moe-router-topk many", "Malformed"),
    ],
)
def test_values_that_mean_nothing_are_refused(arguments, code):
    with refused(InvalidArguments, code, arguments.split()[0]):
        turned(QWEN3 + arguments)


@pytest.mark.parametrize(
    "argument", ["--moe-router-pre-softmax", "--moe-layer-freq [0]*1+[1]*1", "--add-qkv-bias"]
)
def test_mixtral_has_none_of_what_is_qwen3s(argument):
    with refused(InvalidArguments, "Unsupported", argument.split()[0]):
        turned(LLAMA + EXPERTS + argument)


def test_gpt2_has_no_experts():
    with refused(InvalidArguments, "Unsupported", "--num-experts"):
        turned(GPT2 + "--num-experts 4")


def test_values_that_change_nothing_are_taken():
    same = "--moe-z-loss-coeff 0 --moe-router-score-function softmax --moe-router-dtype fp32"
    found = turned(QWEN3 + same + " --moe-router-topk-scaling-factor 1.0")
    assert found.config == turned(QWEN3).config


def test_a_model_without_experts_stays_as_it_is():
    assert with_experts(read_words(["--moe-router-topk", "4"]), {"a": 1}) == {"a": 1}
