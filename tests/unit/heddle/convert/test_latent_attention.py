"""heddle/convert/latent_attention: DeepSeek's models in Megatron's arguments."""

from __future__ import annotations

from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heddle_operator.apis.errors import InvalidArguments
from heddle_operator.apis.heddlejob import load_job
from planner.model.config import model_of_config
from planner.model.tensors import layer_tensors
from tests.refusals import refused
from tests.unit.heddle.convert.test_megatron import LLAMA, turned
from tests.unit.planner.model.test_mixtures import V2_LITE, V3
from worker.model.experts.routing import auxiliary_loss, route

USUAL = """
--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear
--untie-embeddings-and-output-weights --hidden-dropout 0 --attention-dropout 0 --qk-layernorm
--seq-length 4096 --max-position-embeddings 163840 --norm-epsilon 1e-6 --rotary-percent 1.0
--rotary-base 10000 --multi-latent-attention --kv-lora-rank 512 --qk-head-dim 128
--qk-pos-emb-head-dim 64 --v-head-dim 128 --rotary-scaling-factor 40
--moe-router-load-balancing-type seq_aux_loss --moe-router-pre-softmax --moe-router-dtype fp32
--moe-grouped-gemm --moe-token-dispatcher-type alltoall --global-batch-size 64 --train-iters 10
--lr 1e-4 --lr-decay-style constant --data-path /d/text --bf16
"""
# Arguments of the scripts that Megatron-LM has for the two models.
OF_V3 = (
    USUAL
    + """
--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128
--kv-channels 128 --vocab-size 129280 --q-lora-rank 1536 --mscale 1.0 --mscale-all-dim 1.0
--num-experts 256 --moe-layer-freq [0]*3+[1]*58 --moe-ffn-hidden-size 2048 --moe-router-topk 8
--moe-router-score-function sigmoid --moe-router-enable-expert-bias
--moe-router-bias-update-rate 1e-3 --moe-router-num-groups 8 --moe-router-group-topk 4
--moe-router-topk-scaling-factor 2.5 --moe-shared-expert-intermediate-size 2048
--moe-aux-loss-coeff 1e-4
"""
)
OF_V2_LITE = (
    USUAL
    + """
--num-layers 27 --hidden-size 2048 --ffn-hidden-size 10944 --num-attention-heads 16
--kv-channels 16 --vocab-size 102400 --mscale 0.707 --mscale-all-dim 0.707
--num-experts 64 --moe-layer-freq ([0]+[1]*26) --moe-ffn-hidden-size 1408 --moe-router-topk 6
--moe-router-score-function softmax --moe-router-topk-scaling-factor 1.0
--moe-shared-expert-intermediate-size 2816 --moe-aux-loss-coeff 1e-3
"""
)


def lacking(text, *said):
    for words in said:
        assert words in text
        text = text.replace(words, "")
    return text


def shape(text):
    return model_of_config(turned(text).config, "mine")


def test_the_script_of_deepseek_v3_gives_the_model_of_its_published_configuration():
    published = {k: v for k, v in V3.items() if k != "quantization_config"}
    assert shape(OF_V3) == model_of_config({**published, "aux_loss_alpha": 1e-4}, "mine")
    assert turned(OF_V3).job["spec"]["training"]["routerBiasRate"] == 1e-3


def test_the_script_of_deepseek_v2_lite_gives_the_model_of_its_published_configuration():
    assert shape(OF_V2_LITE) == model_of_config(V2_LITE, "mine")
    assert "routerBiasRate" not in turned(OF_V2_LITE).job["spec"]["training"]


@pytest.mark.parametrize("text", [OF_V3, OF_V2_LITE], ids=["v3", "v2-lite"])
def test_each_key_that_decides_a_number_is_the_published_one(text):
    found = turned(text).config
    published = V3 if found["model_type"] == "deepseek_v3" else V2_LITE
    same = set(found) & set(published) - {"aux_loss_alpha", "attention_dropout"}
    assert {key: found[key] for key in same} == {key: published[key] for key in same}
    assert {"n_group", "topk_method", "rope_scaling", "first_k_dense_replace"} <= same


def test_the_job_of_a_converted_model_is_one_of_heddle():
    job = turned(OF_V3 + "--moe-router-bias-update-rate 0.01").job
    job["spec"]["model"] = {"name": "deepseek-v3-like"}  # no file is there to be read
    assert load_job(job).training.router_bias_rate == 0.01


def test_a_sigmoid_without_biases_keeps_them_zero():
    text = lacking(OF_V3, "--moe-router-enable-expert-bias")
    assert turned(text).job["spec"]["training"]["routerBiasRate"] == 0.0
    assert shape(text).experts.routing.bias


def test_what_is_not_said_is_megatrons():
    text = lacking(
        OF_V3,
        "--q-lora-rank 1536",
        "--kv-lora-rank 512",
        "--v-head-dim 128",
        "--rotary-scaling-factor 40",
        "--moe-router-topk 8",
        "--moe-router-num-groups 8",
        "--moe-router-group-topk 4",
        "--moe-router-topk-scaling-factor 2.5",
        "--moe-router-bias-update-rate 1e-3",
        "--moe-shared-expert-intermediate-size 2048",
    )
    found = shape(text)
    assert (found.latent.query_rank, found.latent.kv_rank, found.latent.value) == (0, 32, 128)
    assert found.arithmetic.rotary.scaling is None
    experts, routing = found.experts, found.experts.routing
    assert (experts.per_token, experts.shared, routing.groups, routing.scale) == (2, 0, 1, 1.0)
    assert turned(text).job["spec"]["training"]["routerBiasRate"] == 1e-3


def test_all_groups_kept_are_no_groups():
    text = OF_V3.replace("--moe-router-group-topk 4", "--moe-router-group-topk 8")
    assert (shape(text).experts.routing.groups, shape(text).experts.routing.groups_kept) == (1, 1)


def test_a_group_of_deepseek_v2_is_worth_its_best_expert():
    more = "--moe-router-num-groups 8 --moe-router-group-topk 4 --moe-aux-loss-coeff 0"
    routing = shape(OF_V2_LITE + more).experts.routing
    assert (routing.groups, routing.groups_kept, routing.group_score) == (8, 4, "best")


def test_magnitudes_of_yarn_that_are_not_said_are_those_of_no_magnitude():
    text = lacking(OF_V3, "--mscale 1.0 --mscale-all-dim 1.0")
    scaling = shape(text).arithmetic.rotary.scaling
    assert (scaling.magnitude, scaling.score_magnitude, scaling.score_scale) == (0.0, 0.0, 1.0)
    assert scaling.original_positions == 4096
    other = shape(OF_V3 + "--beta-fast 16 --original-max-position-embeddings 8192")
    assert other.arithmetic.rotary.scaling.fast_turns == 16
    assert other.arithmetic.rotary.scaling.original_positions == 8192


def test_the_loss_of_each_sample_is_megatrons_under_any_bias_and_groups():
    experts = shape(OF_V3 + "--moe-aux-loss-coeff 0.03").experts
    samples, length, blocks = 2, 16, 58
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(samples * length, experts.count, generator=generator)
    bias = torch.randn(experts.count, generator=generator)
    routes = route(logits, experts.routing, experts.per_token, bias)
    own = auxiliary_loss(routes, samples, has_bias=True) * experts.auxiliary / samples
    scores = logits.sigmoid() / logits.sigmoid().sum(-1, keepdim=True)
    megatron = 0.0
    for sample in range(samples):
        of_sample = scores[sample * length : (sample + 1) * length]
        best = of_sample.topk(experts.per_token).indices
        counts = torch.bincount(best.flatten(), minlength=experts.count)
        share = experts.count * 0.03 / (length * length * experts.per_token)
        megatron += blocks * share * float((of_sample.sum(0) * counts).sum()) / samples
    assert float(own) == pytest.approx(megatron, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (OF_V3 + "--norm-epsilon 1e-5", ("Unsupported", "--norm-epsilon")),
        (
            OF_V3 + "--group-query-attention --num-query-groups 8",
            ("Unsupported", "--num-query-groups"),
        ),
        (OF_V3 + "--add-qkv-bias", ("Unsupported", "--qk-layernorm")),
        (OF_V3 + "--rotary-interleaved", ("Unsupported", "--rotary-interleaved")),
        (OF_V3 + "--rotary-percent 0.5", ("Unsupported", "--rotary-percent")),
        (OF_V3 + "--rope-type rope", ("Unsupported", "--rope-type")),
        (OF_V3 + "--rope-type linear", ("Unsupported", "--rope-type")),
        (OF_V3 + "--mscale 0.5 --mscale-all-dim 0", ("Unsupported", "--mscale")),
        (OF_V3 + "--mscale 0", ("Unsupported", "--mscale")),
        (OF_V3 + "--rotary-scaling-factor 0.5", ("OutOfRange", "--rotary-scaling-factor")),
        (OF_V3 + "--mtp-num-layers 1", ("Unsupported", "--mtp-num-layers")),
        (OF_V3 + "--moe-shared-expert-gate", ("Unsupported", "--moe-shared-expert-gate")),
        (OF_V3 + "--moe-apply-probs-on-input", ("Unsupported", "--moe-apply-probs-on-input")),
        (
            OF_V3 + "--moe-router-force-load-balancing",
            ("Unsupported", "--moe-router-force-load-balancing"),
        ),
        (OF_V3 + "--moe-aux-loss-coeff 1 --moe-router-load-balancing-type aux_loss",
         ("Unsupported", "--moe-router-load-balancing-type")),
        (OF_V3 + "--moe-layer-freq 2", ("Unsupported", "--moe-layer-freq")),
        (OF_V3 + "--moe-router-group-topk 2", ("Unsupported", "--moe-router-group-topk")),
        (lacking(OF_V3, "--moe-router-group-topk 4"), ("Contradiction", "--moe-router-group-topk")),
        (lacking(OF_V3, "--moe-router-num-groups 8"), ("Contradiction", "--moe-router-num-groups")),
        (OF_V3 + "--moe-shared-expert-intermediate-size 3000",
         ("OutOfRange", "--moe-shared-expert-intermediate-size")),
        (OF_V3 + "--moe-router-score-function sqrtsoftplus",
         ("Unsupported", "--moe-router-score-function")),
        (lacking(OF_V3, "--num-experts 256"), ("Missing", "--num-experts")),
        (lacking(OF_V3, "--qk-layernorm"), ("Missing", "--qk-layernorm")),
        (lacking(OF_V2_LITE, "--moe-router-pre-softmax"), ("Missing", "--moe-router-pre-softmax")),
        (OF_V2_LITE + "--moe-router-enable-expert-bias",
         ("Unsupported", "--moe-router-enable-expert-bias")),
        (OF_V2_LITE + "--moe-router-num-groups 8 --moe-router-group-topk 3",
         ("Unsupported", "--moe-router-group-topk")),
        (OF_V2_LITE + "--moe-router-num-groups 8 --moe-router-group-topk 4",
         ("Unsupported", "--moe-aux-loss-coeff")),
    ],
)  # fmt: skip
def test_what_would_train_another_model_is_refused(text, mistake):
    with refused(InvalidArguments, *mistake):
        turned(text)


@pytest.mark.parametrize(
    "argument",
    [
        *("--q-lora-rank 8", "--kv-lora-rank 8", "--qk-head-dim 8", "--qk-pos-emb-head-dim 8"),
        *("--v-head-dim 8", "--mscale 1", "--mscale-all-dim 1", "--beta-fast 8", "--beta-slow 8"),
        *("--original-max-position-embeddings 8", "--rope-type yarn", "--rotary-scaling-factor 8"),
    ],
)
def test_arguments_of_latent_attention_mean_nothing_without_it(argument):
    with refused(InvalidArguments, "Unsupported", argument.split()[0]):
        turned(LLAMA + argument)


def test_without_stretched_positions_the_kind_of_rope_does_not_matter():
    plain = OF_V3 + "--rotary-scaling-factor 1 --rope-type "
    assert shape(plain + "rope") == shape(plain + "yarn")
    bare = OF_V3 + "--mscale-all-dim 0 --rope-type rope"
    assert shape(bare).arithmetic.rotary.scaling is None


@given(st.data())
def test_a_converted_model_has_as_many_parameters_as_arithmetic_says(data):
    def draw(*values):
        return data.draw(st.sampled_from(values))

    hidden, heads, layers, ffn, width = draw(32, 64), draw(2, 4), draw(1, 3), draw(48, 96), draw(16)
    queries, kept, rope, plain, value = draw(0, 12), draw(8, 20), draw(4, 8), draw(8, 16), draw(6)
    count, shared, dense, is_v3 = draw(8, 16), draw(0, 1, 2), draw(0, 1), draw(True, False)
    dense = min(dense, layers - 1)
    text = f"""
    --swiglu --normalization RMSNorm --use-rotary-position-embeddings --disable-bias-linear
    --untie-embeddings-and-output-weights --hidden-dropout 0 --attention-dropout 0 --qk-layernorm
    --seq-length 32 --norm-epsilon 1e-6 --multi-latent-attention --moe-router-pre-softmax
    --global-batch-size 8 --train-iters 10 --lr 1e-4 --lr-decay-style constant --data-path /d/text
    --num-layers {layers} --hidden-size {hidden} --num-attention-heads {heads} --vocab-size 256
    --ffn-hidden-size {ffn} --moe-ffn-hidden-size {width} --num-experts {count}
    --kv-lora-rank {kept} --qk-head-dim {plain} --qk-pos-emb-head-dim {rope} --v-head-dim {value}
    --moe-layer-freq [0]*{dense}+[1]*{layers - dense}
    --moe-router-score-function {"sigmoid" if is_v3 else "softmax"}
    """
    text += f"--q-lora-rank {queries} " if queries else ""
    text += f"--moe-shared-expert-intermediate-size {shared * width}" if shared else ""
    of_queries = heads * (plain + rope)
    attention = queries * (hidden + 1 + of_queries) if queries else hidden * of_queries
    attention += hidden * (kept + rope) + kept + kept * heads * (plain + value)
    attention += heads * value * hidden + 2 * hidden
    mixture = (count + shared) * 3 * hidden * width + count * (hidden + is_v3)
    blocks = layers * attention + dense * 3 * hidden * ffn + (layers - dense) * mixture
    model = shape(text)
    tensors = [one for layer in range(layers + 2) for one in layer_tensors(model, layer)]
    assert sum(prod(one.shape) for one in tensors) == blocks + 2 * 256 * hidden + hidden
    assert not model.arithmetic.lacking
