"""The control channel between an agent and one of its processes: messages over a socket pair.

The child may send from two threads (training, and forming the next epoch's transport group), and
looks for messages between steps without waiting.
"""

from __future__ import annotations

import select
import socket
import threading

from worker.control.messages import TO_PROCESS, Message, ToProcess

BEAT_S = 1.0  # between two heartbeats of a process to its agent


class Channel:
    """The child's end."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._socket = connection
        self._lock = threading.Lock()
        self._buffer = b""

    def send(self, message: Message) -> None:
        """Send one message; if the agent is gone, so is the reason to live: SystemExit."""
        line = message.to_line()
        try:
            with self._lock:
                self._socket.sendall(line)
        except OSError:
            raise SystemExit(0) from None

    def receive(self, timeout_s: float | None) -> ToProcess | None:
        """The next message, or None if none came in time (None waits for ever, 0 only looks).

        Raises:
            SystemExit: the agent closed the channel.
        """
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._socket], [], [], timeout_s)
            if not ready:
                return None
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionError:  # it left words of this process unread, as one that is killed
                data = b""
            if not data:
                raise SystemExit(0)
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return TO_PROCESS.validate_json(line)
