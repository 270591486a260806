"""Which layers each GPU holds before and after a plan, as text; pure, so that both views share it.

Legend: layer 0 is the embedding (E), 1..L the blocks, L + 1 the head (H).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heddle_operator.state.snapshot import ObservedNode
from planner.model.shape import ModelShape
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap, Seat


@dataclass(frozen=True, slots=True)
class Cell:
    """One GPU.

    Attributes:
        node: its node.
        gpu: its index on the node.
        before: what it held under the plan before; "" for nothing.
        now: what it holds.
        has_moved: whether it got state that it did not hold before.
    """

    node: str
    gpu: int
    before: str
    now: str
    has_moved: bool


def cells(
    model: ModelShape, nodes: Sequence[ObservedNode], plan: Plan | None, before: Plan | None
) -> tuple[Cell, ...]:
    """All GPUs of all nodes in order, those of nodes that are gone left out."""
    now, then = _seats(plan), _seats(before)
    found = []
    for node in nodes:
        for gpu in range(node.gpus):
            seat, old = now.get((node.name, gpu)), then.get((node.name, gpu))
            has_moved = before is not None and seat is not None and not _covers(old, seat)
            found.append(
                Cell(node.name, gpu, describe(model, old), describe(model, seat), has_moved)
            )
    return tuple(found)


def describe(model: ModelShape, seat: Seat | None) -> str:
    """`E1-3 1/2`: embedding and blocks 1 to 3, the first half of each by TP."""
    if seat is None:
        return ""
    layers = list(seat.layers)
    blocks = [layer for layer in layers if 0 < layer <= model.layers]
    text = "E" if 0 in layers else ""
    if blocks:
        text += f"{blocks[0]}" if len(blocks) == 1 else f"{blocks[0]}-{blocks[-1]}"
    text += "H" if model.layers + 1 in layers else ""
    return f"{text} {seat.slot + 1}/{seat.tp}" if seat.tp > 1 else text


def sparkline(values: Sequence[float], width: int, low: float, high: float) -> str:
    """Values as a line of blocks; each column is the mean of its share."""
    bars = "▁▂▃▄▅▆▇█"
    if not values:
        return ""
    width = min(width, len(values))
    columns = []
    for column in range(width):
        first, last = column * len(values) // width, (column + 1) * len(values) // width
        share = values[first:last]
        mean = sum(share) / len(share)
        level = (mean - low) / (high - low) if high > low else 0.0
        columns.append(bars[min(len(bars) - 1, max(0, int(level * len(bars))))])
    return "".join(columns)


def _seats(plan: Plan | None) -> dict[tuple[str, int], Seat]:
    return {(seat.node, seat.gpu): seat for seat in RankMap.of(plan).seats} if plan else {}


def _covers(old: Seat | None, new: Seat) -> bool:
    """Whether what the old seat held contains what the new one needs."""
    if old is None or not set(new.layers) <= set(old.layers):
        return False
    return (
        old.slot / old.tp <= new.slot / new.tp
        and (new.slot + 1) / new.tp <= (old.slot + 1) / old.tp
    )
