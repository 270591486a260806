"""Weights of `transformers` give its logits, gradients and loss curve, whatever the plan."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.plans.plan import FilledTemplate, Plan
from planner.plans.ranks import RankMap
from tests.distributed.pods import place, template
from tests.hugging_face import CONFIGS, biases_of, shape_of
from tests.unit.worker.ranks import engine_loaded, run_ranks
from worker.contract import TrainingSpec

# imports transformers and DeepSpeed, forks ranks
pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(700)]
BATCH, LENGTH, STEPS = 4, 16, 12
LOGITS, GRADIENTS = 1e-5, 1e-5  # absolute; of a tensor's largest
LOSSES = 1e-5  # absolute, over all steps
PADDING = ord("e")  # many of the text's tokens
_NO_DROPOUT = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "dropout": 0.0}
_STRETCHED = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "beta_fast": 4,
    "beta_slow": 1,
    "original_max_position_embeddings": 64,
    "mscale": 0.8,
    "mscale_all_dim": 0.8,
}
CHANGES: dict[str, dict[str, Any]] = {
    "gpt2": _NO_DROPOUT,
    "gpt_neo": {"window_size": 5},
    "opt": {**_NO_DROPOUT, "pad_token_id": PADDING},  # tied
    "llama": {
        "rope_parameters": _STRETCHED,
        "attention_bias": True,
        "mlp_bias": True,
        "pad_token_id": PADDING,  # the head is a tensor of its own
    },
    "mistral": {"sliding_window": 6},
    "qwen2": {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    "qwen3": {"pad_token_id": -1},  # torch counts from the end
    "mixtral": {"sliding_window": 9},
    "qwen3_moe": {},  # whose weights of a token's experts do not sum to 1
    "qwen3_moe renormalised": {"norm_topk_prob": True},  # here they do
    "deepseek_v2": {"rope_parameters": _YARN},
    "deepseek_v2 groups": {
        "topk_method": "group_limited_greedy",
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "q_lora_rank": 20,
        "routed_scaling_factor": 4.0,
        "rms_norm_eps": 1e-5,
    },
    "deepseek_v3": {"rope_parameters": {**_YARN, "mscale": 0.5}},
}
MIXTURES = tuple(kind for kind in CHANGES if kind.startswith(("mixtral", "qwen3_moe", "deepseek")))
GPUS = 4
LIMIT_S = 600.0  # of all families; on a busy machine


def tiled(text: str, ep: int, etp: int, micro_batch: int, *counts: int) -> FilledTemplate:
    """A template of one stage whose experts are spread."""
    plain = template(text, micro_batch, *counts)
    return replace(plain, stages=(replace(plain.stages[0], ep=ep, etp=etp),))


PLANS: dict[str, Plan] = {  # TP; a pipeline whose TP degree changes; two templates
    "tp": place((template("2x2", 2, 2),), [("a", 0), ("a", 1)]),
    "pipeline": place((template("1x1+2x1", 1, 4),), [("a", 0), ("a", 1), ("a", 2)]),
    # experts over replicas with unequal micro-batches; each cut over two replicas, spread over two
    "spread": place((tiled("2x2", 2, 1, 1, 3, 1),), [("a", gpu) for gpu in range(4)]),
    "cut": place((tiled("1x2", 2, 2, 1, 1, 1, 1, 1),), [("a", gpu) for gpu in range(4)]),
    "templates": place(
        (template("1x1+1x1", 1, 3), template("2x2", 1, 1)),
        [("a", 0), ("a", 1), ("a", 2), ("a", 3)],
    ),
}


def spec_of(folder: Path, kind: str) -> TrainingSpec:
    return TrainingSpec(
        model=kind,
        config=json.loads((folder / kind / "config.json").read_text()),
        data=str(folder / "text"),
        global_batch=BATCH,
        sequence_length=LENGTH,
        steps=STEPS,
        warmup_steps=5,
        weight_decay=0.1,
        router_bias_rate=0.0,  # which `transformers` does not change
    )


def make(folder: Path, kind: str) -> None:
    """What `transformers` has of one family: weights, logits and gradients of the first batch,
    losses and gradient norms of a training by torch's AdamW."""
    import numpy as np
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    from worker.data.batches import micro_batches
    from worker.data.dataset import Dataset

    torch.manual_seed(3)
    family = kind.split()[0]
    asked = {**CONFIGS[family], **CHANGES[kind], "vocab_size": 260}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **asked)).eval()
    with torch.no_grad():
        for parameter in (*model.parameters(), *biases_of(model)):
            parameter.normal_(std=0.3)
    model.save_pretrained(folder / kind)
    spec = spec_of(folder, kind)
    data = Dataset(spec.data, LENGTH, 260)
    adam = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.dim() > 1]},
            {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
        ],
        betas=spec.betas,
        eps=spec.epsilon,
        weight_decay=spec.weight_decay,
    )
    (last,) = micro_batches(data, spec.seed, STEPS - 1, BATCH, 0, 1, BATCH)
    with torch.no_grad():
        logits = model(last.tokens).logits
    untrained = torch.nn.functional.cross_entropy(logits.flatten(0, 1), last.labels.flatten())
    curve = []
    for step in range(STEPS):
        (batch,) = micro_batches(data, spec.seed, step, BATCH, 0, 1, BATCH)
        logits = model(batch.tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten())
        adam.zero_grad()
        loss.backward()
        if step == 0:
            np.save(folder / kind / "logits.npy", logits.detach().numpy())
            gradients = folder / f"{kind}-gradients"
            gradients.mkdir()
            held = dict(_as_in_files(kind, model))
            save_file(held, gradients / "model.safetensors", metadata={"format": "pt"})
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), spec.gradient_clip)
        for group in adam.param_groups:
            group["lr"] = spec.learning_rate * min(1.0, (step + 1) / spec.warmup_steps)
        adam.step()
        curve.append((loss.item(), norm.item()))
    (folder / kind / "curve.json").write_text(json.dumps([curve, untrained.item()]))


def _as_in_files(kind: str, model: Any) -> Iterator[tuple[str, Any]]:
    """The gradients by the names of files, which have a tensor for each expert.

    Those of biases, which have none, are zeros.
    """
    for name, bias in model.named_buffers():
        if name.endswith("correction_bias"):
            yield name, bias * 0
    for name, parameter in model.named_parameters():
        before, _, last = name.rpartition("experts.")
        if kind == "mixtral":
            before = before.replace(".mlp.", ".block_sparse_moe.")
            name = name.replace(".mlp.", ".block_sparse_moe.")
        names = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(last)
        if not before or names is None:
            yield name, parameter.grad.clone().contiguous()
            continue
        of = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"} if kind == "mixtral" else {}
        for expert, gradient in enumerate(parameter.grad):
            for one, part in zip(names, gradient.chunk(len(names)), strict=True):
                yield f"{before}experts.{expert}.{of.get(one, one)}.weight", part.clone()


def _plans(kind: str) -> list[str]:
    """Names of the plans of a family."""
    return [name for name, plan in PLANS.items() if kind in MIXTURES or not _is_tiled(plan)]


def _is_tiled(plan: Plan) -> bool:
    return any(one.is_tiled for one in plan.templates)


WITH = pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in CHANGES for name in _plans(kind)]
)


def claims(rank, store):
    """{family: {plan: (largest difference of logits, {tensor: difference, largest}, curve)}}."""
    with engine_loaded():
        folder, epoch, found = Path(os.environ["FOLDER"]), 0, {}
        for kind in CHANGES:
            found[kind] = {}
            for name in _plans(kind):
                plan = PLANS[name]
                epoch += 1
                if rank < plan.gpus:
                    found[kind][name] = differences(rank, store, epoch, folder, kind, plan)
        return found


def differences(rank, store, epoch, folder, kind, plan):
    import numpy as np
    import torch
    from torch.nn.modules.module import register_module_forward_hook

    from planner.model.tensors import held_tensors
    from planner.plans.pieces import shard
    from tests.unit.worker.stages import stage_build
    from worker.checkpoint.start_source import FirstWeights
    from worker.control.activity import Activity
    from worker.data.dataset import Dataset
    from worker.device.device import CPU
    from worker.engine.deepspeed import DeepSpeedEngine
    from worker.model.model import Head
    from worker.state.shards import TargetShards
    from worker.weights.hugging_face.reading import open_weights
    from worker.weights.hugging_face.tensors import family_of
    from worker.world.pace import RealPace
    from worker.world.world import World, rank_sets

    torch.set_num_threads(1)
    spec, activity = spec_of(folder, kind), Activity()
    model, family = spec.model_shape(), family_of(spec.config)
    seat = RankMap.of(plan).seats[rank]
    world = World(store, epoch, rank, plan.gpus, rank_sets(model, plan), activity, device=CPU)
    weights = open_weights(folder / kind, model, family)
    target = TargetShards.first(model, seat, FirstWeights(weights.first_rows).fill, activity)
    build = stage_build(model, spec, plan, seat, world, target, activity)
    engine = DeepSpeedEngine(build, Dataset(spec.data, LENGTH, model.vocab), RealPace())
    seen = []
    watch = register_module_forward_hook(
        lambda layer, _, out: seen.append(out.detach()) if isinstance(layer, Head) else None
    )
    first = engine.train_step(None)
    watch.remove()
    expected = torch.from_numpy(np.load(folder / kind / "logits.npy"))
    worst = 0.0
    if seen:
        logits = torch.cat(seen)[: seat.pipeline.samples]  # empty micro-batches come last
        sample = seat.pipeline.first_sample
        columns = slice(seat.slot * logits.shape[-1], (seat.slot + 1) * logits.shape[-1])
        mine = expected[sample : sample + len(logits), :, columns]
        worst = (logits[..., : mine.shape[-1]] - mine).abs().max().item()
    gradients = open_weights(folder / f"{kind}-gradients", model, family)
    compared = {}
    for tensor in held_tensors(model, seat.layers):
        if tensor.is_counted:
            continue
        box, whole = shard(tensor, seat), gradients.first_rows(tensor, 0, tensor.rows)
        experts = range(box.expert_start, box.expert_stop)
        rows = gradients.first_rows(tensor, box.start, box.stop, experts)
        difference = target.buffers.gradients[tensor.name] - rows
        compared[tensor.name] = [difference.abs().max().item(), whole.abs().max().item()]
    results = [first, *(engine.train_step(None) for _ in range(STEPS - 1))]
    curve = [(result.loss, result.gradient_norm) for result in results]
    engine.release()
    world.leave(wait=True)
    return worst, compared, curve


@pytest.fixture(scope="module")
def found():
    from worker.data.making.prepare import prepare

    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        patch.setenv("HF_HUB_OFFLINE", "1")
        prepare([Path(__file__)], folder / "text")
        for kind in CHANGES:
            make(folder, kind)
            assert not shape_of(folder / kind).arithmetic.lacking
        curves = {kind: json.loads((folder / kind / "curve.json").read_text()) for kind in CHANGES}
        patch.setenv("FOLDER", str(folder))
        yield run_ranks("tests.distributed.models.test_transformers:claims", GPUS, LIMIT_S), curves


@WITH
def test_logits_and_gradients_are_those_of_transformers(kind, name, found):
    answers = [answer[kind][name] for answer in found[0] if name in answer[kind]]
    assert len(answers) == PLANS[name].gpus
    for worst, compared, _ in answers:
        assert worst <= LOGITS
        for tensor, (difference, largest) in compared.items():
            if tensor.endswith("k_bias") and kind in ("gpt2", "opt"):
                # It shifts all scores of a query alike: its gradient is 0, up to rounding.
                largest = compared[tensor.replace("k_bias", "q_bias")][1]
            assert difference <= GRADIENTS * largest, tensor


@WITH
def test_the_loss_curve_is_that_of_a_plain_loop_with_transformers(kind, name, found):
    answers, curves = found
    expected, untrained = curves[kind]
    assert untrained - expected[-1][0] > 100 * LOSSES  # it learns
    for curve in (answer[kind][name][2] for answer in answers if name in answer[kind]):
        for (loss, norm), (plain_loss, plain_norm) in zip(curve, expected, strict=True):
            assert loss == pytest.approx(plain_loss, abs=LOSSES)
            assert norm == pytest.approx(plain_norm, rel=GRADIENTS)
