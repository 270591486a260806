"""A loss in the middle of a step: a world that breaks behind the norm, and who goes on."""

from __future__ import annotations

import contextlib
from typing import Any

from worker.contract import Directive, Resume


def recovered(directive: Directive, lost: int, step: int) -> Directive:
    """The directive as that of a loss: one GPU is gone, and the others stand at a step."""
    members = tuple(member for member in directive.members if member.gpu != lost)
    update = {"reason": "loss", "members": members, "resume": Resume(step=step)}
    return directive.model_copy(update=update)


def break_last(engine: Any, *, has_applied: bool) -> None:
    """A step whose world breaks behind the norm: before the update, or right behind it.

    Who has not applied it by then rolls forward, as a survivor does.
    """

    def gone(*_: object) -> None:
        raise ConnectionError("a peer is gone")

    apply, engine.spread = engine.apply, gone
    if not has_applied:
        engine.apply = gone
    with contextlib.suppress(ConnectionError):
        engine.train_step(None)
    if not has_applied:
        assert engine.progress.step == engine.progress.gradients_step
        apply(engine.progress.result.gradient_norm)
