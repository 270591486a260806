"""The stored plans: one file a cell, with commit, date and machine of each row.

Invariants: a file is whole or it is not there, as it is written aside and renamed; a damaged one
counts as not there, and its cell is planned again.
"""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

from benchmarks.pages import commit_of_checkout, processor
from benchmarks.paper.cells import Cell
from planner.errors import InvalidRequest
from planner.wording import reason_of

FOLDER = Path(__file__).with_name("plans")
Row = dict[str, Any]


def path_of(cell: Cell, folder: Path = FOLDER) -> Path:
    """The file of a cell."""
    return folder / f"{cell.name}.json"


def read_cell(cell: Cell, folder: Path = FOLDER) -> dict[str, Row]:
    """Rows by planner; none where the file is missing, damaged, or of another composition."""
    try:
        data = json.loads(path_of(cell, folder).read_text(encoding="utf-8"))
        if (data["model"], data["composition"]) != (cell.model, cell.listed.text):
            return {}
        rows: dict[str, Row] = data["rows"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return rows


def write_cell(cell: Cell, rows: dict[str, Row], folder: Path = FOLDER) -> None:
    """All rows of a cell.

    Raises:
        InvalidRequest: the folder cannot be written.
    """
    data = {
        "model": cell.model,
        "name": cell.listed.name,
        "composition": cell.listed.text,
        "origin": cell.listed.origin,
        "rows": dict(sorted(rows.items())),
    }
    _replace(path_of(cell, folder), _by_row(data))


def _by_row(data: dict[str, Any]) -> str:
    """JSON with a line for each row."""
    head = {key: value for key, value in data.items() if key != "rows"}
    rows = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in data["rows"].items()
    )
    return json.dumps(head)[:-1] + f',\n "rows": {{\n{rows}\n }}}}\n'


def read_measured(name: str, folder: Path = FOLDER) -> dict[str, Any] | None:
    """What was measured beside the cells, with its stamp; None where it is missing or damaged."""
    try:
        data: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and "found" in data else None


def write_measured(name: str, found: dict[str, Any], folder: Path = FOLDER) -> None:
    """Keep what was measured beside the cells.

    Raises:
        InvalidRequest: the folder cannot be written.
    """
    _replace(folder / f"{name}.json", json.dumps(stamped({"found": found})) + "\n")


def _replace(path: Path, text: str) -> None:
    aside = path.with_suffix(".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        raise InvalidRequest(
            f"{path.stem} cannot be written to {path.parent}: {reason_of(error)}; give another "
            f"folder",
            code="Unwritable",
        ) from None


def stamped(row: Row) -> Row:
    """The row with today's commit, date, machine and its load: other work takes a search's time."""
    return row | {
        "commit": commit_of_checkout(),
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        "machine": f"{os.cpu_count()} cores ({processor()})",
        "load": round(os.getloadavg()[0], 1),
    }


def is_kept(row: Row | None, budget_s: float) -> bool:
    """Whether a row need not be planned again: it had as many seconds, or went through all."""
    return row is not None and (row["finished"] or row["budget_s"] >= budget_s)
