"""How fast state can leave and enter GPUs and nodes, as far as migration reckons with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.profiles.staged import GLOO_BYTES_PER_S

# NCCL reaches 12 GB/s on a card of 100 Gb/s (NVIDIA's maintainers in nccl-tests#119); 20 GB/s are
# what PCIe 4.0 x16 carries.  Only their ratio decides who sends.
NIC_BYTES_PER_S = 12e9
PORT_BYTES_PER_S = 20e9


@dataclass(frozen=True, slots=True)
class Links:
    """Bytes per second, each way.

    Attributes:
        nic_bytes_per_s: of the network card of each node, by its index.
        port_bytes_per_s: of the port of each GPU.
    """

    nic_bytes_per_s: tuple[float, ...]
    port_bytes_per_s: float = PORT_BYTES_PER_S


def usual_links(nodes: int) -> Links:
    """Links of which nobody has measured more."""
    return Links((NIC_BYTES_PER_S,) * nodes)


def staged_links(nodes: int, copy_bytes_per_s: float) -> Links:
    """Links where state leaves and enters GPUs through memory of their hosts, over gloo.

    A byte is copied and then sent, or received and then copied, so a port has both to do.

    Args:
        nodes: their number.
        copy_bytes_per_s: of a copy between a GPU and its host.
    """
    port_s = 1 / copy_bytes_per_s + 1 / GLOO_BYTES_PER_S
    return Links((NIC_BYTES_PER_S,) * nodes, 1 / port_s)


def node_indices(node_of: Sequence[str]) -> tuple[int, ...]:
    """The index of each member's node, counted as they first appear."""
    index: dict[str, int] = {}
    return tuple(index.setdefault(name, len(index)) for name in node_of)
