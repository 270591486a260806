"""The options that say how hard to look for a plan: for all commands that search.

Invariant: an option means the same to each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from planner.request import DEFAULT_ROLLOUTS, MOST_THREADS

Command = TypeVar("Command", bound=Callable[..., None])

_OPTIONS = (
    click.option(
        "--rollouts",
        default=DEFAULT_ROLLOUTS,
        show_default=True,
        type=click.IntRange(1),
        help="Plans that methods policy and random build; the best counts.",
    ),
    click.option("--policy", type=click.Path(path_type=Path), help="Folder of a trained policy."),
    click.option(
        "--budget-s",
        type=click.FloatRange(0, min_open=True),
        help="Stop a search after so many seconds.  [default: 2]",
    ),
    click.option(
        "--budget-evaluations",
        type=click.IntRange(1),
        help="Stop after so many priced plans instead.",
    ),
    click.option(
        "--threads",
        type=click.IntRange(1, MOST_THREADS),
        help="Search on so many cores, where seconds end it.  [default: all, at most 4]",
    ),
)


def effort_options(command: Command) -> Command:
    """Give a command `rollouts`, `policy`, `budget_s`, `budget_evaluations` and `threads`."""
    for option in reversed(_OPTIONS):  # the last decorator comes first in the help
        command = option(command)
    return command
