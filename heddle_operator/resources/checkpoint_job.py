"""A Kubernetes Job that works on the checkpoints of a HeddleJob, where its worker pods see them.

Its pod has the volumes, variables, rights and node selection of a worker pod, as it is made by the
same function.  It has one container, asks for no GPU, and knows no token.
Invariant: equal input gives equal bodies; a pod holds nothing that the job's author may not have.
Source: Kubernetes' Job (backoffLimit, ttlSecondsAfterFinished).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from heddle_operator.apis.errors import InvalidJob
from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.labels import WORKER
from heddle_operator.resources.metadata import Body, owner_reference
from heddle_operator.resources.pods import WORKERS_OWN, WorkerDefaults, pod_spec_of
from heddle_operator.resources.template_rules import GRANTABLE, check_allowed

TTL_S = 600  # its log can be read for so long after its end
GRACE_S = 5  # from the notice to the end: nothing is worth keeping
# Little beside a worker: tensors go through one by one.
REQUESTS = {"cpu": "100m", "memory": "1Gi"}
_NAME_CHARS = 40  # of the job's name; with verb and suffix it is a label's value
_NEEDLESS = ("heddle-token", "heddle-shm", "heddle-data")  # volumes of a rank
_LASTING = ("persistentVolumeClaim", "hostPath", "nfs", "csi")  # kinds of volumes


def checkpoint_job_name(job: HeddleJob, verb: str, suffix: str) -> str:
    """Name of the Job for a verb; its suffix tells it from others."""
    return f"{job.name[:_NAME_CHARS].rstrip('-')}-{verb}-{suffix}"


def checkpoint_job_body(
    job: HeddleJob, defaults: WorkerDefaults, name: str, arguments: Sequence[str]
) -> Body:
    """The Job that runs `heddle checkpoint ARGUMENTS` with the job's image and volumes."""
    spec = pod_spec_of(job, defaults)
    worker = _worker_of(spec)
    kept = {key: value for key, value in worker.items() if key not in WORKERS_OWN}
    container = {
        **kept,
        "args": ["checkpoint", *arguments],
        "resources": {"requests": dict(REQUESTS)},
        "volumeMounts": [row for row in worker["volumeMounts"] if row["name"] not in _NEEDLESS],
    }
    for needless in ("nodeName", "initContainers", "resourceClaims"):
        spec.pop(needless, None)
    spec |= {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_S,
        "containers": [container],
        "volumes": [row for row in spec["volumes"] if row["name"] not in _NEEDLESS],
    }
    own = {
        "app.kubernetes.io/name": "heddle",
        "app.kubernetes.io/component": "checkpoint",
        "app.kubernetes.io/instance": job.name,
    }
    labels: Body = dict(own)
    notes: Body = {}
    for template in (defaults.template, job.spec.worker.template, defaults.base):
        given = template.get("metadata") or {}
        labels = {**(given.get("labels") or {}), **labels}
        notes = {**(given.get("annotations") or {}), **notes}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": job.metadata.namespace,
            "labels": own,
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": TTL_S,
            "template": {"metadata": {"labels": labels, "annotations": notes}, "spec": spec},
        },
    }


def check_accepted(body: Mapping[str, Any], job: HeddleJob, defaults: WorkerDefaults) -> None:
    """Refuse a template that its author may not have.

    Which fields the administrator grants is the operator's to know: it grants those of a spec that
    it has accepted.

    Args:
        body: the HeddleJob, as the API server has it.
        job: the same, read.
        defaults: of the administrator, whose volumes and containers keep their names.

    Raises:
        InvalidJob: names the first such field.
    """
    metadata, status = body["metadata"], body.get("status") or {}
    is_accepted = any(
        row.get("type") == "Accepted"
        and row.get("status") == "True"
        and row.get("observedGeneration") == metadata.get("generation")
        for row in status.get("conditions") or ()
    )
    check_allowed(job, GRANTABLE if is_accepted else (), defaults.templates)


def check_target(job: HeddleJob, defaults: WorkerDefaults, folder: str) -> None:
    """Refuse a folder that does not outlast a pod.

    Raises:
        InvalidJob: no writable volume of the worker pods holds it.
    """
    spec, path = pod_spec_of(job, defaults), PurePosixPath(folder)
    lasting = {row["name"] for row in spec["volumes"] if not set(_LASTING).isdisjoint(row)}
    mounts = [
        PurePosixPath(row["mountPath"])
        for row in _worker_of(spec)["volumeMounts"]
        if row["name"] in lasting and not row.get("readOnly")
    ]
    if ".." in path.parts or not any(path.is_relative_to(mount) for mount in mounts):
        known = ", ".join(sorted(map(str, mounts))) or "none"
        raise InvalidJob(
            f"{job.name}: {folder} is on no volume of the worker pods that lasts and can be "
            f"written; give a folder below one of theirs: {known}",
            code="Refused",
        )


def _worker_of(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(row for row in spec["containers"] if row["name"] == WORKER)
    return found
