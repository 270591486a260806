"""Runs a demo and shows it: live on a terminal, as lines elsewhere; ends it cleanly on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.live import Live

from heddle_operator.demo.keys import LEGEND, event_for, keys
from heddle_operator.demo.run import DemoOptions, DemoRun
from heddle_operator.demo.view import LiveView

REFRESH_PER_S = 4


async def show(
    options: DemoOptions, directory: Path, is_live: bool, interactive: bool, is_quiet: bool
) -> DemoRun:
    """Run to the end of the script, or of the steps, or until q; answers the closed run."""
    begin_s = time.monotonic()
    view: LiveView | None = None

    def say(line: str) -> None:
        if view is not None:
            view.say(line)
        else:
            stamp = f"{time.monotonic() - begin_s:6.1f} s  {line}\n"
            (sys.stderr if is_quiet else sys.stdout).write(stamp)
            (sys.stderr if is_quiet else sys.stdout).flush()

    run = DemoRun(options, directory, say)
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        with contextlib.ExitStack() as stack:
            training = asyncio.ensure_future(run.train())
            if interactive:
                stack.enter_context(_keys(run, training))
            if is_live:
                view = LiveView(run, LEGEND if interactive else "")
                stack.enter_context(_live(view))
            try:
                await training
            except asyncio.CancelledError:
                training.cancel()
                if not run.has_quit:
                    raise
            await run.compare()
            if view is not None:
                await asyncio.sleep(2 / REFRESH_PER_S)
    finally:
        await asyncio.shield(run.close())
    return run


def _live(view: LiveView) -> Live:
    return Live(view, console=Console(), refresh_per_second=REFRESH_PER_S, screen=False)


@contextlib.contextmanager
def _keys(run: DemoRun, training: asyncio.Future[None]) -> Iterator[None]:
    added = 0

    def on_key(key: str) -> None:
        nonlocal added
        if key == "q":
            run.has_quit = True
            training.cancel()
            return
        event = event_for(key, run.recorder.step, dict(run.cluster.nodes), added)
        if event is not None:
            added += event.verb == "join"
            run.apply_event(event)

    with keys(on_key):
        yield
