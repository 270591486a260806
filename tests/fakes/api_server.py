"""A Kubernetes API server in memory: objects by path, over HTTP, with the refusals that matter.

It knows no kinds and starts nothing: pods run when a test says so.  What it must do as the real one
is in tests/contracts/test_api_server.py.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.fakes.api_discovery import discovery

Body = dict[str, Any]
REASONS = {403: "Forbidden", 404: "NotFound", 409: "Conflict", 422: "Invalid"}


class FakeApiServer:
    """All objects of a cluster, by path."""

    def __init__(self) -> None:
        self.objects: dict[str, Body] = {}
        self.logs: dict[tuple[str, str], str] = {}  # of (pod, container)
        self.requests: list[tuple[str, str]] = []
        # "METHOD path-suffix": status, message, details of the answer
        self.refuses: dict[str, tuple[int, str] | tuple[int, str, Body]] = {}
        self.ahead_s = 0.0  # of this machine's clock
        self.forgotten = 0  # a watch from a version below this one is refused
        self.cuts = False  # each watch ends at once, and tells nothing
        self.watch_error = 0  # code of an error that is all that a watch tells; 0: none
        self.again_s = ""  # header Retry-After of refusals
        self.admission: Callable[[Body], Body] = lambda body: body  # what it makes of a new object
        self.lie: str | None = None  # body of every answer, with status 200
        self._versions = itertools.count(1)
        self._changed = asyncio.Condition()
        self._history: list[tuple[int, str, str, Body]] = []  # version, path, type, object
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen, on the port it had before if it was stopped."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    def lose_data(self) -> None:
        """Be as a server whose etcd was set back to before its first object."""
        self.objects.clear()
        self._history.clear()
        self._versions = itertools.count(1)

    async def stop(self) -> None:
        """Be gone; the objects stay."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def kubeconfig(self, folder: Path, namespace: str = "") -> Path:
        """A kubeconfig for it."""
        context: Body = {"cluster": "fake", "user": "fake"}
        if namespace:
            context["namespace"] = namespace
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "fake", "user": {"token": "none"}}],
            "contexts": [{"name": "fake", "context": context}],
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(config))
        return path

    # What tests do to it.

    async def put(self, path: str, body: Body) -> Body:
        """Create or replace an object, as somebody else would."""
        held = self.objects.get(path)
        metadata = {
            "name": path.rsplit("/", 1)[1],
            "uid": str(uuid.uuid4()),
            **(held["metadata"] if held else {"creationTimestamp": _now()}),
            **body.get("metadata", {}),
        }
        if "/namespaces/" in path:
            metadata.setdefault("namespace", path.split("/namespaces/")[1].split("/")[0])
        return await self._store(path, {**body, "metadata": metadata})

    async def remove(self, path: str) -> None:
        """An object is gone."""
        body = self.objects.pop(path)
        await self._tell(path, "DELETED", body)

    async def until(self, is_so: Any) -> Any:
        """Wait until a predicate over this server answers something true."""
        async with asyncio.timeout(20), self._changed:
            while not (found := is_so(self)):
                await self._changed.wait()
            return found

    def of(self, plural: str) -> dict[str, Body]:
        """All objects of a kind, by name."""
        return {
            path.rsplit("/", 1)[1]: body
            for path, body in self.objects.items()
            if path.split("/")[-2] == plural
        }

    # HTTP.

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = "/" + request.match_info["path"]
        self.requests.append((request.method, path))
        async with self._changed:
            self._changed.notify_all()
        for what, (status, message, *details) in self.refuses.items():
            method, _, suffix = what.partition(" ")
            if method == request.method and path.endswith(suffix):
                refused = _status(status, message, **(details[0] if details else {}))
                if self.again_s:
                    refused.headers["Retry-After"] = self.again_s
                return refused
        if self.lie is not None:
            return web.Response(text=self.lie, content_type="application/json")
        known = discovery(path)
        if known is not None:
            return web.json_response(known)
        handle = getattr(self, f"_{request.method.lower()}")
        answer: web.StreamResponse = await handle(request, path)
        if not answer.prepared:
            answer.headers["Date"] = format_datetime(self._time(), usegmt=True)
        return answer

    def _time(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.ahead_s)

    async def _get(self, request: web.Request, path: str) -> web.StreamResponse:
        if path.endswith("/log"):
            container = request.query.get("container", "worker")
            text = self.logs.get((path.split("/")[-2], container))
            if text is None:
                return _status(400, f'container "{container}" is waiting to start')
            return web.Response(text=text)
        if path in self.objects:
            return web.json_response(self.objects[path])
        if not _is_collection(path):
            kind, name = path.split("/")[-2:]
            return _status(404, f'{kind} "{name}" not found', kind=kind, name=name)
        if request.query.get("watch") == "true":
            return await self._watch(request, path)
        rows = [body for _, body in self._listed(path, request.query)]
        first = int(request.query.get("continue") or 0)
        limit = int(request.query.get("limit") or len(rows) or 1)
        page = rows[first : first + limit]
        more = str(first + limit) if first + limit < len(rows) else ""
        metadata = {"resourceVersion": str(self._newest()), "continue": more}
        return web.json_response({"kind": "List", "items": page, "metadata": metadata})

    async def _post(self, request: web.Request, path: str) -> web.StreamResponse:
        body = _managed(request, await request.json())
        body = self.admission(body)
        where = f"{path}/{body['metadata']['name']}"
        if where in self.objects:
            return _status(409, f'{path.rsplit("/", 1)[1]} "{body["metadata"]["name"]}" exists')
        if self._is_ending(path):
            said = f"unable to create new content in {path} because it is being terminated"
            causes = [{"reason": "NamespaceTerminating", "message": said}]
            return _status(403, said, causes=causes)
        data = body.pop("stringData", None)
        if data is not None:
            coded = {k: base64.b64encode(v.encode()).decode() for k, v in data.items()}
            body["data"] = {**body.get("data", {}), **coded}
        if path.endswith("/pods"):
            body.setdefault("status", {"phase": "Pending"})
        if request.query.get("dryRun") == "All":
            return web.json_response(body, status=201)
        return web.json_response(await self.put(where, body), status=201)

    async def _put(self, request: web.Request, path: str) -> web.StreamResponse:
        body = _managed(request, await request.json())
        if path not in self.objects:
            return _status(404, f"{path} not found")
        wanted = body["metadata"].get("resourceVersion")
        if wanted and wanted != self.objects[path]["metadata"]["resourceVersion"]:
            return _status(409, "the object has been modified; please apply your changes")
        return web.json_response(await self.put(path, body))

    async def _patch(self, request: web.Request, path: str) -> web.StreamResponse:
        body = await request.json()
        if path.endswith("/status"):
            version = body.get("metadata", {}).get("resourceVersion")
            named = {"resourceVersion": version} if version else {}  # all that counts of metadata
            path, body = path.removesuffix("/status"), {"metadata": named, "status": body["status"]}
        if path not in self.objects:
            return _status(404, f"{path} not found")
        held = self.objects[path]["metadata"]
        wanted = body.get("metadata") or {}
        if wanted.get("resourceVersion", held["resourceVersion"]) != held["resourceVersion"]:
            return _status(409, "the object has been modified; please apply your changes")
        if wanted.get("uid", held["uid"]) != held["uid"]:
            return _status(422, "metadata.uid: Invalid value: field is immutable")
        merged = _managed(request, _merged(self.objects[path], body))
        return web.json_response(await self._store(path, merged))

    async def _delete(self, request: web.Request, path: str) -> web.StreamResponse:
        options = json.loads(await request.text() or "{}")
        if path not in self.objects:
            return _status(404, f"{path} not found")
        held = self.objects[path]
        uid = (options.get("preconditions") or {}).get("uid")
        if uid and uid != held["metadata"]["uid"]:
            return _status(409, f"the UID in the precondition ({uid}) does not match")
        runs = held.get("spec", {}).get("nodeName") and path.split("/")[-2] == "pods"
        if path.split("/")[-2] == "namespaces" or (runs and options.get("gracePeriodSeconds") != 0):
            leaving = {**held["metadata"], "deletionTimestamp": _now()}
            return web.json_response(await self._store(path, {**held, "metadata": leaving}))
        await self.remove(path)
        return web.json_response(held)

    def _is_ending(self, path: str) -> bool:
        """Whether the namespace of a collection is being deleted."""
        _, _, rest = path.partition("/namespaces/")
        held = self.objects.get(f"/api/v1/namespaces/{rest.split('/')[0]}", {})
        return "deletionTimestamp" in held.get("metadata", {})

    async def _watch(self, request: web.Request, path: str) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        seen = int(request.query.get("resourceVersion") or self._newest())
        with contextlib.suppress(ConnectionError):
            if self.cuts:
                return stream
            code = self.watch_error or (410 if seen < self.forgotten else 0)
            if code:
                error = {"code": code, "message": f"no watch from resource version {seen}"}
                line = json.dumps({"type": "ERROR", "object": error})
                await stream.write(line.encode() + b"\n")
                return stream
            while True:
                newest = self._newest()
                for version, where, kind, body in list(self._history):
                    if version > seen and _is_in(where, path):
                        told = kind if _selected(body, request.query) else "DELETED"
                        line = json.dumps({"type": told, "object": body})
                        await stream.write(line.encode() + b"\n")
                seen = newest
                async with self._changed:
                    while self._newest() == seen:
                        await self._changed.wait()
        return stream

    # Objects.

    async def _store(self, path: str, body: Body) -> Body:
        held = self.objects.get(path)
        kept = {**body, "metadata": {**body["metadata"]}}
        kept["metadata"].pop("resourceVersion", None)
        before = {**held, "metadata": {**held["metadata"]}} if held else {}
        before.get("metadata", {}).pop("resourceVersion", None)
        if held is not None and before == kept:
            return held  # what changes nothing is no new version
        kept["metadata"]["resourceVersion"] = str(next(self._versions))
        if held is None or held.get("spec") != kept.get("spec"):
            kept["metadata"]["generation"] = int(kept["metadata"].get("generation", 0)) + 1
        self.objects[path] = kept
        await self._tell(path, "MODIFIED" if held else "ADDED", kept)
        return kept

    async def _tell(self, path: str, kind: str, body: Body) -> None:
        version = int(body["metadata"]["resourceVersion"])
        if kind == "DELETED":
            version = next(self._versions)
            metadata = {**body["metadata"], "resourceVersion": str(version)}
            body = {**body, "metadata": metadata}
        self._history.append((version, path, kind, body))
        async with self._changed:
            self._changed.notify_all()

    def _newest(self) -> int:
        return self._history[-1][0] if self._history else 0

    def _listed(self, path: str, query: Mapping[str, str]) -> Iterator[tuple[str, Body]]:
        for where, body in sorted(self.objects.items()):
            if _is_in(where, path) and _selected(body, query):
                yield where, body


@contextlib.asynccontextmanager
async def an_api_server() -> AsyncIterator[FakeApiServer]:
    """One that listens."""
    server = FakeApiServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextlib.contextmanager
def a_served_api_server() -> Iterator[FakeApiServer]:
    """One that listens in a thread of its own, for programs that bring their own loop."""
    server, loop = FakeApiServer(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="API server")
    thread.start()

    def call(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(20)

    try:
        call(server.start())
        yield server
    finally:
        call(server.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _managed(request: web.Request, body: Body) -> Body:
    """The object with who wrote it."""
    names = {row["manager"] for row in body["metadata"].get("managedFields") or ()}
    names.add(request.headers.get("User-Agent", "").partition("/")[0])
    managers = [{"manager": name} for name in sorted(names)]
    return {**body, "metadata": {**body["metadata"], "managedFields": managers}}


def _is_collection(path: str) -> bool:
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    parts = parts[2:] if parts[0] == "namespaces" and len(parts) > 2 else parts
    return len(parts) == 1


def _is_in(where: str, collection: str) -> bool:
    """Whether an object is of a collection, of one namespace or of all."""
    folder = where.rsplit("/", 1)[0]
    if folder == collection:
        return True
    parts = folder.split("/namespaces/")
    return len(parts) == 2 and f"{parts[0]}/{parts[1].split('/')[1]}" == collection


def _selected(body: Body, query: Mapping[str, str]) -> bool:
    """Whether an object has what labelSelector and fieldSelector of a query ask for."""
    labels = body["metadata"].get("labels") or {}
    for term in filter(None, query.get("labelSelector", "").split(",")):
        key, _, value = term.partition("=")
        if term.startswith("!"):
            if term[1:] in labels:
                return False
        elif key not in labels or (value and labels[key] != value):
            return False
    phase = body.get("status", {}).get("phase")
    unwanted = query.get("fieldSelector", "").split(",")
    return f"status.phase!={phase}" not in unwanted


def _merged(base: Any, over: Any) -> Any:
    if not isinstance(over, dict) or not isinstance(base, dict):
        return over
    found = {k: v for k, v in base.items() if not (k in over and over[k] is None)}
    return found | {k: _merged(base.get(k), v) for k, v in over.items() if v is not None}


def _status(code: int, message: str, **details: Any) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message}
    said = {"reason": REASONS.get(code, ""), "details": details, "code": code}
    return web.json_response({**body, **said}, status=code)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
