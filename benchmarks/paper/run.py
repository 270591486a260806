"""Plan every cell with every planner: resumable, with progress and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.paper.cells import Cell
from benchmarks.paper.planners import NAMES, budget_of, plan_cell, planners_of, searches
from benchmarks.paper.store import FOLDER, is_kept, read_cell, stamped, write_cell
from planner.errors import InvalidRequest
from planner.wording import did_you_mean

Say = Callable[[str], None]


def left_to_plan(
    cells: Sequence[Cell],
    budget_s: float,
    folder: Path = FOLDER,
    *,
    planners: Sequence[str] = (),
    again: bool = False,
) -> list[tuple[Cell, str]]:
    """(cell, search) that the store does not hold with as many seconds.

    Args:
        cells: to plan.
        budget_s: seconds of each baseline.
        folder: of the store.
        planners: whose searches are wanted; all unless stated.
        again: whether it counts as if the store held nothing.

    Raises:
        InvalidRequest: there is no such planner.
    """
    for name in planners:
        if name not in NAMES:
            raise InvalidRequest(
                f"planner {name!r} is unknown{did_you_mean(name, NAMES)}; the planners are "
                f"{', '.join(NAMES)}",
                field="planners",
                code="Unknown",
            )
    found = []
    for cell in cells:
        rows = {} if again else read_cell(cell, folder)
        wanted = [name for name in planners_of(cell) if not planners or name in planners]
        missing = [
            searches(name)
            for name in wanted
            if not is_kept(rows.get(name), budget_of(name, budget_s))
        ]
        found += [(cell, name) for name in dict.fromkeys(missing)]
    return found


def plan_cells(
    cells: Sequence[Cell],
    budget_s: float,
    say: Say,
    folder: Path = FOLDER,
    *,
    planners: Sequence[str] = (),
    again: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Plan what is left; each row is stored as soon as it is there."""
    asked = left_to_plan(cells, budget_s, folder, planners=planners, again=again)
    begun_s = clock()
    for done, (cell, name) in enumerate(asked):
        passed_s = clock() - begun_s
        left_s = passed_s / done * (len(asked) - done) if done else None
        rest = "" if left_s is None else f", about {left_s / 60:.0f} min left"
        say(f"[{done + 1}/{len(asked)}] {cell.name}: {name}{rest}")
        rows = plan_cell(cell, name, budget_of(name, budget_s))
        known = read_cell(cell, folder)
        write_cell(cell, known | {k: stamped(row) for k, row in rows.items()}, folder)
    say(f"{len(asked)} searches done, the rest was stored")
