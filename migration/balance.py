"""How much of each class every holder sends, so that the busiest port is done as early as it can.

A slice enters a node once over its network card, unless a GPU there holds it, and is handed on
inside: each receiver of the node gets a stripe and gives it to the others.  Who sends how much is
filled like water: the least loaded ports rise first, all to one level.  Classes are filled one by
one, the scarcest first, and then again with all others given, until little changes.
Invariant: equal inputs give equal integers on every rank; nothing but IEEE arithmetic in one order
decides.
Source: Heddle, section 5.6; the linear programme that it comes near is in
`benchmarks/migration`; stripe and hand on: NeMo-RL's resharding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import fsum
from typing import NamedTuple

from migration.classes import MovingClass
from migration.links import Links

SWEEPS = 3  # the third changes the busiest port by less than 1 % on random changes


class Run(NamedTuple):
    """Bytes `[start, stop)` of a class, from one rank to another.

    Attributes:
        moving: index of the class.
        start, stop: on the line of its pieces, one after the other.
        sender, receiver: transport ranks.
        relays: ranks of the receiver's node to which it hands the same bytes on.
    """

    moving: int
    start: int
    stop: int
    sender: int
    receiver: int
    relays: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Loads:
    """Seconds of work of every port, so far.

    Attributes:
        links: bytes per second.
        nodes: index of the node of each transport rank.
        port_out, port_in: by transport rank.
        nic_out, nic_in: by node.
    """

    links: Links
    nodes: tuple[int, ...]
    port_out: list[float] = field(init=False)
    port_in: list[float] = field(init=False)
    nic_out: list[float] = field(init=False)
    nic_in: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.port_out, self.port_in = [0.0] * len(self.nodes), [0.0] * len(self.nodes)
        count = max(self.nodes, default=-1) + 1
        self.nic_out, self.nic_in = [0.0] * count, [0.0] * count

    def add(self, run: Run, sign: int = 1) -> None:
        """Count a run and its relays, or with sign -1 take them off."""
        size = sign * (run.stop - run.start)
        sender, receiver = self.nodes[run.sender], self.nodes[run.receiver]
        inside = size / self.links.inside(receiver)
        port = inside if sender == receiver else size / self.links.port_bytes_per_s
        self.port_out[run.sender] += port
        self.port_in[run.receiver] += port
        self.port_out[run.receiver] += inside * len(run.relays)
        for rank in run.relays:
            self.port_in[rank] += inside
        if sender != receiver:
            self.nic_out[sender] += size / self.links.nic_bytes_per_s[sender]
            self.nic_in[receiver] += size / self.links.nic_bytes_per_s[receiver]

    def longest_s(self) -> float:
        """Of the busiest port."""
        return max([0.0, *self.port_out, *self.port_in, *self.nic_out, *self.nic_in])


def share_out(
    classes: Sequence[MovingClass], nodes: tuple[int, ...], links: Links, grain_bytes: int
) -> tuple[Run, ...]:
    """Senders and receivers of the bytes of every class.

    Args:
        classes: that move.
        nodes: index of the node of each transport rank.
        links: bytes per second of ports and network cards.
        grain_bytes: less than this is not shared between two holders, or two receivers.
    """
    loads = Loads(links=links, nodes=nodes)
    order = sorted(
        range(len(classes)),
        key=lambda c: (len(classes[c].holders), -classes[c].num_bytes, c),
    )
    runs: list[list[Run]] = [[] for _ in classes]
    for _ in range(SWEEPS):
        for c in order:
            for run in runs[c]:
                loads.add(run, -1)
            runs[c] = _share_class(c, classes[c], loads, grain_bytes)
            for run in runs[c]:
                loads.add(run)
        if loads.longest_s() <= max([0.0, *loads.port_in, *loads.nic_in]):
            break  # what must come in takes as long, whoever sends it
    return tuple(run for found in runs for run in found)


def _share_class(c: int, one: MovingClass, loads: Loads, grain_bytes: int) -> list[Run]:
    """The runs of one class."""
    local: dict[int, list[int]] = {}
    for rank in one.holders:
        local.setdefault(loads.nodes[rank], []).append(rank)
    receivers: dict[int, list[int]] = {}
    for rank in one.receivers:
        receivers.setdefault(loads.nodes[rank], []).append(rank)
    size, runs = one.num_bytes, list[Run]()
    far = [node for node in receivers if node not in local]
    for node in receivers:
        if node in local:
            ports = [loads.port_out[rank] for rank in local[node]]
            amounts = filled(ports, size / loads.links.inside(node))
            cuts = _cuts(amounts, size, grain_bytes)
            parts = list(zip(local[node], cuts, cuts[1:], strict=False))
            runs += _striped(c, parts, receivers[node], size, loads, grain_bytes)
    if far:
        ranks, amounts = _far_amounts(local, size * len(far), loads)
        cuts = _cuts(amounts, size * len(far), grain_bytes, size)
        for index, node in enumerate(far):
            start, stop = index * size, (index + 1) * size
            parts = [
                (rank, max(a, start) - start, min(b, stop) - start)
                for rank, a, b in zip(ranks, cuts, cuts[1:], strict=False)
                if max(a, start) < min(b, stop)
            ]
            runs += _striped(c, parts, receivers[node], size, loads, grain_bytes)
    return runs


def _striped(
    c: int,
    parts: list[tuple[int, int, int]],
    receivers: list[int],
    size: int,
    loads: Loads,
    grain_bytes: int,
) -> list[Run]:
    """The runs of one class into one node: what each holder sends, cut by who receives it first."""
    cuts = [0, size]
    if len(receivers) > 1:
        inside = loads.links.inside(loads.nodes[receivers[0]])
        work = size * (len(receivers) - 1) / inside
        amounts = filled([loads.port_out[rank] for rank in receivers], work)
        cuts = _cuts(amounts, size, grain_bytes)
    return [
        Run(
            c,
            max(start, a),
            min(stop, b),
            sender,
            receiver,
            tuple(rank for rank in receivers if rank != receiver),
        )
        for sender, start, stop in parts
        for receiver, a, b in zip(receivers, cuts, cuts[1:], strict=False)
        if max(start, a) < min(stop, b)
    ]


def _far_amounts(
    local: dict[int, list[int]], size: int, loads: Loads
) -> tuple[list[int], list[float]]:
    """(holders, how much each sends) to other nodes: ports and network cards to one level."""
    rates, port = loads.links.nic_bytes_per_s, loads.links.port_bytes_per_s
    levels = {node: [loads.port_out[rank] for rank in ranks] for node, ranks in local.items()}

    def room(node: int, level: float) -> float:
        """Bytes that a node can send until that second."""
        card = (level - loads.nic_out[node]) * rates[node]
        ports = fsum(level - second for second in levels[node] if second < level) * port
        return max(0.0, min(card, ports))

    low, high = 0.0, 1.0
    while fsum(room(node, high) for node in local) < size:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        if fsum(room(node, middle) for node in local) < size:
            low = middle
        else:
            high = middle
    ranks: list[int] = []
    amounts: list[float] = []
    for node, holders in local.items():
        seconds = room(node, high) / port
        ranks += holders
        amounts += [amount * port for amount in filled(levels[node], seconds)]
    return ranks, amounts


def filled(levels: Sequence[float], amount: float) -> list[float]:
    """How `amount` is poured onto `levels` so that the lowest rise first, all to one level."""
    rising = sorted(levels)
    total = 0.0
    level = 0.0
    for count, lowest in enumerate(rising, 1):
        total += lowest
        level = (amount + total) / count
        if count == len(rising) or level <= rising[count]:
            break
    return [max(0.0, level - one) for one in levels]


def _cuts(amounts: Sequence[float], size: int, grain_bytes: int, turn: int = 0) -> list[int]:
    """Where a line of `size` bytes is cut in proportion to `amounts`: whole grains of each turn.

    A line is one class, or one after the other as often as nodes need it; `turn` is then its size.
    """
    whole = fsum(amounts)
    turn = turn or size
    grain = min(grain_bytes, turn)
    cuts = [0]
    for reached in accumulate(amounts):
        at = min(size, max(0, round(size * (reached / whole)))) if whole else size
        start = at // turn * turn
        inside = (at - start + grain // 2) // grain * grain
        cuts.append(max(cuts[-1], start + min(inside, turn)) if at < size else size)
    cuts[-1] = size
    return cuts
