"""The bar that says how far a long command is: on stderr, and on a terminal only."""

from __future__ import annotations

from rich import progress
from rich.console import Console


def progress_bar() -> progress.Progress:
    """A bar for the tasks that are added to it; it goes when the command is through."""
    console = Console(stderr=True)
    return progress.Progress(
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
