"""Hands activations and gradients between stages of different TP degree.

Takes the place of DeepSpeed's p2p module.

A stage's output is the same on all ranks of its TP group.  Where TP grows t -> u, rank i feeds u /
t ranks; where it shrinks, the first rank of each t / u speaks for them.  Gradients take the same
way back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import torch

from migration.rounds import Link, numbered
from migration.transfer import MAX_OPERATIONS
from planner.plans.ranks import RankMap, Seat
from worker.world.pace import Pace
from worker.world.world import Round, World


def link_pairs(source: tuple[int, ...], target: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(sending rank, receiving rank) for every rank of the target stage."""
    return tuple((source[i * len(source) // len(target)], rank) for i, rank in enumerate(target))


def link_rounds(ranks: RankMap, rank: int) -> tuple[Round, ...]:
    """One message of a rank with each of its neighbour stages, both ways, in rounds of all ranks.

    Activations go one way and gradients the other, each at its own first message.
    """
    pairs = dict.fromkeys(
        pair
        for pipeline in ranks.pipelines
        for source, target in pairwise(pipeline.ranks)
        for one, other in link_pairs(source, target)
        for pair in ((one, other), (other, one))
    )
    number = numbered(((pair, Link(*pair)) for pair in pairs), MAX_OPERATIONS)
    found: dict[int, tuple[list[int], list[int]]] = {}
    for (sender, receiver), of in number.items():
        if rank in (sender, receiver):
            targets, sources = found.setdefault(of, ([], []))
            (targets if rank == sender else sources).append(receiver if rank == sender else sender)
    return tuple(found[of] for of in sorted(found))


class StageLinks:
    """`send`, `recv` and `init_process_groups` as PipelineEngine calls them."""

    def __init__(
        self,
        seat: Seat,
        world: World,
        pace: Pace,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`waiting` is entered around each message, which ends when both sides are there."""
        self._seat, self._world, self._pace = seat, world, pace
        self._waiting = waiting

    def init_process_groups(self, grid: object) -> None:
        """DeepSpeed forms a group per edge here; ours needs none."""

    def send(self, tensor: torch.Tensor, stage: int, async_op: bool = False) -> None:  # noqa: ARG002 # DeepSpeed's call
        """Send to a neighbour stage; blocks until the peers receive."""
        peers = self._peers(self._seat.tp_ranks, self._seat.pipeline.ranks[stage])
        everyone = self._world.everyone
        with self._waiting():
            if peers:
                everyone.exchange([(peer, tensor.contiguous()) for peer in peers], [])
            self._pass(peers, stage)

    def recv(self, tensor: torch.Tensor, stage: int, async_op: bool = False) -> None:  # noqa: ARG002 # DeepSpeed's call
        """Receive from a neighbour stage into `tensor`."""
        peers = self._peers(self._seat.pipeline.ranks[stage], self._seat.tp_ranks)
        everyone = self._world.everyone
        with self._waiting():
            if peers:
                everyone.exchange([], [(peer, tensor) for peer in peers])
            self._pass(peers, stage)

    def _peers(self, source: tuple[int, ...], target: tuple[int, ...]) -> list[int]:
        """The other ends of this rank's messages from stage to stage."""
        pairs = link_pairs(source, target)
        me = self._seat.rank
        return [other for pair in pairs if me in pair for other in pair if other != me]

    def _pass(self, peers: list[int], stage: int) -> None:
        """Let an emulated device wait until both ends are there and the message has passed."""
        due = self._pace.due()
        if due is None:
            return
        mine = torch.tensor([due], dtype=torch.float64)
        group = self._world.control
        for peer in peers:
            theirs = torch.zeros_like(mine)
            sent = group.start_send(mine, peer)
            group.recv(theirs, peer)
            group.finish(sent)
            due = max(due, float(theirs))
        self._pace.link(stage - self._seat.stage, due)


class LinksOfThread:
    """DeepSpeed's p2p module, which all engines of a process share.

    The thread that trains talks through the links of the engine that it trains; one that only
    builds an engine does not talk at all, where DeepSpeed would send a zero to its neighbours.
    """

    def __init__(self) -> None:
        self._here = threading.local()

    def use(self, links: StageLinks | None) -> None:
        """Talk through these links in this thread from now on."""
        self._here.links = links

    def __getattr__(self, name: str) -> Any:
        links = getattr(self._here, "links", None)
        return getattr(links, name) if links is not None else lambda *_, **__: None
