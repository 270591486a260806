"""Plan and draw the paper's evaluation: `python -m benchmarks.paper plans|draw`.

`plans` fills what the store lacks (`make paper-plans`), `draw` writes the pages (`make paper`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.paper.cells import FIGURES, cells_of
from benchmarks.paper.pages import FOLDER_OF_PAGES, draw
from benchmarks.paper.run import plan_cells
from benchmarks.paper.store import FOLDER
from planner.errors import HeddleError

BUDGET_S = 20.0


def read_options(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Plan and draw the paper's evaluation.")
    parser.add_argument("part", choices=("plans", "draw"))
    parser.add_argument("--figures", default=",".join(FIGURES), help="for example uniform,experts")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="of each baseline a cell")
    parser.add_argument("--again", action="store_true", help="plan what is stored too")
    parser.add_argument("--plans", type=Path, default=FOLDER, help="folder of the stored plans")
    parser.add_argument("--output", type=Path, default=FOLDER_OF_PAGES, help="folder of the pages")
    return parser.parse_args(given)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(given: list[str] | None = None) -> int:
    """The exit status: 2 after a mistake of the user."""
    options = read_options(given)
    try:
        if options.part == "plans":
            cells = [c for name in options.figures.split(",") for c in cells_of(name)]
            plan_cells(cells, options.budget_s, say, options.plans, again=options.again)
        else:
            for path in draw(options.output, options.plans):
                say(f"wrote {path.name}")
    except HeddleError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
