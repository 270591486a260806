"""Keeps a sink equal to one collection of the API server: one LIST, then watches without an end.

A watch that ends or breaks goes on from the newest version that it saw; a version that the server
has forgotten (410 Gone) costs one LIST, which also tells what was deleted meanwhile.  The pause
between two requests doubles while no watch lives between them, and is no shorter than the server
asks for.  Where every watch is cut off before it tells anything, lists tell instead, seldom.  There
is no other LIST on a timer.
A list that is older than what was seen is not believed: the server's data were lost or set back, or
it is another server's.  Until a newer one comes nothing is heard (docs/decisions/0041).
A namespace whose collections may not be read, as it is gone or lost its Role, holds up nobody
outside it: what was known of it stays, and it is asked for again.
Source: client-go's Reflector; the Kubernetes API concepts, "Efficient detection of changes".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from heddle_operator.kube.client import ApiRefused, KubeApi
from heddle_operator.kube.malformed_objects import MalformedObjects
from planner.pauses import doubled_s

LOG = logging.getLogger(__name__)
PAGE = "500"  # objects of a page of a list; what client-go asks for
LARGE_PAGE = "20"
WATCH_S = 60  # the server ends a watch after so long, so that a dead connection is known as one
SILENT_S = WATCH_S + 30  # without a word from the server for so long, nothing is known any more
PAUSES_S = (0.1, 5.0)  # first and longest pause after a refusal, or a watch that did not live
LIVES_S = 0.5  # a watch that ends sooner did not live: a proxy cuts all of them off
DENIED_PAUSE_S = 60.0  # somebody may give the right later
GONE, FORBIDDEN = 410, 403


class Sink(Protocol):
    """Store for the objects of a collection.

    Objects may come again and in any order of kinds; what is older than what is held is ignored.
    """

    def put(self, body: Mapping[str, Any]) -> None:
        """Take over an object that is new or has changed."""

    def drop(self, body: Mapping[str, Any]) -> None:
        """Forget an object: it was deleted, or is not selected any more."""

    def keep(self, uids: frozenset[str], version: int, /) -> None:
        """Forget what a list does not hold, unless it is newer than the list's version."""


@dataclass(frozen=True, slots=True)
class Collection:
    """Collection to reflect.

    Attributes:
        path: of the collection.
        selectors: `labelSelector` and `fieldSelector`; the server applies them.
        namespace: that it is of; "": of all.
        is_optional: that it may not be read is no problem; it counts as empty then.
        is_large: its objects may be as large as the API server takes (1.5 MiB).
    """

    path: str
    selectors: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""
    is_optional: bool = False
    is_large: bool = False

    def __str__(self) -> str:
        return " ".join([self.path, *self.selectors.values()])


class Reflector:
    """Reflects one collection into a sink.

    Attributes:
        is_synced: set once the collection was listed, or is optional and denied.
        is_answered: set once it was listed or denied.
        is_denied: it may not be read at present.
        lists: how often it was.
    """

    def __init__(self, api: KubeApi, collection: Collection, sink: Sink) -> None:
        self.is_synced, self.is_answered = asyncio.Event(), asyncio.Event()
        self.is_denied = False
        self.lists = 0
        self._api = api
        self._collection = collection
        self._sink = sink
        self._version = ""  # to watch from; "": list first
        self._newest = 0  # version that was seen, whatever became of the watch
        self._has_watched = False  # since the last list
        self._heard_s = time.monotonic()
        self._again = asyncio.Event()
        self._malformed = MalformedObjects()

    def __str__(self) -> str:
        return str(self._collection)

    @property
    def namespace(self) -> str:
        """That the collection is of; "": of all."""
        return self._collection.namespace

    @property
    def selectors(self) -> Mapping[str, str]:
        """Selectors for the server."""
        return self._collection.selectors

    def problem(self, now: float) -> str:
        """Why what it says may be old, in words; "" if it is not."""
        if self.is_denied:
            return ""
        if not self.is_synced.is_set():
            return f"{self._collection} is not listed yet"
        if now - self._heard_s > SILENT_S:
            return f"nothing was heard of {self._collection} for {now - self._heard_s:.0f} s"
        return ""

    def retry(self) -> None:
        """End a pause after a refusal: the API server answers again."""
        self._again.set()

    async def run(self) -> None:
        """Reflect until cancelled."""
        tries, said, forgot_s = 0, "", -math.inf
        while True:
            began_s = time.monotonic()
            try:
                if not self._version:
                    await self.list()
                    began_s = time.monotonic()
                await self._watch()
                tries, said = tries + 1, ""
                if time.monotonic() - began_s >= LIVES_S:
                    tries = 0
                    self._hear()
                    continue
                if time.monotonic() - self._heard_s > SILENT_S:
                    self._version = ""
                await self._pause(doubled_s(PAUSES_S[0], tries, PAUSES_S[1]))
            except ApiRefused as error:
                if error.status == GONE:
                    self._version = ""
                    before_s, forgot_s = forgot_s, time.monotonic()
                    if self._has_watched and forgot_s - before_s >= LIVES_S:  # it is old, no more
                        self._has_watched, tries = False, 0
                        continue
                if str(error) != said:
                    LOG.warning("%s cannot be watched: %s", self._collection, error)
                said = str(error)
                self._deny(error)
                is_empty = self.is_denied and self._collection.is_optional
                tries += 1
                pause_s = max(doubled_s(PAUSES_S[0], tries, PAUSES_S[1]), error.again_s)
                await self._pause(DENIED_PAUSE_S if is_empty else pause_s)
            except Exception:
                # A defect of ours: what it kept from being told is found by a new list.
                LOG.exception("%s is listed anew", self._collection)
                self._version = ""
                await asyncio.sleep(PAUSES_S[1])

    async def _pause(self, seconds: float) -> None:
        self._again.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._again.wait()

    async def list(self) -> None:
        """List the collection once and let the sink hold that and nothing else.

        Raises:
            ApiRefused: a page was refused, or is older than what was seen; with status 410 if the
                list took too long.
        """
        self.lists += 1
        query, uids = dict(self._collection.selectors), set()
        while True:
            size = LARGE_PAGE if self._collection.is_large else PAGE
            page = await self._api.get(self._collection.path, limit=size, **query)
            version = page["metadata"]["resourceVersion"]
            self._take_version(version)
            for body in page.get("items") or ():
                uids.add(str(body["metadata"]["uid"]))
                self._put(body)
            more = page["metadata"].get("continue")
            if not more:
                break
            query["continue"] = more
        self._sink.keep(frozenset(uids), int(version))
        self._version, self._has_watched = version, False
        self._hear()
        self.is_synced.set()
        self.is_answered.set()

    def _take_version(self, version: str) -> None:
        """Note the version of a list, which has all that was there then.

        Raises:
            ApiRefused: a newer one was seen.
        """
        if int(version) < self._newest:
            raise ApiRefused(
                0,
                f"it is listed as of version {version}, after {self._newest} was seen; restart "
                "the operator if the data of the API server were restored",
            )
        self._newest = int(version)

    def _hear(self) -> None:
        self._heard_s, self.is_denied = time.monotonic(), False

    def _deny(self, error: ApiRefused) -> None:
        """Go on without the collection, if it may not be read and others need not wait for it."""
        is_optional = self._collection.is_optional
        if error.status != FORBIDDEN or not (is_optional or self.namespace):
            return
        self.is_denied = True
        self.is_answered.set()
        if is_optional:  # it counts as empty; of others what was known may still be there
            self._sink.keep(frozenset(), sys.maxsize)
            self._version = ""
            self.is_synced.set()

    async def _watch(self) -> None:
        query = {
            **self._collection.selectors,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        async for event in self._api.watch(self._collection.path, SILENT_S, **query):
            self._hear()
            body = event["object"]
            if event["type"] == "ERROR":
                raise ApiRefused(int(body.get("code") or 0), str(body.get("message")))
            self._has_watched = True
            self._version = body["metadata"]["resourceVersion"]
            self._newest = max(self._newest, int(self._version))
            if event["type"] == "DELETED":
                self._malformed.read(body, partial(self._sink.drop, body))
            elif event["type"] != "BOOKMARK":
                self._put(body)
        self._has_watched = True

    def _put(self, body: Mapping[str, Any]) -> None:
        self._malformed.read(body, partial(self._sink.put, body))
