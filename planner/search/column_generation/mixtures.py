"""What a mix of columns is made of, as arrays: rows of room, prices, messages, bundles.

Invariant: a TP group counts in the rows of all smaller degrees of its type, as packing needs it.
Source: research on plan search (column generation).   Legend: O options, R rows, N columns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.estimator.tables import Floats, Ints, Tables

Bools = NDArray[np.bool_]


def speeds_of(t: Tables) -> tuple[Floats, Floats]:
    """[T] samples a second that a GPU trains of one block, and all GPUs of the class together."""
    one, all_gpus = np.zeros(len(t.node_gpus)), np.zeros(len(t.node_gpus))
    for option, kind in enumerate(t.option_type):
        if is_lowest(t, option):
            one[kind] = (t.sizes / t.block_s[option, :, :, 1].min(axis=1)).max()
            all_gpus[kind] = one[kind] * t.room[option]
    return one, all_gpus


def first_prices(t: Tables, allowed: Bools) -> Floats:
    """[O] prices in proportion to how fast a type is; all GPUs together cost the batch."""
    one, all_gpus = speeds_of(t)
    total = all_gpus[allowed].sum()
    prices = t.option_tp * one[t.option_type] * (t.batch / max(total, 1e-300))
    return np.where(allowed[t.option_type], prices, np.inf)


def is_lowest(t: Tables, option: int) -> bool:
    """Whether it is the smallest TP degree of its type, whose row counts all GPUs."""
    return option == 0 or bool(t.option_type[option - 1] != t.option_type[option])


def binding_rows(t: Tables) -> Ints:
    """Options whose room is less than what the next smaller TP degree leaves anyway."""
    return np.array(
        [
            option
            for option in range(len(t.room))
            if is_lowest(t, option) or t.room[option] < t.room[option - 1]
        ]
    )


def option_prices(t: Tables, rows: Ints, duals: Floats, allowed: Bools) -> Floats:
    """[O] price of a TP group: it counts in the rows of all degrees up to its own."""
    prices = np.full(len(t.option_tp), np.inf)
    for option, kind in enumerate(t.option_type):
        if allowed[kind]:
            counts = (t.option_type[rows] == kind) & (rows <= option)
            prices[option] = t.option_tp[option] * duals[counts].sum()
    return prices


def best_of_each_use(worth: Floats, uses: Floats) -> Ints:
    """Of columns that use the same GPUs the one that is worth most."""
    best: dict[bytes, int] = {}
    for column in np.argsort(-worth, kind="stable").tolist():
        if worth[column] <= 0:
            break
        best.setdefault(uses[:, column].tobytes(), column)
    return np.array(list(best.values()), np.int64)


def edge_seconds(t: Tables) -> Floats:
    """[Z, T, T] what a message between neighbouring stages takes, by and large.

    Between nodes the mean over TP degrees, half of the GPUs of a node sending at once, or all where
    a node takes one stage of many replicas; within a class of nodes as many messages leave a node
    as there are nodes to a pipeline of TP 1.
    """
    types = len(t.node_gpus)
    edge_s = np.zeros((len(t.sizes), types, types))
    sending = t.node_gpus if t.spreads_experts else (t.node_gpus + 1) // 2
    port_s = t.port_s[np.arange(len(t.option_type)), :, sending[t.option_type]]
    for one in range(types):
        for other in range(types):
            ends = port_s[t.option_type == one][:, None], port_s[t.option_type == other][None, :]
            edge_s[:, one, other] = np.maximum(*ends).mean(axis=(0, 1))
    if not t.spreads_experts:
        for kind, gpus in enumerate(t.node_gpus):
            edge_s[:, kind, kind] /= gpus
            edge_s[:, kind, kind] += t.inside_s[kind] * (1 - 1 / gpus)
    return edge_s


def bundles(t: Tables) -> Ints:
    """How many replicas the tilings of experts can ask for at once: powers of two."""
    found = [1]
    if (t.ways > t.option_tp[:, None]).any():
        most = min(int((t.ways / t.option_tp[:, None]).max()), int(t.room.max()), t.batch)
        while found[-1] * 2 <= most:
            found.append(found[-1] * 2)
    return np.array(found)


def money_row(t: Tables, rows: Ints) -> Floats:
    """[R] money per hour of a GPU in the row that counts all of a type."""
    counts_all = np.array([is_lowest(t, row) for row in rows])
    return np.asarray(t.gpu_price[t.option_type[rows]] * counts_all)
