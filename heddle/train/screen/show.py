"""Shows a run, live on a terminal and as lines elsewhere, and ends it cleanly on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.live import Live

from heddle.train.checkpoints import where_it_goes_on
from heddle.train.run import LocalRun
from heddle.train.screen.keys import LEGEND, event_for, keys
from heddle.train.screen.lines import StepLines
from heddle.train.screen.output import Output
from heddle.train.screen.save_lines import SaveLines
from heddle.train.screen.unsaved_lines import UnsavedLines, end_warning
from heddle.train.screen.view import LiveView

REFRESH_PER_S = 4


Say = Callable[[str], None]
AnyRun = TypeVar("AnyRun", bound=LocalRun)


async def show(
    make: Callable[[Say], AnyRun], *, is_live: bool, interactive: bool, is_quiet: bool
) -> AnyRun:
    """Run to the last step or until q; answers the closed run.

    Args:
        make: the run, from what gets each sentence on what is going on.
        is_live: draw a screen; else a line for each sentence.
        interactive: keys change the nodes.
        is_quiet: lines go to standard error, as standard output is for programs.
    """
    begin_s = time.monotonic()
    view: LiveView | None = None
    output = Output(is_quiet)

    def say(line: str) -> None:
        if view is not None:
            view.say(line)
        else:
            output.write(f"{time.monotonic() - begin_s:6.1f} s  {line}\n")

    run = make(say)
    try:
        with contextlib.ExitStack() as stack:
            training = asyncio.ensure_future(run.train())
            stack.callback(asyncio.ensure_future(UnsavedLines(run, say).watch()).cancel)
            stack.callback(asyncio.ensure_future(SaveLines(run, say).watch()).cancel)
            _take_signals(run, training, say)
            if interactive:
                stack.enter_context(_keys(run, training, say))
            if is_live:
                view = LiveView(run, LEGEND if interactive else "")
                stack.enter_context(_live(view))
            else:
                run.on_steps = StepLines(run, say).take_steps
                if interactive:
                    say(f"keys: {LEGEND}")
            try:
                await training
            except asyncio.CancelledError:
                training.cancel()
                if not run.has_quit:
                    raise
            await run.end()
            if view is not None:
                await asyncio.sleep(2 / REFRESH_PER_S)
    finally:
        await asyncio.shield(run.close())
    return run


def _take_signals(run: LocalRun, training: asyncio.Future[None], say: Say) -> None:
    """End on Ctrl-C and SIGTERM alike where the run saves; else SIGTERM ends all at once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    if not run.SAVES:
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt, run, training, say, number)


def interrupt(
    run: LocalRun,
    training: asyncio.Future[None],
    say: Say,
    number: signal.Signals = signal.SIGINT,
) -> None:
    """Save a checkpoint and end; at once if there is nothing to keep, or the second time.

    Args:
        run: that trains.
        training: ends at once if it is cancelled.
        say: gets the sentence.
        number: of the signal; SIGINT is also the key q.
    """
    if training.done():  # all that is to be saved is saved
        return
    run.ended_by = number
    by = f"step {run.recorder.step}: {'SIGTERM: ' if number == signal.SIGTERM else ''}"
    is_saving, goes_on = run.recorder.phase == "Saving", where_it_goes_on(run.job, run.recorder)
    was_asked = run.is_suspending
    if was_asked or not run.suspend():
        if not was_asked:
            say(f"{by}the run ends at once, as there is no new state to save; {goes_on}")
        elif not is_saving:
            say(f"{by}the save is given up; {goes_on}")
        run.has_quit = True
        training.cancel()
        return
    if is_saving:
        say(end_warning(run))
        return
    say(f"{by}the training ends after this step, and its state is saved; again: end at once")


def _live(view: LiveView) -> Live:
    return Live(view, console=Console(), refresh_per_second=REFRESH_PER_S, screen=False)


@contextlib.contextmanager
def _keys(run: LocalRun, training: asyncio.Future[None], say: Say) -> Iterator[None]:
    added = 0

    def on_key(key: str) -> None:
        nonlocal added
        if key == "q" and run.SAVES:
            interrupt(run, training, say)
            return
        if key == "q":
            run.has_quit = True
            training.cancel()
            return
        nodes, joiners = run.cluster.nodes, run.options.joiners
        event = event_for(key, run.recorder.step, nodes, joiners, added)
        if event is not None:
            added += event.verb == "join"
            run.apply_event(event)

    with keys(on_key):
        yield
