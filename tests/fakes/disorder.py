"""An HTTP proxy before an API server: late, refusing, lying, silent, or cutting watches off."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web
from kubernetes.aio import config
from kubernetes.aio.client import Configuration

_OF_ONE_HOP = ("host", "content-length", "transfer-encoding", "connection", "content-encoding")


@dataclass(kw_only=True)
class Faults:
    """Faults of the answers from now on.

    Attributes:
        late_s: seconds before each request is passed on.
        refusal: status and headers of each answer; None: the server's own.
        lie: body of each answer that is no watch, with status 200; None: the server's own.
        watch_s: each watch ends after so many seconds; None: when the server ends it.
        gone: each watch says 410 at once.
        is_silent: nothing is answered, and connections stay open.
    """

    late_s: float = 0.0
    refusal: tuple[int, dict[str, str]] | None = None
    lie: str | None = None
    watch_s: float | None = None
    gone: bool = False
    is_silent: bool = False


@dataclass(kw_only=True)
class Disorder:
    """The proxy.

    Attributes:
        faults: at present.
        requests: how many came, by method and path; a watch has the method WATCH.
    """

    server: str
    verified: ssl.SSLContext
    faults: Faults = field(default_factory=Faults)
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    port: int = 0
    _watches: set[asyncio.Task[None]] = field(default_factory=set)

    def fail(self, **faults: Any) -> None:
        """Have these faults and no other ones from now on; watches that are open are cut off."""
        self.faults = Faults(**faults)
        for watch in self._watches:
            watch.cancel()

    @property
    def total(self) -> int:
        """Number of all requests."""
        return self.requests.total()

    def kubeconfig(self, folder: Path) -> Path:
        """A kubeconfig that leads through this proxy, which has the right itself."""
        named = {"cluster": "disorder", "user": "nobody"}
        path = folder / f"disorder-{self.port}"
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "disorder",
            "clusters": [
                {"name": "disorder", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}
            ],
            "users": [{"name": "nobody", "user": {"token": "none"}}],
            "contexts": [{"name": "disorder", "context": named}],
        }
        path.write_text(yaml.safe_dump(body))
        return path

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Pass a request on, with the faults of now."""
        is_watch = request.query.get("watch") in ("true", "1")
        self.requests["WATCH" if is_watch else request.method, request.path] += 1
        faults = self.faults
        if faults.is_silent:
            await asyncio.Event().wait()  # until the connection ends
        await asyncio.sleep(faults.late_s)
        if faults.refusal is not None:
            status, headers = faults.refusal
            return web.json_response(_status(status), status=status, headers=headers)
        if is_watch and faults.gone:
            error = {"type": "ERROR", "object": _status(410)}
            return web.Response(text=json.dumps(error) + "\n", content_type="application/json")
        if faults.lie is not None and not is_watch:
            return web.Response(text=faults.lie, content_type="application/json")
        return await self._pass(request, is_watch)

    async def _pass(self, request: web.Request, is_watch: bool) -> web.StreamResponse:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _OF_ONE_HOP}
        headers.pop("Authorization", None)
        async with (
            aiohttp.ClientSession(auto_decompress=False) as client,
            client.request(
                request.method,
                f"{self.server}{request.raw_path}",
                headers={**headers, "Accept-Encoding": "identity"},
                data=await request.read() or None,
                ssl=self.verified,
                timeout=aiohttp.ClientTimeout(total=None),
            ) as found,
        ):
            kept = {k: v for k, v in found.headers.items() if k.lower() not in _OF_ONE_HOP}
            answer = web.StreamResponse(status=found.status, headers=kept)
            await answer.prepare(request)
            copying = asyncio.create_task(_copy(found, answer))
            if is_watch:
                self._watches.add(copying)
                copying.add_done_callback(self._watches.discard)
            try:
                await asyncio.wait({copying}, timeout=self.faults.watch_s if is_watch else None)
            finally:
                copying.cancel()
            await answer.write_eof()
            return answer


async def _copy(found: aiohttp.ClientResponse, answer: web.StreamResponse) -> None:
    async for piece in found.content.iter_any():
        await answer.write(piece)


def _status(code: int) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "message": f"disorder {code}",
        "code": code,
    }


@contextlib.asynccontextmanager
async def a_disorder(kubeconfig: Path) -> AsyncIterator[Disorder]:
    """One that listens, before the server of a kubeconfig."""
    found = Configuration()
    await config.load_kube_config(config_file=str(kubeconfig), client_configuration=found)
    verified = ssl.create_default_context(cafile=found.ssl_ca_cert)
    if found.cert_file:
        verified.load_cert_chain(found.cert_file, found.key_file)
    disorder = Disorder(server=found.host, verified=verified)
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", disorder.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        disorder.port = runner.addresses[0][1]
        yield disorder
    finally:
        await runner.cleanup()
