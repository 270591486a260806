"""Metadata of every object of a job: its labels, and who owns it.

Invariant: every object belongs to its job by an owner reference, so that deleting the job removes
them all while the operator is down too.  What does not belong to it is left alone,
whatever its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from heddle_operator.apis.errors import EarlierJobRemains, NameTaken
from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.labels import JOB_LABEL, NODE_ANNOTATION, ORDINAL_ANNOTATION
from heddle_operator.inventory.requests import owner_uid

Body = dict[str, Any]
Owner = Literal["this job", "earlier job", "somebody"]


def owner_reference(job: HeddleJob) -> Body:
    """Marks that make an object the job's."""
    return {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "name": job.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def metadata(job: HeddleJob, name: str, **labels: str) -> Body:
    """Metadata of an object of the job."""
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": {
            "app.kubernetes.io/name": "heddle",
            "app.kubernetes.io/managed-by": "heddle-operator",
            "app.kubernetes.io/instance": job.name,
            JOB_LABEL: job.name,
            **labels,
        },
        "ownerReferences": [owner_reference(job)],
    }


def owner_of(job: HeddleJob, body: Mapping[str, Any]) -> Owner:
    """Whose an object is that has a name which the job needs."""
    if owner_uid(body["metadata"]) == job.metadata.uid:
        return "this job"
    owners = body["metadata"].get("ownerReferences") or ()
    is_earlier = any(o.get("kind") == job.kind and o.get("name") == job.name for o in owners)
    return "earlier job" if is_earlier else "somebody"


def taken_off(asked: Mapping[str, Any], made: Mapping[str, Any]) -> str:
    """What admission took off a pod, without which it is not found again; "" if nothing.

    Args:
        asked: the pod as it was sent.
        made: the pod as the API server holds it.
    """
    before, after = asked["metadata"], made["metadata"]
    for kind, field, keys in (
        ("label", "labels", (JOB_LABEL,)),
        ("annotation", "annotations", (NODE_ANNOTATION, ORDINAL_ANNOTATION)),
    ):
        for key in keys:
            wanted = (before.get(field) or {}).get(key)
            if wanted is not None and (after.get(field) or {}).get(key) != wanted:
                return f"the {kind} {key}"
    return "" if owner_uid(after) == owner_uid(before) else "the owner reference"


def taken_off_words(name: str, what: str) -> str:
    """Sentence that admission took something off a pod of that name."""
    return f"admission took {what} off pod {name}; exempt Heddle's pods from the webhook or policy"


def check_owned(job: HeddleJob, body: Mapping[str, Any], kind: str) -> None:
    """Refuse an object that has a name which the job needs, and is not the job's.

    An earlier job's goes by itself: whoever deleted that job has the garbage collector remove it.

    Raises:
        EarlierJobRemains: it is an earlier job's.
        NameTaken: says whose name it has, and what to do.
    """
    owner, name = owner_of(job, body), body["metadata"]["name"]
    if owner == "this job":
        return
    if owner == "earlier job":
        raise EarlierJobRemains(
            f"{kind} {name} is of an earlier job {job.name}; this job waits until it is gone"
        )
    raise NameTaken(
        f"{kind} {name} is there and not this job's, so it is left as it is; remove it, or give "
        "the job another name"
    )
