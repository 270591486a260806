"""How fast state can leave and enter GPUs and nodes, as far as migration reckons with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.profiles.entries import LinkCost
from planner.profiles.profile import Profile
from planner.profiles.staged import copy_bytes_per_s

# NCCL reaches 12 GB/s on a card of 100 Gb/s (NVIDIA's maintainers in nccl-tests#119); 20 GB/s are
# what PCIe 4.0 x16 carries.  Only their ratio decides who sends.
NIC_BYTES_PER_S = 12e9
PORT_BYTES_PER_S = 20e9


@dataclass(frozen=True, slots=True)
class Links:
    """Bytes per second, each way.

    Attributes:
        nic_bytes_per_s: of the network card of each node, by its index.
        port_bytes_per_s: of each GPU to the card of its node.
        inside_bytes_per_s: of each GPU to others of its node, by its index; empty: as to the card.
    """

    nic_bytes_per_s: tuple[float, ...]
    port_bytes_per_s: float = PORT_BYTES_PER_S
    inside_bytes_per_s: tuple[float, ...] = ()

    def inside(self, node: int) -> float:
        """Bytes per second between two GPUs of a node."""
        return self.inside_bytes_per_s[node] if self.inside_bytes_per_s else self.port_bytes_per_s


def usual_links(nodes: int) -> Links:
    """Links that nobody has measured further."""
    return Links((NIC_BYTES_PER_S,) * nodes)


def profile_links(profile: Profile, gpu_types: Sequence[str], shares: Sequence[float]) -> Links:
    """Links by a profile: NVLink or PCIe inside a node, PCIe and a network card between nodes.

    Where messages go through memory of the hosts a byte is copied and then sent, or received and
    then copied, so a port has both to do.

    Args:
        profile: of the workload, with the wire of its ranks.
        gpu_types: of each node; of one that is not profiled the usual rates count.
        shares: of each node in its network card; 1 for a card of its own.
    """
    ports = [
        _port(profile.inside_links[name], copy_bytes_per_s(profile, name))
        if name in profile.inside_links and name in profile.types
        else PORT_BYTES_PER_S
        for name in gpu_types
    ]
    insides = [
        _port(profile.inside_links[name], profile.inside_links[name].bandwidth_bytes_per_s)
        if name in profile.inside_links
        else PORT_BYTES_PER_S
        for name in gpu_types
    ]
    nics = [profile.nics.get(name, profile.network) for name in gpu_types]
    return Links(
        tuple(n.bandwidth_bytes_per_s * share for n, share in zip(nics, shares, strict=True)),
        min(ports, default=PORT_BYTES_PER_S),
        tuple(insides),
    )


def _port(link: LinkCost, direct_bytes_per_s: float) -> float:
    """Of a GPU: a copy and the way between two hosts in series, or the direct way."""
    if link.staging is None:
        return direct_bytes_per_s
    return 1 / (1 / link.staging.copy_bytes_per_s + 1 / link.staging.wire_bytes_per_s)


def node_indices(node_of: Sequence[str]) -> tuple[int, ...]:
    """The index of each member's node, counted as they first appear."""
    index: dict[str, int] = {}
    return tuple(index.setdefault(name, len(index)) for name in node_of)
