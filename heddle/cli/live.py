"""The live view of `heddle demo` and `heddle train`: its options, and whether it can be shown."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import click

from heddle.cli.options import Decorator, format_option, together

NARROW = 80  # columns below which the live view does not fit


def live_options() -> Decorator[Any]:
    """Give a command `headless`, `interactive` and `output`."""
    return together(
        click.option("--headless", is_flag=True, help="Print lines instead of a live view."),
        click.option(
            "--interactive", is_flag=True, help="Add, drain and kill nodes yourself, by keys."
        ),
        format_option("text", "json prints one object with every number of the run."),
    )


def require_keys(interactive: bool) -> None:
    """Refuse a view with keys where there are none.

    Raises:
        UsageError: standard input is no terminal.
    """
    if interactive and (sys.stdin is None or not sys.stdin.isatty()):
        raise click.UsageError("--interactive reads keys, so standard input must be a terminal")


def fits_live() -> bool:
    """Whether standard output is a terminal that is wide enough."""
    wide = shutil.get_terminal_size((0, 0)).columns >= NARROW
    return wide and sys.stdout is not None and sys.stdout.isatty()
