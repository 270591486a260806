"""Least time of any transfer of a change, and the time of the paper's two stages."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from migration.transfer import Transfer


def least_seconds(transfer: Transfer) -> float:
    """A lower bound on the seconds of the busiest card or port, by a linear programme.

    Every class enters each node that lacks it once, from any holders; every receiver gets it.
    """
    nodes, links = transfer.nodes, transfer.links
    port = links.port_bytes_per_s
    fixed: Counter[tuple[str, int]] = Counter()
    columns: list[dict[tuple[str, int], float]] = []
    demands: list[tuple[list[int], float]] = []
    for one in transfer.classes:
        at = {nodes[rank] for rank in one.holders}
        for rank in one.receivers:
            fixed["in", rank] += one.num_bytes / port
        for node in {nodes[rank] for rank in one.receivers} - at:
            fixed["nic in", node] += one.num_bytes / links.nic_bytes_per_s[node]
            mine = []
            for rank in one.holders:
                mine.append(len(columns))
                nic = links.nic_bytes_per_s[nodes[rank]]
                columns.append({("out", rank): 1 / port, ("nic out", nodes[rank]): 1 / nic})
            demands.append((mine, float(one.num_bytes)))
    least = max(fixed.values(), default=0.0)
    return max(least, _least_out(columns, demands)) if columns else least


def _least_out(
    columns: list[dict[tuple[str, int], float]], demands: list[tuple[list[int], float]]
) -> float:
    rows = {key: i for i, key in enumerate(sorted({key for column in columns for key in column}))}
    last = len(columns)  # the makespan
    scale = max(amount for _, amount in demands)
    entries = [
        (rows[k], j, v * scale) for j, column in enumerate(columns) for k, v in column.items()
    ]
    entries += [(i, last, -1.0) for i in range(len(rows))]
    i, j, v = zip(*entries, strict=True)
    above = coo_array((v, (i, j)), shape=(len(rows), last + 1))
    pairs = [(d, j) for d, (mine, _) in enumerate(demands) for j in mine]
    equal = coo_array(
        (np.ones(len(pairs)), tuple(zip(*pairs, strict=True))), shape=(len(demands), last + 1)
    )
    cost = np.zeros(last + 1)
    cost[last] = 1.0
    done = linprog(
        cost,
        A_ub=above.tocsr(),
        b_ub=np.zeros(len(rows)),
        A_eq=equal.tocsr(),
        b_eq=[amount / scale for _, amount in demands],
        method="highs",
    )
    return float(done.fun)


def least_nic_bytes(transfer: Transfer) -> int:
    """Bytes that must enter nodes: each class once into each node that lacks it."""
    nodes = transfer.nodes
    return sum(
        one.num_bytes
        * len({nodes[r] for r in one.receivers} - {nodes[rank] for rank in one.holders})
        for one in transfer.classes
    )


def two_stages_s(transfer: Transfer) -> float:
    """Seconds of the paper's order: first inside nodes, then pairs of nodes one after the other.

    Who sends is its rule too: a holder on the receiver's node, else the lowest.
    """
    nodes, links = transfer.nodes, transfer.links
    inside: Counter[int] = Counter()
    across: dict[tuple[int, int], int] = defaultdict(int)
    for one in transfer.classes:
        for rank in one.receivers:
            local = next((h for h in one.holders if nodes[h] == nodes[rank]), None)
            if local is not None:
                inside[local] += one.num_bytes
            else:
                across[nodes[one.holders[0]], nodes[rank]] += one.num_bytes
    first = max(inside.values(), default=0) / links.port_bytes_per_s
    return first + sum(size / links.nic_bytes_per_s[pair[0]] for pair, size in across.items())
