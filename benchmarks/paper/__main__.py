"""Plan and draw the paper's evaluation: `python -m benchmarks.paper plans|draw`.

`plans` fills what the store lacks (`make paper-plans`), `draw` writes the pages (`make paper`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.paper.cells import FIGURES, cells_of
from benchmarks.paper.measured import (
    ablations,
    efficiency,
    growth,
    growth_on_kubelets,
    learning,
    reconfiguration,
    sweep,
    table1,
)
from benchmarks.paper.pages import FOLDER_OF_PAGES, draw
from benchmarks.paper.run import plan_cells
from benchmarks.paper.store import FOLDER, read_measured, write_measured
from planner.errors import HeddleError, InvalidRequest
from planner.wording import did_you_mean

BUDGET_S = 20.0
MEASURES = {
    "table1": table1.measure,
    "sweep": sweep.measure,
    "efficiency": efficiency.measure,
    "flat-rl": learning.measure,
    "ablations": ablations.measure,
    "growth-trained": growth.measure,
    "growth-kubelets": growth_on_kubelets.measure,
    "reconfiguration": reconfiguration.measure,
}


def read_options(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Plan and draw the paper's evaluation.")
    parser.add_argument("part", choices=("plans", "draw"))
    parser.add_argument("--figures", default=",".join(FIGURES), help="for example uniform,experts")
    parser.add_argument(
        "--beside", default=",".join(MEASURES), help="further measurements, for example sweep"
    )
    parser.add_argument("--planners", default="", help="some alone, for example metis,heddle-3")
    parser.add_argument(
        "--budget-s", type=float, default=BUDGET_S, help="of each baseline a cell, of the processor"
    )
    parser.add_argument("--again", action="store_true", help="plan what is stored too")
    parser.add_argument("--plans", type=Path, default=FOLDER, help="folder of the stored plans")
    parser.add_argument("--output", type=Path, default=FOLDER_OF_PAGES, help="folder of the pages")
    return parser.parse_args(given)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def measure(name: str, folder: Path, *, again: bool) -> None:
    """One of what stands beside the cells, unless it is stored.

    Raises:
        InvalidRequest: there is no such thing.
    """
    if name not in MEASURES:
        raise InvalidRequest(
            f"{name!r} is unknown{did_you_mean(name, MEASURES)}; beside the cells there are "
            f"{', '.join(MEASURES)}",
            field="beside",
            code="Unknown",
        )
    if again or read_measured(name, folder) is None:
        say(f"measure {name}")
        write_measured(name, MEASURES[name](), folder)


def main(given: list[str] | None = None) -> int:
    """The exit status: 2 after a mistake of the user."""
    options = read_options(given)
    try:
        if options.part == "plans":
            figures = options.figures.split(",") if options.figures else ()
            cells = [cell for name in figures for cell in cells_of(name)]
            plan_cells(
                cells,
                options.budget_s,
                say,
                options.plans,
                planners=options.planners.split(",") if options.planners else (),
                again=options.again,
            )
            for name in options.beside.split(",") if options.beside else ():
                measure(name, options.plans, again=options.again)
        else:
            for path in draw(options.output, options.plans):
                say(f"wrote {path.name}")
    except HeddleError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
