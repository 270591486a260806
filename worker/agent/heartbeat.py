"""Alive, silent or stuck: what the heartbeats of a rank say.

A rank beats once a second from a thread of its own.  One that has beaten and is then silent is
lost: its machine, its kernel or all of its threads stand still.  One that beats, trains, waits for
nobody and makes no progress is stuck.  One that is slow makes progress, and is left alone.  One
that reads data waits for a disk, which may take a file server's failover.
"""

from __future__ import annotations

from dataclasses import dataclass

from worker.contract import READING, READING_S

STEPS_TO_STUCK = 10  # as many steps' time without any progress
FIRST_STEP = 10  # times as long: data are shuffled and read, and nothing of that is progress


@dataclass(slots=True, kw_only=True)
class Heartbeat:
    """The heartbeats of one rank, as time passes.

    Attributes:
        has_beaten: a rank that never has is not judged.
        silent_s: seconds since the newest heartbeat.
        still_s: seconds for which it has trained without progress while nobody held it up.
        part: what it does now.
        progress: grows with each micro-batch, message and part that it has done.
        waiting: it waits for its peers.
    """

    has_beaten: bool = False
    silent_s: float = 0.0
    still_s: float = 0.0
    part: str = ""
    progress: int = 0
    waiting: bool = False

    def pass_time(self, seconds: float) -> None:
        """So many seconds have passed, as far as this process has run to see them."""
        self.silent_s += seconds

    def beat(self, progress: int, part: str, *, waiting: bool, trains: bool) -> None:
        """A heartbeat came; `trains` says whether the rank is in a phase that must progress."""
        is_still = trains and not waiting and self.has_beaten and progress == self.progress
        self.still_s = self.still_s + self.silent_s if is_still else 0.0
        self.has_beaten, self.silent_s = True, 0.0
        self.progress, self.part, self.waiting = progress, part, waiting

    def is_silent(self, peer_timeout_s: float) -> bool:
        """Whether it is given up."""
        return self.has_beaten and self.silent_s > peer_timeout_s

    def limit_s(self, stuck_s: float, step_s: float, has_trained: bool) -> float:
        """How long it may make no progress.

        Args:
            stuck_s: without progress, at least.
            step_s: what a step takes.
            has_trained: whether its process has trained a step.
        """
        limit_s = max(stuck_s, STEPS_TO_STUCK * step_s)
        limit_s = limit_s if has_trained else FIRST_STEP * limit_s
        return max(limit_s, READING_S) if self.part == READING else limit_s

    def is_stuck(self, stuck_s: float, step_s: float, has_trained: bool) -> bool:
        """Whether it will not go on; see `limit_s`."""
        return self.still_s > self.limit_s(stuck_s, step_s, has_trained)
