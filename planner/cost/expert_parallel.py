"""Communication cost of a MoE stage's experts, tiled as EP x ETP x EDP.

The W devices of a stage (all replicas of its template, replica by replica and slot by slot) are cut
into runs of ETP devices that share each expert, and EP such runs hold all experts once.  Tokens go
to their experts and back by two all-to-alls among the EP runs, and inside a run every expert's
output is summed over its slices before it goes back: k copies of each token, which is why slicing
experts over a slow network costs so much more than sending tokens over it.
Invariant: a group inside a node uses the node's links, one that leaves it the slowest NIC's share.
A sum over nodes goes at the pace of the slowest link of its ring, those inside nodes included.
Source: Heddle, sections 3.2 and 5.3 (expert tiling); Megatron-Core's token dispatcher.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.cost import formulas
from planner.cost.links import nic_of
from planner.model.workload import Workload
from planner.profiles.operators import VALUE_BYTES
from planner.profiles.profile import LinkCost, Profile


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU of a stage, as far as communication depends on it."""

    node: str  # its name
    gpu_type: str  # device type
    nic_bytes_per_s: float | None  # of the node's network card, if the node states it


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the experts of a stage are spread."""

    tp: int  # TP degree of the stage; each device brings 1 / tp of its replica's tokens
    ep: int  # degree over which whole experts are spread
    etp: int  # degree over which each expert is cut


def expert_seconds(
    workload: Workload,
    profile: Profile,
    tiling: Tiling,
    devices: Sequence[Device],
    micro_batch: int,
    senders: Mapping[str, int] | None,
) -> float:
    """Expert communication of the forward pass of one MoE block; the backward pass has as much.

    EP x ETP divides the number of devices, which come replica by replica and slot by slot.  On each
    node as many use its NIC at once as it has devices, or `senders` if other stages send too.
    """
    at_once = Counter(device.node for device in devices) if senders is None else senders
    experts = workload.model.experts
    assert experts is not None
    tokens = micro_batch * workload.sequence_length / tiling.tp
    sent = experts.per_token * tokens * workload.model.hidden * VALUE_BYTES[workload.precision]
    runs = _cut(devices, tiling.etp)
    slowest = 0.0
    for first in range(0, len(runs), tiling.ep):
        block = runs[first : first + tiling.ep]
        exchange_s = 2 * max(
            _all_to_all_s(profile, [run[slot] for run in block], at_once, sent)
            for slot in range(tiling.etp)
        )
        reduce_s = max(_sum_s(profile, run, at_once, sent * tiling.etp) for run in block)
        slowest = max(slowest, exchange_s + reduce_s)
    return slowest


def _cut(devices: Sequence[Device], size: int) -> list[Sequence[Device]]:
    return [devices[start : start + size] for start in range(0, len(devices), size)]


def _slowest_nic(profile: Profile, devices: Sequence[Device]) -> LinkCost:
    kinds = {(device.gpu_type, device.nic_bytes_per_s) for device in devices}
    links = (nic_of(profile, *kind) for kind in sorted(kinds, key=str))
    return min(links, key=lambda link: link.bandwidth_bytes_per_s)


def _all_to_all_s(
    profile: Profile, group: Sequence[Device], at_once: Mapping[str, int], sent: float
) -> float:
    """Every member sends its tokens to the members that hold their experts."""
    size = len(group)
    if size == 1:
        return 0.0
    nodes = Counter(device.node for device in group)
    if len(nodes) == 1:
        link = profile.inside_ring(group[0].gpu_type, size)
        return link.seconds(sent * formulas.all_to_all_factor(size, 1))
    nic = _slowest_nic(profile, group)
    return max(
        nic.shared_by(formulas.nic_share(at_once[node], 1)).seconds(
            sent * formulas.all_to_all_factor(size, inside)
        )
        for node, inside in nodes.items()
    )


def _sum_s(
    profile: Profile, run: Sequence[Device], at_once: Mapping[str, int], num_bytes: float
) -> float:
    """The outputs of the experts of a run are summed over its members; 2 (R-1)/R of a ring.

    The ring enters and leaves a node once, however many members it has there.  Its slowest link
    counts, inside a node or between two, as in `planner.cost.collectives`.
    """
    size = len(run)
    if size == 1:
        return 0.0
    volume = formulas.ring_factor(size) * num_bytes
    nodes = Counter(device.node for device in run)
    if len(nodes) == 1:
        return profile.inside_ring(run[0].gpu_type, size).seconds(volume)
    share = max(formulas.nic_share(at_once[node], inside) for node, inside in nodes.items())
    links = [_slowest_nic(profile, run).shared_by(share)]
    links += [profile.inside_ring(run[0].gpu_type, one) for one in nodes.values() if one > 1]
    return max(link.seconds(volume) for link in links)
