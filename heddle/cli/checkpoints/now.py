"""A checkpoint of a job of the cluster, asked for by an annotation and awaited in its status."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from heddle.cli.checkpoints.of_job import check_saves
from heddle.cli.jobs import JOBS, get_job
from heddle_operator.apis.errors import OperatorError
from heddle_operator.apis.labels import SAVE_ANNOTATION
from heddle_operator.kube.client import connect

LOOK_S = 0.5
SAVES = ("Running", "Preparing", "Switching", "Suspending")  # phases in which ranks may train


async def save_now(
    job: str, namespace: str | None, timeout_s: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """Ask for a checkpoint, and answer it once it is whole.

    It is asked for at a time of the API server's clock, which the operator reads, too.

    Raises:
        OperatorError: there is no such job, it saves no checkpoints or does not train, the save
            failed, or it is not whole in time.
    """
    async with await connect() as api:
        where = namespace or api.namespace
        path = f"{JOBS}/namespaces/{where}/heddlejobs/{job}"
        body = await get_job(api, path, job, where)
        _check(job, body)
        before = _saved(body)
        asked = _time_text(time.monotonic() + api.clock.offset_s)
        await api.patch(path, {"metadata": {"annotations": {SAVE_ANNOTATION: asked}}})
        say(f"job {job} saves at its next boundary")
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            body = await get_job(api, path, job, where)
            saved = _saved(body)
            if (saved.get("step"), saved.get("savedAt")) != (
                before.get("step"),
                before.get("savedAt"),
            ):
                return {"job": f"{where}/{job}", **saved}
            _check(job, body)
            await asyncio.sleep(LOOK_S)
    raise OperatorError(
        f"the checkpoint of job {job} is not whole after {timeout_s:g} s{_failure(body)}; "
        f"`heddle status {job}` says more",
        code="Failed",
    )


def _time_text(unix_s: float) -> str:
    at = datetime.fromtimestamp(unix_s, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _saved(body: Mapping[str, Any]) -> Mapping[str, Any]:
    return (body.get("status") or {}).get("checkpoint") or {}


def _check(job: str, body: Mapping[str, Any]) -> None:
    """Refuse a job that cannot save now."""
    check_saves(job, body)
    phase = (body.get("status") or {}).get("phase", "Pending")
    if phase not in SAVES:
        raise OperatorError(
            f"job {job} is {phase} and has no state to save; wait until it trains", code="Refused"
        )


def _failure(body: Mapping[str, Any]) -> str:
    rows = (body.get("status") or {}).get("conditions") or ()
    said = (r["message"] for r in rows if r["type"] == "CheckpointStale" and r["status"] == "True")
    return "".join(f": {message}" for message in said)
