"""The example of a model of one's own trains under two plans in one job as in plain torch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from planner.model.config import model_of_config
from tests.distributed.pods import Pods, place, template
from worker.contract import TrainingSpec
from worker.model.describe import describe

pytestmark = [pytest.mark.slow, pytest.mark.system]
ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs" / "examples" / "own_model"
BATCH, LENGTH, STEPS_EACH = 8, 16, 4
TOLERANCE = 1e-5  # as in test_random_plans
BEFORE = place((template("2x3+1x1", 1, 5), template("1x4", 3, 1)), [("a", g) for g in range(4)])
AFTER = place((template("1x1+2x3", 2, 4),), [("a", g) for g in (2, 0, 3)])


def plain(weights, tokens, labels, blocks):
    """The loss, written apart from the example, on whole tensors."""
    import torch

    def rms(x, weight):
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight

    x = weights["0.weight"][tokens]
    for layer in range(1, blocks + 1):
        own = {name.split(".")[1]: w for name, w in weights.items() if name.startswith(f"{layer}.")}
        h = rms(x, own["norm"])
        mixed = torch.nn.functional.conv1d(
            torch.nn.functional.pad((h @ own["into"].T).transpose(1, 2), (3, 0)),
            own["kernel"].flip(1).unsqueeze(1),
            groups=len(own["kernel"]),
        ).transpose(1, 2)
        gate = h @ own["gate"].T
        x = x + (mixed * gate * torch.sigmoid(gate)) @ own["back"].T
    logits = rms(x, weights[f"{blocks + 1}.norm"]) @ weights[f"{blocks + 1}.weight"].T
    total = logits.logsumexp(-1)
    entropy = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    return entropy + 1e-2 * total.square().mean()


def losses_of(spec, model, steps):
    import torch

    from planner.model.arithmetic import INITIAL_DEVIATION
    from planner.model.tensors import model_tensors
    from worker.data.batches import micro_batches
    from worker.data.dataset import Dataset
    from worker.model.initial_weights import initial_rows

    weights = {
        tensor.name: initial_rows(
            spec.seed, INITIAL_DEVIATION, tensor, 0, tensor.rows
        ).requires_grad_()
        for tensor in model_tensors(model)
    }
    adam = torch.optim.Adam(
        weights.values(), lr=spec.learning_rate, betas=spec.betas, eps=spec.epsilon
    )
    dataset, found = Dataset(spec.data, LENGTH, model.vocab), []
    for step in range(steps):
        (batch,) = micro_batches(dataset, spec.seed, step, BATCH, 0, 1, BATCH)
        loss = plain(weights, batch.tokens, batch.labels, model.layers)
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), spec.gradient_clip)
        adam.step()
        found.append(loss.item())
    return found


def test_the_example_trains_under_two_plans_as_in_plain_torch(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = os.pathsep.join([str(EXAMPLE), str(ROOT)])
    monkeypatch.setenv("PYTHONPATH", path)
    model = model_of_config(describe("mixer:model"), "mixer")
    spec = TrainingSpec(
        model=model.name,
        shape=model.to_json(),
        data=str(corpus),
        global_batch=BATCH,
        sequence_length=LENGTH,
        steps=10_000,
        learning_rate=3e-4,
        warmup_steps=0,
        verify="Full",
    )
    pods = Pods(tmp_path, environment={"PYTHONPATH": path})
    try:
        pods.start("a", gpus=4)
        pods.change(pods.directive(1, BEFORE, spec, "a", reason="start"))
        pods.pods["a"].wait(lambda report: any(r.step >= STEPS_EACH for r in report.ranks))
        spots = {(placed.node, gpu) for placed in BEFORE.placement for gpu in placed.gpus}
        change = pods.directive(
            2,
            AFTER,
            spec,
            "a",
            reason="drain",
            holds=dict.fromkeys(spots, 1),
            layouts={1: BEFORE},
        )
        pods.change(change)
        begun = max(rank.step for rank in pods.ranks("a").values())
        pods.pods["a"].wait(lambda r: any(one.step >= begun + STEPS_EACH for one in r.ranks))
        report = pods.pods["a"].report()
    finally:
        pods.close()
    steps = {step.step: step for step in report.steps}
    assert {step.epoch for step in steps.values()} == {1, 2}
    expected = losses_of(spec, model, len(steps))
    assert max(abs(steps[i].loss - loss) for i, loss in enumerate(expected)) <= TOLERANCE
