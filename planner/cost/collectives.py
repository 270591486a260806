"""How long the collectives of many groups of ranks take, all at once.

Ranks of one node that talk with other nodes share its NIC, so that a member has a share of it;
inside a node they use its links.  A ring over several nodes goes at the pace of the slowest of all.
Where the profile knows the rings of a node, members of a group on it count once: NCCL's ring enters
and leaves a node once, however many members it has there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from planner.cost import formulas
from planner.cost.links import nic_of
from planner.plans.ranks import RankMap
from planner.profiles.profile import LinkCost, Profile

Messages = dict[tuple[int, ...], int]  # {(a rank of a group, another, ...): bytes}


class Sent(NamedTuple):
    """What each member of a group sends, one message after the other."""

    messages: int
    num_bytes: float  # of one of them


def in_buckets(num_bytes: float, bucket_bytes: float, factor: float) -> Sent:
    """Bytes that go through a bucket, each `factor` times over every link."""
    messages = formulas.bucket_messages(num_bytes, bucket_bytes)
    return Sent(messages, factor * num_bytes / messages)


def seconds_by_rank(
    sent: Mapping[tuple[int, ...], Sent],
    ranks: RankMap,
    profile: Profile,
    nics: Mapping[str, float],
) -> tuple[float, ...]:
    """Seconds of each rank in all its groups, in rank order.

    Args:
        sent: by the ranks of a group; one rank alone sends nothing.
        ranks: of the plan.
        profile: supplies the links; the slowest of a group counts, inside a node or between two.
        nics: bytes per second of the network cards that are stated, by node.
    """
    node = [seat.node for seat in ranks.seats]
    groups = [  # by members, once: so many ranks are not hashed again and again
        (members, {node[rank] for rank in members}, each)
        for members, each in sent.items()
        if len(members) > 1
    ]
    crossing = [members for members, names, _ in groups if len(names) > 1]
    sharing = (
        _rings_by_node(crossing, node)
        if profile.rings
        else Counter(node[rank] for rank in {rank for members in crossing for rank in members})
    )
    type_of = {seat.node: seat.gpu_type for seat in ranks.seats}
    nic: dict[str, LinkCost] = {
        name: nic_of(profile, type_of[name], nics.get(name)).shared_by(
            formulas.nic_share(at_once, 1)
        )
        for name, at_once in sharing.items()
    }
    slowest_first = sorted(nic, key=lambda name: (nic[name].bandwidth_bytes_per_s, name))
    slowness = {name: index for index, name in enumerate(slowest_first)}
    seconds = [0.0] * len(node)
    for members, names, each in groups:
        links = []
        if len(names) > 1:
            links.append(nic[min(names, key=slowness.__getitem__)])
        if len(names) < len(members):
            on = Counter([node[rank] for rank in members])
            rings = {(type_of[name], count) for name, count in on.items() if count > 1}
            links += [profile.inside_ring(*ring) for ring in rings]
        taken_s = each.messages * max(link.seconds(each.num_bytes) for link in links)
        for rank in members:
            seconds[rank] += taken_s
    return tuple(seconds)


def _rings_by_node(crossing: list[tuple[int, ...]], node: list[str]) -> Counter[str]:
    """How many rings use the NIC of each node at once."""
    leader: dict[int, int] = {}
    for members in crossing:
        first: dict[str, int] = {}
        for rank in members:
            leads = first.setdefault(node[rank], leader.get(rank, rank))
            leader[rank] = min(leader.get(rank, leads), leads)
    return Counter(node[rank] for rank in set(leader.values()))
