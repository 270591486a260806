"""How far the measurement of this machine is: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from heddle.cli.progress import progress_bar

LINE_S = 5.0  # between two lines
Progress = Callable[[int, int, str], None]


class MeasuringLines:
    """A line at the start, then one every few seconds.

    Args:
        title: what is measured, and how often that is done.
        say: gets each line.
        clock: seconds, from any moment on.
    """

    def __init__(
        self, title: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title = title
        self._say = say
        self._clock = clock
        self._said_s: float | None = None

    def take(self, done: int, parts: int, what: str) -> None:
        """So many parts are done, and this comes next."""
        now_s = self._clock()
        if self._said_s is None:
            self._say(self._title)
        elif now_s - self._said_s < LINE_S:
            return
        else:
            self._say(f"{self._title}: {done} of {parts}, {what}")
        self._said_s = now_s


@contextlib.contextmanager
def measuring_progress(
    title: str, is_headless: bool, say: Callable[[str], None]
) -> Iterator[Progress]:
    """Receiver of the measurement's progress.

    Args:
        title: what is measured, and how often that is done.
        is_headless: lines, whatever the terminal.
        say: gets each line.
    """
    with progress_bar() as bar:
        if is_headless or bar.disable:
            bar.stop()
            yield MeasuringLines(title, say).take
            return
        task = bar.add_task(title, total=None)

        def progress(done: int, parts: int, what: str) -> None:
            bar.update(task, completed=done, total=parts, description=f"{title}: {what}")

        yield progress
