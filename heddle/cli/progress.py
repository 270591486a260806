"""How far a long command is, on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich import progress
from rich.console import Console

SAY_EVERY_S = 10.0  # where there is no terminal, as in the log of a pod


def progress_bar() -> progress.Progress:
    """A bar for the tasks that are added to it; it goes when the command is through."""
    return _bar(Console(stderr=True), progress.MofNCompleteColumn())


def bytes_bar(clock: Callable[[], float] = time.monotonic) -> progress.Progress:
    """A bar for a task that is counted in bytes, with its rate; without a terminal it is lines."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return _Lines(console=console, get_time=clock, disable=True)
    return _bar(console, progress.DownloadColumn(), progress.TransferSpeedColumn())


def _bar(console: Console, *counts: progress.ProgressColumn) -> progress.Progress:
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


class _Lines(progress.Progress):
    """Prints each SAY_EVERY_S how many bytes of a task are done, and at which rate."""

    _said_s: float | None = None

    def advance(self, task_id: progress.TaskID, advance: float = 1) -> None:
        """Count bytes of a task."""
        super().advance(task_id, advance)
        now_s = self.get_time()
        if self._said_s is None:
            self._said_s = now_s
        if now_s - self._said_s < SAY_EVERY_S:
            return
        self._said_s = now_s
        task = next(task for task in self.tasks if task.id == task_id)
        total = f" of {task.total:,.0f}" if task.total else ""
        rate = f", {task.completed / task.elapsed / 1e6:,.1f} MB/s" if task.elapsed else ""
        self.console.print(
            f"{task.description}: {task.completed:,.0f}{total} bytes{rate}", highlight=False
        )
