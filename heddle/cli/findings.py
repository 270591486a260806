"""Findings of a command: as JSON, or as a table of two columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import click
from rich.console import Console
from rich.table import Table

_NUMBERS = ("bytes", "moment_bytes", "parameters", "tensors", "weight_bytes")
_SHOWN: Mapping[str, Callable[[Any], str]] = dict.fromkeys(_NUMBERS, lambda number: f"{number:,}")


def print_findings(about: Mapping[str, Any], output: str) -> None:
    """Print findings: as JSON, or as a table without empty rows."""
    if output == "json":
        click.echo(json.dumps(about))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for key, value in about.items():
        if value not in ([], None):
            table.add_row(key.replace("_", " "), _cell(value, _SHOWN.get(key, str)))
    Console(soft_wrap=True).print(table)


def _cell(value: Any, shown: Callable[[Any], str]) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else shown(value)
