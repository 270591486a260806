"""Whether to move to another plan: the gain must pay for the stall before the next change.

Invariant: a plan that lost GPUs is always left, and so is one without a price on the nodes that are
there now.  Otherwise the job moves only if gain >= minGainPercent and gain x expected time to the
next change > measured stall, or if the state then lives on more nodes while these are fewer than
minHolders.  What does not pay now pays once the cluster has been quiet for long enough, and the
verdict says when.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from heddle_operator.apis.spec import Elastic
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.plan_reply import PlanReply
from heddle_operator.state.reasons import MoveCause
from heddle_operator.state.settings import Settings
from planner.pauses import doubled_s
from planner.plans.plan import Plan
from planner.wording import counted

LOOK_LATER_S = 0.1  # past the moment itself, so that rounding cannot put it off once more


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a plan is adopted, how much it gains, and why.

    Attributes:
        pays_from_change_s: expected time to the next change from which the plan would be adopted;
            None where no such time would change the verdict.
        is_safer: it is adopted because minHolders comes before gain.
        cause: why the live plan must be left, whatever the gain; None where it need not.
    """

    adopts: bool
    sentence: str
    gain_percent: float = 0.0
    pays_from_change_s: float | None = None
    is_safer: bool = False
    cause: MoveCause | None = None

    @property
    def skips_cooldown(self) -> bool:
        """Whether more than gain asks for the move."""
        return self.is_safer or self.cause is not None


def judge(
    reply: PlanReply,
    current: Plan | None,
    forced: MoveCause | None,
    elastic: Elastic,
    expected_change_s: float,
    stall_s: float,
) -> Verdict:
    """Judge the planner's answer.

    Args:
        reply: with a plan.
        current: the live plan, if there is one.
        forced: why the live plan lost GPUs, or will; None if it did not.
        elastic: supplies `minGainPercent` and `minHolders`.
        expected_change_s: time until the cluster is expected to change again.
        stall_s: what a change is expected to cost.
    """
    assert reply.plan is not None, "an answer without a plan is no matter of judgement"
    if current is None:
        return Verdict(adopts=True, sentence="the job starts: it had no plan")
    if forced is None and reply.plan == current:
        return Verdict(adopts=False, sentence="the plan is kept: no better one was found")
    gain = reply.gain
    if forced is not None or gain is None:
        unpriced = f"its plan has no price on these nodes: {reply.current_problem}"
        cause = forced or MoveCause("PlanUnpriced", unpriced)
        return Verdict(adopts=True, sentence=f"the job moves: {cause.sentence}", cause=cause)
    percent = 100 * gain
    held, will_hold = reply.current_holders, reply.holders_min
    if 0 < held < min(will_hold, elastic.min_holders):
        sentence = (
            f"the job moves: every piece of the state is then on {counted(will_hold, 'node')} at "
            f"least, not on {held} as now; minHolders is {elastic.min_holders}"
        )
        return Verdict(adopts=True, sentence=sentence, gain_percent=percent, is_safer=True)
    if percent < elastic.min_gain_percent:
        return Verdict(
            adopts=False,
            sentence=f"the plan is kept: a gain of {percent:+.1f} % does not pay, minGainPercent "
            f"is {elastic.min_gain_percent:g}",
            gain_percent=percent,
        )
    if gain * expected_change_s <= stall_s:
        return Verdict(
            adopts=False,
            sentence=f"the plan is kept: a gain of {percent:+.1f} % does not pay, because a move "
            f"takes {stall_s:.2f} s and the next change is expected in {expected_change_s:.0f} s",
            gain_percent=percent,
            pays_from_change_s=stall_s / gain if gain > 0 else None,
        )
    sentence = f"the job moves: a gain of {percent:+.1f} % pays"
    return Verdict(adopts=True, sentence=sentence, gain_percent=percent)


def expected_change_s(epochs: tuple[EpochRecord, ...], now: float, settings: Settings) -> float:
    """Mean distance of the job's own changes once there are enough, else the setting.

    The time since the last change counts too: it is a distance that has not ended yet, and a
    cluster that has come to rest must not be judged by its restless hour for ever.
    """
    times = _change_times(epochs)
    if len(times) <= settings.changes_known:
        return settings.expected_change_s
    return (max(now, times[-1]) - times[0]) / (len(times) - 1)


def quiet_left_s(
    epochs: tuple[EpochRecord, ...], now: float, change_s: float, settings: Settings
) -> float | None:
    """How long the job must see no change until `expected_change_s` exceeds `change_s`.

    None while the setting is expected, which no quiet time lengthens.
    """
    times = _change_times(epochs)
    if len(times) <= settings.changes_known:
        return None
    return max(0.0, times[0] + change_s * (len(times) - 1) - now) + LOOK_LATER_S


def expected_stall_s(stalls_s: tuple[float, ...], settings: Settings) -> float:
    """Median of the measured stalls, else the expectation of the settings."""
    return median(stalls_s) if stalls_s else settings.expected_stall_s


def _change_times(epochs: tuple[EpochRecord, ...]) -> list[float]:
    return [r.closed_s for r in epochs if r.outcome == "live" and r.closed_s is not None]


def backoff_s(
    epochs: tuple[EpochRecord, ...], settings: Settings, step: int | None = None
) -> float:
    """Pause after attempts that came to nothing: none after one, then 1, 2, 4 ... seconds.

    Args:
        epochs: all of them.
        settings: limit the pause.
        step: after a loss, where the job goes on; one that began at this very step came to nothing.
    """
    failed = failed_in_a_row(epochs, step)
    return 0.0 if failed < 2 else doubled_s(1.0, failed - 1, settings.backoff_limit_s)


def failed_in_a_row(epochs: tuple[EpochRecord, ...], step: int | None = None) -> int:
    """How many of the newest attempts in a row came to nothing; see `backoff_s`."""
    return len(failed_records(epochs, step))


def failed_records(
    epochs: tuple[EpochRecord, ...], step: int | None = None
) -> tuple[EpochRecord, ...]:
    """Newest attempts in a row that came to nothing, the newest first; see `backoff_s`."""
    failed: list[EpochRecord] = []
    for record in reversed(epochs):
        if record.outcome == "aborted" and record.seal is None:
            continue  # it cost nothing, and what kept its pods from starting has its own pauses
        first = record.seal.first_step if record.seal else None
        if record.outcome == "suspended":
            break  # a user wanted it, after a step or before
        if record.outcome != "aborted" and (step is None or first != step):
            break
        failed.append(record)
    return tuple(failed)
