"""Serving HTTP where every pod of a cluster may connect, and hold what it opened.

Invariant: there are at most `MOST_CONNECTIONS`, whoever opens them; a new one is always taken, and
the oldest of those that proved nothing goes for it.  So whoever asks is answered, however many idle
connections others hold.  A request that is not there within `IDLE_S` ends its connection.
Source: aiohttp's server (its keep-alive time-out counts from the first byte that is waited for).
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

MOST_CONNECTIONS = 256  # a quarter of the descriptors that a process has by default
IDLE_S = 10.0  # for the head of a request, and between two
LINGERING_S = 1.0  # for the rest of a body that nobody wants
ROUND = 64  # connections taken before the first of them counts: asyncio takes all that wait at once
QUEUE = 1024  # those that may wait in the kernel meanwhile
TRUSTED = web.AppKey("trusted", set)


def trust(request: web.Request) -> None:
    """The connection of this request goes for no stranger's: it proved whose it is."""
    request.config_dict[TRUSTED].add(request.protocol)


def allow_open_files() -> None:
    """Let this process open as many files as it may: each connection is one."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _Gate:
    """Takes connections for a server of aiohttp, and lets old ones go."""

    def __init__(self, server: web.Server, trusted: set[asyncio.Protocol]) -> None:
        self._server, self._trusted = server, trusted

    def __call__(self) -> asyncio.Protocol:
        """The protocol of a connection that comes."""
        held = [each for each in self._server.connections if each.transport is not None]
        self._trusted.intersection_update(held)
        if len(held) >= MOST_CONNECTIONS:
            oldest = next((each for each in held if each not in self._trusted), None)
            if oldest is not None:
                oldest.force_close()
        return self._server()


@asynccontextmanager
async def serving(
    app: web.Application, host: str | None, port: int
) -> AsyncIterator[tuple[str, int]]:
    """Serve an application; the address that it listens on.

    Args:
        app: holds a set under TRUSTED if its handlers call `trust` for who proves whose he is.
        host: address to listen on; None: all.
        port: 0 takes a free one.

    Raises:
        OSError: it cannot listen there.
    """
    allow_open_files()
    trusted: set[asyncio.Protocol] = app.get(TRUSTED, set())
    runner = web.AppRunner(
        app,
        shutdown_timeout=0.2,
        access_log=None,
        keepalive_timeout=IDLE_S,
        lingering_time=LINGERING_S,
    )
    await runner.setup()
    assert runner.server is not None
    try:
        gate = _Gate(runner.server, trusted)
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(gate, host, port, backlog=ROUND)
        try:
            for each in listener.sockets:
                with each.dup() as same:
                    same.listen(QUEUE)
            yield listener.sockets[0].getsockname()[:2]
        finally:
            listener.close()
    finally:
        await runner.cleanup()
