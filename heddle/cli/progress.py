"""The bar that says how far a long command is: on stderr, and on a terminal only."""

from __future__ import annotations

from rich import progress
from rich.console import Console


def progress_bar() -> progress.Progress:
    """A bar for the tasks that are added to it; it goes when the command is through."""
    return _bar(progress.MofNCompleteColumn())


def bytes_bar() -> progress.Progress:
    """A bar for tasks that are counted in bytes, with their rate."""
    return _bar(progress.DownloadColumn(), progress.TransferSpeedColumn())


def _bar(*counts: progress.ProgressColumn) -> progress.Progress:
    console = Console(stderr=True)
    return progress.Progress(
        progress.BarColumn(),
        *counts,
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
