"""The experts that tokens visit in a step, as the ranks of a plan choose them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

Told = dict[str, list[int]]  # {"layer/first sample/samples": visits of each expert}


class Visits:
    """What the mixtures of this process choose for the samples of a step.

    Invariant: a forward pass that is computed again chooses the same experts.  Empty micro-batches
    and evaluations have no sample, and count nothing.
    """

    def __init__(self) -> None:
        self._found: Told = {}

    def note(self, block: Any, routes: Any) -> None:
        """The routes of a micro-batch in a block."""
        context = block.current.context
        if context is None or context.samples is None:
            return
        visits = routes.chosen.flatten().bincount(minlength=routes.scores.shape[1]).tolist()
        key = f"{block.index}/{context.samples.start}/{len(context.samples)}"
        assert self._found.setdefault(key, visits) == visits, f"{key} is computed again otherwise"

    def told(self) -> Told:
        """Those since the last call."""
        found, self._found = self._found, {}
        return found


@contextlib.contextmanager
def noted_visits() -> Iterator[Visits]:
    """The visits of all mixtures of this process, which compute as they do."""
    from worker.model import model

    found, current = Visits(), list[Any]()
    feed_forward, visited = model.MoeBlock.feed_forward, model.visited

    def of_block(block: Any, h: Any) -> Any:
        current.append(block)
        try:
            return feed_forward(block, h)
        finally:
            current.pop()

    def of_tokens(tokens: Any, routes: Any, *others: Any, **further: Any) -> Any:
        found.note(current[-1], routes)
        return visited(tokens, routes, *others, **further)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.MoeBlock, "feed_forward", of_block)
        patch.setattr(model, "visited", of_tokens)
        yield found


def visits_of(told: Sequence[Told]) -> list[list[int]]:
    """Of each mixture, the visits of each expert in a step, by what each rank told of it.

    Raises:
        AssertionError: ranks of a TP group choose other experts for the same samples.
    """
    whole: Told = {}
    for of_rank in told:
        for key, visits in of_rank.items():
            assert whole.setdefault(key, visits) == visits, f"{key} differs between ranks"
    layers: dict[int, list[int]] = {}
    for key, visits in whole.items():
        layer = int(key.split("/")[0])
        before = layers.get(layer, [0] * len(visits))
        layers[layer] = [one + other for one, other in zip(before, visits, strict=True)]
    return [layers[layer] for layer in sorted(layers)]
