"""Hands activations and gradients between stages of different TP degree.

Takes the place of DeepSpeed's p2p module.

A stage's output is the same on all ranks of its TP group.  Inside a node each rank of the next
stage hears all of it from one rank: where TP grows t -> u, rank i feeds u / t ranks; where it
shrinks, the first rank of each t / u speaks for them.  Between nodes the output crosses once, in
max(t, u) shares over all network cards of the stages, and the receiving TP group gathers it.
Gradients take the same way back.
Source: Narayanan et al. 2021 (Megatron-LM), section 4.1, scatter and gather between stages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from migration.rounds import Link, numbered
from migration.transfer import MAX_OPERATIONS
from planner.plans.ranks import RankMap, Seat, Share
from worker.world.pace import Pace
from worker.world.world import Round, World

WHOLE: Share = (0, 1)


class Message(NamedTuple):
    """From one rank of a stage to one of its neighbour.

    Attributes:
        share: of the tensor's values, that it carries.
    """

    sender: int
    receiver: int
    share: Share


def link_messages(
    source: tuple[int, ...], target: tuple[int, ...], *, is_cut: bool
) -> tuple[Message, ...]:
    """The messages of one tensor from the ranks of a stage to those of its neighbour.

    Args:
        source: ranks of the sending stage.
        target: ranks of the receiving one.
        is_cut: each message carries a share, where one TP degree divides the other.
    """
    most, least = max(len(source), len(target)), min(len(source), len(target))
    is_cut = is_cut and most % least == 0
    ways = most if is_cut else len(target)
    return tuple(
        Message(
            source[i * len(source) // ways],
            target[i * len(target) // ways],
            (i, ways) if is_cut else WHOLE,
        )
        for i in range(ways)
    )


def link_rounds(ranks: RankMap, rank: int) -> tuple[Round, ...]:
    """One message of a rank with each of its neighbour stages, both ways, in rounds of all ranks.

    Activations go one way and gradients the other, each at its own first message.  A tensor that
    cannot be cut goes between ranks that have a message of shares as well.
    """
    pairs = dict.fromkeys(
        pair
        for pipeline in ranks.pipelines
        for (source, here), (target, there) in pairwise(
            zip(pipeline.ranks, pipeline.nodes, strict=True)
        )
        for one, other, _ in link_messages(source, target, is_cut=here != there)
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
        messages = self._messages(self._seat.stage, stage, tensor)
        values = tensor.detach().contiguous().view(-1)
        sends = [(message.receiver, _share(values, message.share)) for message in messages]
        everyone = self._world.everyone
        with self._waiting():
            if sends:
                everyone.exchange(sends, [])
            self._pass([peer for peer, _ in sends], stage)

    def recv(self, tensor: torch.Tensor, stage: int, async_op: bool = False) -> None:  # noqa: ARG002 # DeepSpeed's call
        """Receive from a neighbour stage into `tensor`, which is contiguous."""
        messages = self._messages(stage, self._seat.stage, tensor)
        values = tensor.detach().view(-1)
        receives = [(message.sender, _share(values, message.share)) for message in messages]
        everyone = self._world.everyone
        with self._waiting():
            if receives:
                everyone.exchange([], receives)
            if self._seat.tp > 1 and any(message.share != WHOLE for message in messages):
                self._world.groups[self._seat.tp_ranks].all_gather_(values)
            self._pass([peer for peer, _ in receives], stage)

    def _messages(self, source: int, target: int, tensor: torch.Tensor) -> list[Message]:
        """This rank's messages of a tensor from stage to stage."""
        pipeline, me = self._seat.pipeline, self._seat.rank
        ends = pipeline.ranks[source], pipeline.ranks[target]
        is_apart = pipeline.nodes[source] != pipeline.nodes[target]
        is_cut = is_apart and tensor.numel() % max(map(len, ends)) == 0
        return [
            message
            for message in link_messages(*ends, is_cut=is_cut)
            if me in (message.sender, message.receiver)
        ]

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


def _share(values: torch.Tensor, share: Share) -> torch.Tensor:
    index, ways = share
    length = values.numel() // ways
    return values.narrow(0, index * length, length)


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
