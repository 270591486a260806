"""Hands activations and gradients between stages of different TP degree.

Takes the place of DeepSpeed's p2p module.

A stage's output is the same on all ranks of its TP group.  Where TP grows t -> u, rank i feeds u /
t ranks; where it shrinks, the first rank of each t / u speaks for them.  Gradients take the same
way back.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from planner.plans.ranks import Seat
from worker.world.pace import Pace


def link_pairs(source: tuple[int, ...], target: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(sending rank, receiving rank) for every rank of the target stage."""
    return tuple((source[i * len(source) // len(target)], rank) for i, rank in enumerate(target))


class StageLinks:
    """`send`, `recv` and `init_process_groups` as PipelineEngine calls them."""

    def __init__(self, seat: Seat, pace: Pace) -> None:
        self._seat, self._pace = seat, pace

    def init_process_groups(self, grid: object) -> None:
        """DeepSpeed forms a group per edge here; ours needs none."""

    def send(self, tensor: torch.Tensor, stage: int, async_op: bool = False) -> None:  # noqa: ARG002 # DeepSpeed's call
        """Send to a neighbour stage; blocks until the peers receive."""
        peers = self._peers(self._seat.tp_ranks, self._seat.pipeline.ranks[stage])
        for peer in peers:
            dist.send(tensor.contiguous(), peer)
        self._pass(peers, stage)

    def recv(self, tensor: torch.Tensor, stage: int, async_op: bool = False) -> None:  # noqa: ARG002 # DeepSpeed's call
        """Receive from a neighbour stage into `tensor`."""
        peers = self._peers(self._seat.pipeline.ranks[stage], self._seat.tp_ranks)
        for peer in peers:
            dist.recv(tensor, peer)
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
        for peer in peers:
            theirs = torch.zeros_like(mine)
            sent = dist.isend(mine, peer)
            dist.recv(theirs, peer)
            if sent is not None:
                sent.wait()
            due = max(due, theirs.item())
        self._pace.link(stage - self._seat.stage, due)
