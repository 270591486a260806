"""Findings of a command: as JSON, or as a table of two columns.

Invariant: the table shows values as they are; a path like `run[1]` is no markup.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from heddle.cli.tables import aligned

_NUMBERS = ("boxes", "bytes", "moment_bytes", "parameters", "tensors", "weight_bytes")


def print_findings(about: Mapping[str, Any], output: str) -> None:
    """Print findings: as JSON, or as a table without empty rows."""
    click.echo(json.dumps(about) if output == "json" else findings_table(about))


def findings_table(about: Mapping[str, Any]) -> str:
    """A row for each finding; one with several values has a row for each of them."""
    rows = [row for key, value in about.items() for row in _rows(key, value)]
    head, *others = rows
    return aligned(head, others)


def _rows(key: str, value: Any) -> Iterator[Sequence[str]]:
    if value is None:
        return
    values = value if isinstance(value, list) else [value]
    for i, one in enumerate(values):
        yield (key.replace("_", " ") if i == 0 else "", _shown(key, one))


def _shown(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if key in _NUMBERS else str(value)
