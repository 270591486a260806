"""How long messages between two GPUs, or two stages, take, and which link they use.

Invariant: neighbouring stages on one node use its link; else both send over a share of their NICs,
and the slower one counts; its TP group gathers what came.  A NIC is shared by the stages of its
node that send to another node.
Source: Heddle, section 5.2.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import NamedTuple

from planner.cost import formulas
from planner.profiles.profile import LinkCost, Profile


class EdgeEnd(NamedTuple):
    """One of two neighbouring stages, as far as messages between them depend on it."""

    gpu_type: str  # device type
    tp: int  # TP degree
    sending: int  # GPUs of its node whose stages send to another node; 0: nobody else sends
    nic_bytes_per_s: float | None  # of the network card of its node, if the node states one


def sending_stages(nodes: Sequence[Hashable], *, placed: bool = True) -> list[int]:
    """The stages of a pipeline on these nodes that send to another; unplaced all do."""
    leaves = [not placed or left != right for left, right in pairwise(nodes)]
    return [s for s in range(len(nodes)) if any(leaves[max(0, s - 1) : s + 1])]


def edge_seconds(
    profile: Profile, left: EdgeEnd, right: EdgeEnd, num_bytes: float, *, inside: bool
) -> float:
    """Time of one message between two neighbouring stages, inside a node or between two."""
    if inside:
        return profile.inside_node(left.gpu_type).seconds(num_bytes)
    return max(port_seconds(profile, end, num_bytes) for end in (left, right))


def port_seconds(profile: Profile, end: EdgeEnd, num_bytes: float) -> float:
    """Time of one message between a stage and another node.

    Where the profile knows the rings of a node (NCCL), the ranks of a stage send a slice each, over
    their share of a NIC that all senders of the node use at once.  The TP group then gathers them;
    the activation comes to one end, the gradient to the other.
    """
    nic = nic_of(profile, end.gpu_type, end.nic_bytes_per_s)
    if profile.rings:
        nic = nic.shared_by(formulas.nic_share(end.sending, end.tp))
    gather_s = 0.0
    if end.tp > 1:
        ring = profile.inside_ring(end.gpu_type, end.tp)
        gather_s = ring.seconds(num_bytes * formulas.gather_factor(end.tp))
    return nic.seconds(num_bytes) + gather_s


def nic_of(profile: Profile, gpu_type: str, nic_bytes_per_s: float | None) -> LinkCost:
    """The network card of a node: the profile's for its type, at the rate that the node states."""
    return profile.between_nodes(gpu_type).at_rate(nic_bytes_per_s)
