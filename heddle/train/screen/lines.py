"""Lines of a run without a live view: each plan, then a line every few seconds.

Invariant: reads the recorder, changes nothing; a run that trains is never silent for longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from heddle.train.run import LocalRun
from heddle_operator.state.epoch_record import EpochRecord
from planner.cost.evaluate import cost_of
from planner.cost.simulation import simulated_seconds
from planner.wording import counted

LINE_S = 5.0  # between two lines of steps


class StepLines:
    """Says a run's plans and steps.

    Args:
        run: that trains.
        say: gets each line.
        clock: seconds, from any moment on.
    """

    def __init__(
        self,
        run: LocalRun,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._say = say
        self._clock = clock
        self._epoch = 0
        self._said_s: float | None = None

    def take_steps(self) -> None:
        """After each report with further steps: say what is due."""
        run, now_s = self._run, self._clock()
        lived = [record for record in run.recorder.epochs if run.recorder.steps_of(record.epoch)]
        if not lived:
            return
        if lived[-1].epoch != self._epoch:
            self._epoch = lived[-1].epoch
            self._say(plan_line(run, lived[-1]))
        elif self._said_s is not None and now_s - self._said_s < LINE_S:
            return
        self._said_s = now_s
        self._say(step_line(run, lived[-1]))


def plan_line(run: LocalRun, record: EpochRecord) -> str:
    """An epoch's plan and what it promises."""
    priced = cost_of(record.plan, run.job.workload, record.composition, run.profile)
    kind = "emulated" if run.options.emulates else "predicted"
    return (
        f"epoch {record.epoch} ({record.reason}) trains on {counted(record.plan.gpus, 'rank')} by "
        f"the plan {record.plan}; {simulated_seconds(priced):.3g} s a step {kind}"
    )


def step_line(run: LocalRun, record: EpochRecord) -> str:
    """The newest step of an epoch: loss, how fast, and the time that is left."""
    newest = run.recorder.steps_of(record.epoch)[-1]
    steps = run.job.spec.steps
    words = [f"step {newest.step + 1}/{steps}", f"loss {newest.loss:.4f}"]
    pace_s = run.recorder.step_s(record.epoch) or newest.step_s
    if newest.tokens and pace_s > 0:
        words.append(f"{newest.tokens / pace_s:,.0f} tokens/s")
    words.append(f"{pace_s:.3g} s a step")
    if newest.mfu is not None:
        words.append(f"MFU {100 * newest.mfu:.1f} %")
    left = steps - newest.step - 1
    if left:
        words.append(f"ETA {duration(left * pace_s)}")
    return "  ".join(words)


def duration(seconds: float) -> str:
    """`2 h 05 min`, `3 min 20 s`, `8 s`."""
    whole = max(0, round(seconds))
    minutes, rest_s = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest_s:02d} s" if minutes else f"{rest_s} s"
