"""Meters of an operator: CPU time by the kernel, its histograms, its writes."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from benchmarks.operator_scale.sizes import Measured
from heddle_operator.kube.client import KubeApi

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_BUCKET = re.compile(r'^(heddle_\w+_seconds)_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)
_WRITE = re.compile(r"^apiserver_request_total\{([^}]*)\} (\S+)$", re.MULTILINE)
_VERBS = ("POST", "PUT", "PATCH", "DELETE", "APPLY")
LOOK_S = 0.5
ANSWER_S = 120.0  # a loop that stands still answers late

Buckets = dict[str, dict[float, float]]


def cpu_s(pid: int) -> float:
    """CPU time of a process since it started, its children left out; nan: it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


@dataclass(frozen=True, slots=True)
class Reading:
    """Readings of the meters at one moment."""

    at_s: float
    cpu_s: float
    writes: float
    buckets: Buckets


class Meters:
    """Reads an operator of this machine.

    Args:
        pid: of its process, as this process sees it.
        url: of its metrics.
        own_writes: requests of this program to the API server that write.
    """

    def __init__(self, api: KubeApi, pid: int, url: str, own_writes: Callable[[], int]) -> None:
        self._api = api
        self._pid = pid
        self._url = url
        self._own_writes = own_writes

    @property
    def has_ended(self) -> bool:
        """Whether the operator's process is gone."""
        return math.isnan(cpu_s(self._pid))

    async def until_it_leads(self) -> None:
        """Wait until the operator decides, or has ended."""
        while not self.has_ended:
            if "heddle_operator_is_leader 1.0" in await self._text():
                return
            await asyncio.sleep(LOOK_S)

    async def read(self) -> Reading:
        """All meters now."""
        buckets: Buckets = {}
        for name, bound, count in _BUCKET.findall(await self._text()):
            buckets.setdefault(name, {})[float(bound)] = float(count)
        # After the answer, so that what the loop did before it is counted.
        at_s, used_s = time.monotonic(), cpu_s(self._pid)
        writes = await self._writes() - self._own_writes()
        return Reading(at_s, used_s, writes, buckets)

    async def _text(self) -> str:
        """Metrics that the operator gives Prometheus; "": it does not answer."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with (
                aiohttp.ClientSession(timeout=timeout) as client,
                client.get(self._url) as answer,
            ):
                return await answer.text()
        return ""

    async def _writes(self) -> float:
        """Writes of all clients; Leases are left out, which the API server writes as well."""
        total = 0.0
        for labels, count in _WRITE.findall(await self._api.text("/metrics")):
            said = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if said.get("verb") in _VERBS and said.get("resource") != "leases":
                total += float(count)
        return total


def between(phase: str, before: Reading, after: Reading) -> Measured:
    """Cost of a phase."""
    return Measured(
        phase=phase,
        wall_s=after.at_s - before.at_s,
        cpu_s=after.cpu_s - before.cpu_s,
        blocked_s=_quantile(before, after, "heddle_loop_blocked_seconds", 1.0),
        turn_cpu_s=_quantile(before, after, "heddle_loop_cpu_seconds", 1.0),
        decision_p95_s=_quantile(before, after, "heddle_decision_seconds", 0.95),
        writes=int(after.writes - before.writes),
    )


def _quantile(before: Reading, after: Reading, name: str, share: float) -> float | None:
    """Upper bound of the bucket in which that share of what came between ends; None: none came."""
    rows = after.buckets.get(name, {})
    old = before.buckets.get(name, {})
    counts = {bound: count - old.get(bound, 0.0) for bound, count in rows.items()}
    total = counts.get(float("inf"), 0.0)
    if total <= 0:
        return None
    return min(bound for bound, count in counts.items() if count >= share * total)
