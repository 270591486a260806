"""The rank's end of its channel, kept by a thread of its own.

The training thread hears directives between steps, and may wait in gloo for minutes.  So another
thread reads the channel, tells the agent every second that this process lives and what it does, and
does at once what cannot wait: when a peer is lost in silence, it cuts the connections that the
training thread may be waiting for.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable

from worker.control.activity import Activity
from worker.control.channel import BEAT_S, Channel
from worker.control.messages import Beat, ToProcess


class Mailbox:
    """Messages from the agent, in order; and heartbeats to it.

    Args:
        channel: to the agent.
        activity: what the heartbeats say.
        on_urgent: called in the mailbox's thread with each message as it comes.
    """

    def __init__(
        self, channel: Channel, activity: Activity, on_urgent: Callable[[ToProcess], None]
    ) -> None:
        self._channel, self._activity, self._on_urgent = channel, activity, on_urgent
        self._messages: queue.SimpleQueue[ToProcess | None] = queue.SimpleQueue()
        self._is_open = True
        threading.Thread(target=self._keep, name="mailbox", daemon=True).start()

    def next(self, patience_s: float | None) -> ToProcess | None:
        """The next message, or None if none came in time; None waits for ever, 0 only looks.

        Raises:
            SystemExit: the agent is gone.
        """
        if not self._is_open:
            raise SystemExit(0)
        try:
            message = self._messages.get(patience_s != 0, patience_s or None)
        except queue.Empty:
            return None
        if message is None:
            self._is_open = False
            raise SystemExit(0)
        return message

    def _keep(self) -> None:
        with contextlib.suppress(SystemExit):  # the agent is gone
            beat_at_s: float | None = time.monotonic()
            while True:
                left_s = None if beat_at_s is None else max(0.0, beat_at_s - time.monotonic())
                message = self._channel.receive(left_s)
                if message is not None:
                    self._on_urgent(message)
                    self._messages.put(message)
                if beat_at_s is not None and time.monotonic() >= beat_at_s:
                    beat_at_s = self._beat()
        self._messages.put(None)

    def _beat(self) -> float | None:
        """Send a heartbeat; when the next one is due, or None once nobody hears it."""
        now = self._activity
        try:
            self._channel.send(Beat(progress=now.progress, part=now.part, waiting=now.waiting))
        except SystemExit:  # words that the agent said before it went are still to be read
            return None
        return time.monotonic() + BEAT_S
