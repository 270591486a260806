"""A peer is killed in a step or an evaluation: the survivor reads garbage, and uses none of it.

    case        what the survivor awaits when its peer dies
    activation  the next micro-batch of the stage before
    gradient    that of the stage behind
    partial     a partial result of its TP group
    last        likewise, in the last backward pass, behind which gradients are summed
    evaluation  likewise, in an evaluation

A mutant of the survivor does what NCCL punishes: see `MUTANTS`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.simulated_device import recorded_wire, story
from tests.simulated_device.broken_wait import count_early
from worker.world.pace import RealPace


class Case(NamedTuple):
    """Which plan of the story is trained, and who dies when.

    Attributes:
        epoch: of the plan.
        victim: rank.
        part: forward or backward, of which the victim makes so many passes.
        evaluates: whether they are those of an evaluation.
    """

    epoch: int
    victim: int
    part: str
    passes: int = 2
    evaluates: bool = False


CASES = {
    "activation": Case(1, 0, "forward"),
    "gradient": Case(1, 1, "backward"),
    "partial": Case(2, 1, "forward"),
    "last": Case(2, 1, "forward", passes=story.SAMPLES),
    "evaluation": Case(2, 1, "forward", evaluates=True),
}


def break_without_flag(actor: Any) -> None:
    actor.world.broken.set = lambda why: None


MUTANTS: dict[str, Callable[[Any], None]] = {
    "right": lambda actor: None,
    "break without flag": break_without_flag,
    "gradients_step early": lambda actor: count_early(actor.state.engine),
}


class Dies(RealPace):
    """A rank that is killed at the end of a pass of a kind."""

    def __init__(self, case: Case, last_words: Callable[[], None]) -> None:
        self._case, self._last_words, self._passes = case, last_words, 0

    def forward(self) -> None:
        self._pass("forward")

    def backward(self) -> None:
        self._pass("backward")

    def _pass(self, part: str) -> None:
        self._passes += part == self._case.part
        if self._passes == self._case.passes:
            self._last_words()
            os.kill(os.getpid(), signal.SIGKILL)


def play(
    case: Case, mutant: str, rank: int, store: Any, say: story.Say, data: str, folder: Path
) -> None:
    """One step in peace, then the loss; the survivor says what it makes of it."""
    spec = story.spec_of("llama3", data, folder)
    actor = story.begun("llama3", "recorded", rank, store, say)
    actor.switch(actor.prepare(story.directive_of(case.epoch, spec, 2, None)))
    actor.train(spec)
    actor.bits()
    engine = actor.state.engine
    assert engine is not None
    act = engine.evaluate if case.evaluates else lambda: engine.train_step(None)
    if rank == case.victim:
        engine.pace = Dies(case, lambda: say("end", None))
        act()
    MUTANTS[mutant](actor)
    try:
        say("used", repr(act()))
    except (ConnectionError, RuntimeError):
        say("garbage", sorted({row[4] for row in recorded_wire.LOG if row[0] == "garbage"}))
    say("held", [engine.progress.step, engine.progress.gradients_step])
    actor.bits()
    say("end", None)
