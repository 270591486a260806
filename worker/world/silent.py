"""Peers that are not there: what a rank computes alone has the shapes that it has with them.

Each peer is taken to hold and to send what this rank does; nothing travels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from migration.transport import ReduceOp
from worker.device.device import Device
from worker.world.group import Group, Ranks


class SilentGroup(Group):
    """A group whose operations send nothing; see `Group`."""

    def __init__(self, ranks: Ranks) -> None:
        """No wire is formed."""
        self.ranks = ranks

    def all_reduce_(self, tensor: torch.Tensor, op: ReduceOp = "sum") -> None:
        """See `Group`; the tensor stays."""

    def all_to_all_(
        self,
        received: torch.Tensor,
        sent: torch.Tensor,
        rows_from: Sequence[int],  # noqa: ARG002 # as of a group
        rows_to: Sequence[int],  # noqa: ARG002
    ) -> None:
        """See `Group`; as many of this rank's own rows as are awaited."""
        rows = min(len(received), len(sent))
        received[:rows].copy_(sent[:rows])
        received[rows:].zero_()


class _Groups(dict[Ranks, Group]):
    """A silent group for every set of ranks."""

    def __missing__(self, ranks: Ranks) -> Group:
        return SilentGroup(ranks)


class SilentPeers:
    """What layers ask of a world: its groups, and the numbers of a tensor.

    Attributes:
        groups: {ranks: group}, for every set that is asked for.
    """

    def __init__(self, device: Device) -> None:
        self.groups: dict[Ranks, Group] = _Groups()
        self._device = device

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The numbers of a tensor, in memory of the host."""
        return self._device.host(tensor)
