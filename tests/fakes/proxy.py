"""A TCP proxy on loopback that can be cut, or fall silent and hold what it has for later."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import yaml


class Proxy:
    """Passes bytes on to a port, as long as it is let."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self._target = port
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Close all connections and listen no more."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()

    def hang(self) -> None:
        """Pass nothing on, in either direction; connections stay open."""
        self._flows.clear()

    def go_on(self) -> None:
        """Pass on what was held, and all that comes."""
        self._flows.set()

    def kubeconfig(self, original: Path, folder: Path) -> Path:
        """A kubeconfig that leads through this proxy."""
        config = yaml.safe_load(original.read_text())
        for row in config["clusters"]:
            scheme = row["cluster"]["server"].partition("://")[0]
            row["cluster"]["server"] = f"{scheme}://127.0.0.1:{self.port}"
        path = folder / f"proxied-{self.port}"
        path.write_text(yaml.safe_dump(config))
        return path

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(back)
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
            self._writers.discard(back)
        self._writers.discard(writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._flows.wait()
                if reader.exception() is not None:  # a reset takes with it what was sent before
                    break
                writer.write(data)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def a_proxy(port: int) -> AsyncIterator[Proxy]:
    """One that listens."""
    proxy = Proxy(port)
    await proxy.start()
    try:
        yield proxy
    finally:
        proxy.go_on()
        await proxy.cut()
