"""A store that serves in a thread, as it does in its process."""

from __future__ import annotations

import contextlib
import json
import socket
import threading

from worker.control.secret import store_key
from worker.control.store import main
from worker.control.store_client import connect

KEY = store_key("the job's token")


class Served:
    """A store of the key KEY."""

    def __init__(self, host="127.0.0.1"):
        self.agent, child = socket.socketpair()
        self.thread = threading.Thread(target=self._serve, args=(child, host), daemon=True)
        self.thread.start()
        with self.agent.makefile("rb") as lines:
            self.address = json.loads(next(lines))["address"]

    @staticmethod
    def _serve(child, host):
        with child, contextlib.suppress(SystemExit):
            main(child, host, KEY)

    def client(self, epoch=1, **options):
        """A client of one who knows the secret."""
        return connect(self.address, KEY, epoch, **options)

    def raw(self):
        """A connection that has proved nothing, and the store's challenge."""
        host, _, port = self.address.rpartition(":")
        stranger = socket.create_connection((host, int(port)), timeout=10)
        return stranger, stranger.recv(1 << 10)

    def end(self):
        self.agent.close()
        self.thread.join(10)
        assert not self.thread.is_alive()
