"""Measured layers: every kind has times and bytes, shards are smaller, others are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.errors import InvalidWorkload
from planner.model.catalogue import MODELS, find_model
from tests.families import MIXTURES
from tests.refusals import refused
from worker.device.device import CPU
from worker.profile.bench import Bench
from worker.profile.layers import check_model, measure_layer, parts_of
from worker.profile.rows import Part

TINY, MIXTRAL = find_model("tiny-llama"), find_model("tiny-mixtral")
BENCH = Bench(CPU, 1)


def measured(kind: str, tp: int = 1, b: int = 1, precision: str = "fp32", model=TINY):
    return measure_layer(BENCH, model, Part(kind), tp, b, 32, precision, lambda size: size / 1e9)


@pytest.mark.parametrize("kind", ["embedding", "block", "head"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_kind_of_layer_has_times_and_bytes(kind, precision):
    cost = measured(kind, precision=precision)
    assert cost.forward_s > 0
    assert cost.activation_bytes > 0
    assert cost.tp_communication_s == 0
    assert (cost.attention_s > 0) == (kind == "block")


@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v3"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_so_has_every_kind_of_latent_attention_and_of_its_mixtures(name, precision):
    model = MIXTURES[name]
    for kind in ("block", "moe_block"):
        whole, cut = (measured(kind, tp, 1, precision, model) for tp in (1, 2))
        assert whole.forward_s > 0
        assert whole.attention_s > 0
        assert whole.activation_bytes > cut.activation_bytes


def test_what_is_kept_grows_with_the_micro_batch_and_shrinks_with_tp():
    one, two, sharded = measured("block"), measured("block", b=2), measured("block", tp=2)
    assert 1.8 * one.activation_bytes < two.activation_bytes < 2.1 * one.activation_bytes
    assert sharded.activation_bytes < one.activation_bytes
    assert sharded.tp_communication_s == pytest.approx(4 * 32 * 64 * 4 / 1e9)


def test_layers_that_the_worker_does_not_have_are_refused():
    with refused(InvalidWorkload, "Unsupported"):
        check_model(replace(TINY, arithmetic=replace(TINY.arithmetic, lacking=("the key 'x'",))))
    for model in MODELS.values():
        check_model(model)


def test_every_division_of_experts_is_measured_that_leaves_none_cut_unevenly():
    found = parts_of(MIXTRAL, tp=2, ways=4)
    assert [part for part in found if not part.etp] == [
        Part("embedding"), Part("moe_block"), Part("head"),
    ]  # fmt: skip
    tilings = {(part.ep, part.etp) for part in found if part.etp}
    assert tilings == {(1, 1), (1, 4), (2, 1), (2, 2), (4, 1)}  # EP 1, ETP 2 is the plain one
    assert [*parts_of(TINY, ways=4)] == [*map(Part, ("embedding", "block", "head"))]


@pytest.mark.parametrize(("tp", "ep", "etp"), [(1, 2, 1), (1, 1, 2), (1, 2, 2), (2, 2, 1)])
def test_a_rank_of_a_tiling_keeps_what_its_peers_send_it(tp, ep, etp):
    """Of equally busy experts a rank gets k T ETP / TP rows, each of the width F / ETP."""
    tokens, experts = 2 * 32, MIXTRAL.experts

    def cost(part):
        return measure_layer(BENCH, MIXTRAL, part, tp, 2, 32, "fp32", lambda size: size / 1e9)

    costs = (cost(Part("moe_block", ep, etp)) for _ in range(5))  # a busy machine hides a pass
    tiled, plain = max(costs, key=lambda one: one.backward_s), cost(Part("moe_block"))
    assert tiled.forward_s > 0
    assert tiled.backward_s > 0
    rows = experts.per_token * tokens * etp // tp
    least = 4 * rows * (MIXTRAL.hidden + 3 * experts.ffn // etp)
    assert least < tiled.activation_bytes < 3 * plain.activation_bytes + 3 * least
    message = 4 * tokens * MIXTRAL.hidden
    assert tiled.tp_communication_s == pytest.approx((tp > 1) * 3 * message / 1e9)
