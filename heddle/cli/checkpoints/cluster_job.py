"""Verbs that need the files of a job's checkpoints: a Kubernetes Job does them, its log is shown.

The Job is created with the caller's own rights.  Image and templates of an administrator are
believed only if an operator of the job has signed them.
Invariant: a Job whose caller gives up, or that does not start, is deleted by its name.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from heddle.cli.checkpoints.of_job import check_saves
from heddle.cli.jobs import JOBS, get_job
from heddle_operator.apis.errors import OperatorError
from heddle_operator.apis.heddlejob import HeddleJob, load_job
from heddle_operator.apis.labels import EPOCH_LABEL, JOB_LABEL, WORKER
from heddle_operator.inventory.requests import owner_uid
from heddle_operator.kube.client import ApiRefused, KubeApi, connect
from heddle_operator.kube.paths import object_path
from heddle_operator.kube.references.config import referenced_config
from heddle_operator.resources.checkpoint_job import (
    check_accepted,
    check_target,
    checkpoint_job_body,
    checkpoint_job_name,
)
from heddle_operator.resources.pinned_workers import WORKERS, workers_of_json
from heddle_operator.resources.pods import WorkerDefaults
from heddle_operator.resources.secret import token_name

LOOK_S = 0.5
START_S = 600.0  # for nodes and images; then the Job is deleted
SILENT_S = 30.0  # a log is asked for again after so long without a line
SUFFIX_BYTES = 3  # of the name, so that two people may work on one job
_SOON = ("ContainerCreating", "PodInitializing")  # nothing is wrong
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of `heddle checkpoint`, and its arguments after the path of the checkpoints.

    Attributes:
        name: `verify`, `export` or `rm`.
        arguments: for the command line.
        folder: that is written; "" for none.
    """

    name: str
    arguments: tuple[str, ...]
    folder: str = ""


async def run_verb(
    job: str,
    namespace: str | None,
    verb: Verb,
    show: Callable[[bytes], None],
    say: Callable[[str], None],
) -> int:
    """Let a Job of the worker image do a verb; its exit code.

    Args:
        job: name of the HeddleJob.
        namespace: None for that of the kubeconfig.
        verb: that is done.
        show: takes the Job's log, as it comes.
        say: takes sentences about the Job itself.

    Raises:
        OperatorError: there is no such job, it has no checkpoints, the caller lacks a right, or
            the Job does not start.
    """
    async with await connect() as api:
        where = namespace or api.namespace
        body = await get_job(api, f"{JOBS}/namespaces/{where}/heddlejobs/{job}", job, where)
        check_saves(job, body)
        held = load_job(body, await referenced_config(api, body))
        defaults = await _defaults(api, held)
        check_accepted(body, held, defaults)
        if verb.folder:
            check_target(held, defaults, verb.folder)
        checkpoint = held.training.checkpoint
        assert checkpoint is not None, "it was checked"
        arguments = (verb.name, checkpoint.path, *verb.arguments)
        name = checkpoint_job_name(held, verb.name, secrets.token_hex(SUFFIX_BYTES))
        jobs = object_path("/apis/batch/v1/namespaces", where, "jobs")
        try:
            body = checkpoint_job_body(held, defaults, name, arguments)
            await _may(api.create(jobs, body), creates=True)
            say(f"Job {where}/{name} works on {checkpoint.path}")
            return await _followed(api, where, name, show, say)
        except (asyncio.CancelledError, _NotStarted):
            options = {"kind": "DeleteOptions", "apiVersion": "v1"}
            options["propagationPolicy"] = "Background"  # else a Job leaves its pod behind
            with contextlib.suppress(ApiRefused):
                await api.call("DELETE", object_path(jobs, name), options)
                say(f"Job {where}/{name} is deleted")
            raise


class _NotStarted(OperatorError):
    """The pod of a Job did not start in time."""


async def _may(request: Awaitable[Json], *, creates: bool = False) -> Json:
    """The answer to a request; a lack of rights is said with the remedy.

    Args:
        request: to the API server.
        creates: it creates an object.  A quota or a policy refuses that object by its name; rights
            are looked at before its name is read.
    """
    try:
        return await request
    except ApiRefused as error:
        by_admission = creates and (error.name or not error.resource)
        if error.reason == "Forbidden" and not by_admission:
            raise OperatorError(
                f"{error}; ask for the role edit of the namespace, or work on PATH", code="Refused"
            ) from None
        raise


async def _defaults(api: KubeApi, job: HeddleJob) -> WorkerDefaults:
    """What the administrator gives the job's pods, as an operator has recorded it.

    Raises:
        OperatorError: no record tells, or the caller may not read it.
    """
    core = object_path("/api/v1/namespaces", job.metadata.namespace)
    try:
        secret = await _may(api.get(object_path(core, "secrets", token_name(job))))
        token = base64.b64decode((secret.get("data") or {})["token"]).decode()
        selector = f"{JOB_LABEL}={job.name}"
        rows = await _may(api.get(object_path(core, "configmaps"), labelSelector=selector))
        mine = [row for row in rows["items"] if owner_uid(row["metadata"]) == job.metadata.uid]
    except ApiRefused as error:
        if error.status != 404:
            raise
        mine, token = [], ""
    except (KeyError, ValueError):
        mine, token = [], ""
    unknown = WorkerDefaults(image="", template={})
    for row in sorted(mine, key=_epoch_of, reverse=True):
        with contextlib.suppress(LookupError, TypeError, ValueError):
            return workers_of_json(row["data"][WORKERS], unknown, token)
    raise OperatorError(
        f"no plan of job {job.name} is on record, so its image is unknown; wait until it has one, "
        "or work on PATH",
        code="Missing",
    )


def _epoch_of(record: Mapping[str, Any]) -> int:
    said = (record["metadata"].get("labels") or {}).get(EPOCH_LABEL, "")
    return int(said) if said.isdecimal() else 0


async def _followed(
    api: KubeApi,
    namespace: str,
    name: str,
    show: Callable[[bytes], None],
    say: Callable[[str], None],
) -> int:
    """Show the log of a Job's pod until it ends; the exit code."""
    pod = await _started(api, namespace, name, say)
    path = object_path("/api/v1/namespaces", namespace, "pods", pod["metadata"]["name"])
    shown, said = 0, ""
    while True:
        code = _exit_code(pod)  # before the log is read, so that all of it is shown
        with contextlib.suppress(ApiRefused):  # silence, or a log that is not there yet
            seen = 0
            query = {"container": WORKER, "follow": str(code is None).lower()}
            async for piece in api.follow(f"{path}/log", SILENT_S, **query):
                seen += len(piece)
                if seen > shown:
                    show(piece[len(piece) - (seen - shown) :])
                    shown = seen
        if code is not None:
            return code
        await asyncio.sleep(LOOK_S)
        try:
            pod = await api.get(path)
        except ApiRefused as error:
            if error.status == 404:
                raise OperatorError(
                    f"the pod of Job {namespace}/{name} was deleted before its end; try again",
                    code="Failed",
                ) from None
            if str(error) != said:
                said = str(error)
                say(f"{error}; the Job goes on")


async def _started(api: KubeApi, namespace: str, name: str, say: Callable[[str], None]) -> Json:
    """The pod of a Job, once its container runs or has ended.

    Raises:
        _NotStarted: it does not within START_S.
    """
    pods, said, why = object_path("/api/v1/namespaces", namespace, "pods"), "", ""
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        rows: list[Json] = (await _may(api.get(pods, labelSelector=f"job-name={name}")))["items"]
        for pod in rows:
            status = pod.get("status") or {}
            if status.get("phase") not in (None, "Pending"):
                return pod
        why = _why_waiting(rows[0]) if rows else await _why_no_pod(api, namespace, name)
        if why and why != said:
            say(f"Job {namespace}/{name} waits: {why}")
            said = why
        await asyncio.sleep(LOOK_S)
    because = f": {why}" if why else ""
    raise _NotStarted(
        f"Job {namespace}/{name} did not start within {START_S:g} s{because}", code="Failed"
    )


def _why_waiting(pod: Mapping[str, Any]) -> str:
    """What the scheduler or the kubelet says of a pod that waits; "" if nothing is wrong."""
    status = pod.get("status") or {}
    for row in status.get("conditions") or ():
        if (row.get("type"), row.get("status")) == ("PodScheduled", "False"):
            return str(row.get("message") or row.get("reason") or "")
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting and waiting.get("reason") not in _SOON:
            return ": ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))
    return ""


async def _why_no_pod(api: KubeApi, namespace: str, name: str) -> str:
    """What the Job's controller says of a pod that it cannot create; "" if nothing."""
    events = object_path("/api/v1/namespaces", namespace, "events")
    selector = f"involvedObject.kind=Job,involvedObject.name={name},type=Warning"
    with contextlib.suppress(ApiRefused):  # not everybody may read them
        rows = (await api.get(events, fieldSelector=selector))["items"]
        return str(rows[-1].get("message") or "") if rows else ""
    return ""


def _exit_code(pod: Mapping[str, Any]) -> int | None:
    """The exit code of the worker container; None: it runs.

    Raises:
        OperatorError: the pod ended without one.
    """
    status = pod.get("status") or {}
    for row in status.get("containerStatuses") or ():
        ended = (row.get("state") or {}).get("terminated")
        if row.get("name") == WORKER and ended:
            return int(ended["exitCode"])
    if status.get("phase") in ("Succeeded", "Failed"):
        why = status.get("message") or status.get("reason") or "nobody says why"
        raise OperatorError(
            f"the pod {pod['metadata']['name']} ended without an exit code: {why}; try again",
            code="Failed",
        )
    return None
