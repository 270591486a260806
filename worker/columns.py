"""Rows of equal keys by column, and directives written so.

Ranks and stages of thousands of GPUs are alike in most columns, so that compression takes them to a
tenth of the bytes of the rows.
Invariant: what was written by column is read back equal.
Source: column stores (Parquet, Arrow).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]


def by_column(rows: Iterable[Row]) -> dict[str, list[Any]]:
    """{key: its values}, of rows that all have the same keys."""
    found: dict[str, list[Any]] = {}
    for index, row in enumerate(rows):
        if index and row.keys() != found.keys():
            raise ValueError(f"row {index} has the keys {sorted(row)}, not {sorted(found)}")
        for key, value in row.items():
            found.setdefault(key, []).append(value)
    return found


def by_row(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of columns.

    Raises:
        ValueError: a column is no list, or not as long as the others.
    """
    if not all(isinstance(column, list) for column in columns.values()):
        raise ValueError("a column is no list")
    if len({len(column) for column in columns.values()}) > 1:
        raise ValueError("the columns have different lengths")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def plan_by_column(plan: Row) -> dict[str, Any]:
    """A plan (`Plan.to_json`) with its placement by column."""
    return {**plan, "placement": by_column(plan["placement"])}


def plan_by_row(plan: Any) -> Any:
    """A plan with its placement by row, however it is written; what is no plan stays so.

    Raises:
        ValueError: see `by_row`.
    """
    if not isinstance(plan, Mapping) or not isinstance(plan.get("placement"), Mapping):
        return plan
    return {**plan, "placement": by_row(plan["placement"])}


def directive_by_row(directive: Row) -> dict[str, Any]:
    """A directive with its plans and members by row, however it is written.

    Raises:
        ValueError: see `by_row`.
    """
    found = {**directive, "plan": plan_by_row(directive.get("plan"))}
    layouts, members = directive.get("layouts"), directive.get("members")
    if isinstance(layouts, Mapping):
        found["layouts"] = {epoch: plan_by_row(layout) for epoch, layout in layouts.items()}
    if isinstance(members, Mapping):
        found["members"] = by_row(members)
    return found


def compressed_directive(directive: Row) -> bytes:
    """A directive's JSON by column, for an agent that says `reads_columns`; gzip."""
    layouts = {epoch: plan_by_column(layout) for epoch, layout in directive["layouts"].items()}
    columns = {
        "plan": plan_by_column(directive["plan"]),
        "layouts": layouts,
        "members": by_column(directive["members"]),
    }
    return compressed({**directive, **columns})


def compressed(data: object) -> bytes:
    """Plain data as JSON, gzip; equal data are equal bytes."""
    return gzip.compress(json.dumps(data, separators=(",", ":")).encode(), 6, mtime=0)
