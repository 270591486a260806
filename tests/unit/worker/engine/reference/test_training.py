"""reference/training.py: an oracle that learns, and says the same whenever it is asked."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from planner.model.arithmetic import INITIAL_DEVIATION
from planner.model.shape import ModelShape
from planner.model.tensors import model_tensors
from worker.contract import TrainingSpec
from worker.data.making.prepare import prepare
from worker.engine.reference.forward import forward
from worker.engine.reference.training import train, training
from worker.model.initial_weights import initial_rows

MODEL = ModelShape(name="small", layers=1, hidden=16, heads=4, kv_heads=2, ffn=32, vocab=256)


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("reference") / "text"
    prepare([Path(json.__file__)], prefix)
    return TrainingSpec(
        model="small",
        data=str(prefix),
        global_batch=4,
        sequence_length=16,
        steps=1,
        learning_rate=1e-2,
        warmup_steps=5,
    )


def initial(seed=1):
    return {
        t.name: initial_rows(seed, INITIAL_DEVIATION, t, 0, t.shape[t.dim or 0])
        for t in model_tensors(MODEL)
    }


@pytest.mark.slow  # Adam imports the compiler stack
def test_the_loss_falls_from_that_of_a_guess(spec):
    losses, _ = train(spec, MODEL, 60)
    assert losses[0] == pytest.approx(torch.tensor(256.0).log().item(), abs=0.05)
    assert sum(losses[-5:]) / 5 < losses[0] - 1.5


@pytest.mark.slow  # Adam imports the compiler stack
def test_the_same_seed_trains_the_same_bits_and_another_does_not(spec):
    (losses, weights), (again, same) = train(spec, MODEL, 4), train(spec, MODEL, 4)
    assert losses == again
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    assert train(spec.model_copy(update={"seed": 2}), MODEL, 4)[0] != losses


@pytest.mark.slow  # Adam imports the compiler stack
def test_a_longer_run_only_extends_the_curve(spec):
    told = []
    losses, _ = train(spec, MODEL, 5, lambda step, loss: told.append((step, loss)))
    assert told == list(enumerate(losses))
    steps = itertools.islice(training(spec, MODEL), 3)
    assert [loss for loss, _ in steps] == losses[:3]


@pytest.mark.slow  # Adam imports the compiler stack
def test_one_step_changes_every_weight_by_at_most_the_learning_rate(spec):
    """The first step of Adam moves each number by the rate; warm-up makes that a fifth."""
    _, weights = train(spec, MODEL, 1)
    before = initial()
    moved = {name: (weights[name] - before[name]).abs() for name in before}
    assert all(change.max() > 0 for change in moved.values())
    assert max(change.max() for change in moved.values()) <= 1.001 * spec.learning_rate / 5


def test_no_token_sees_what_comes_after_it():
    tokens = torch.arange(12).reshape(1, 12)
    changed = tokens.clone()
    changed[0, 7:] = 99
    first, second = (forward(MODEL, initial(), t) for t in (tokens, changed))
    assert torch.allclose(first[:, :7], second[:, :7], atol=1e-6)
    assert not torch.allclose(first[:, 7:], second[:, 7:])


def test_the_order_of_tokens_matters():
    """Without rotary positions the last token would see the same set in either order."""
    generator = torch.Generator().manual_seed(3)
    weights = {name: torch.randn(w.shape, generator=generator) for name, w in initial().items()}
    one, other = (
        forward(MODEL, weights, torch.tensor([row]))[0, -1] for row in ([5, 9, 7], [9, 5, 7])
    )
    assert not torch.allclose(one, other, atol=1e-3)
