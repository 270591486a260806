"""The administrator's part of a job's pods, kept in the job's epoch records.

A job that trains goes on with the image it started with when the operator is upgraded, so that its
pods never run two; an upgrade is no drain.  What the job's own author writes is not pinned.
Invariant: what is read back was written by an operator: it is signed with the job's token, because
records are ConfigMaps, which others may write.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from heddle_operator.resources.pods import WorkerDefaults

WORKERS = "workers"  # key of an epoch record
_TODAYS = ("allow", "log_format")  # of jobs' templates, and of what nobody reads back
_PINNED = tuple(field.name for field in fields(WorkerDefaults) if field.name not in _TODAYS)


def workers_to_json(defaults: WorkerDefaults, token: str) -> str:
    """As text for a record, signed with the job's token."""
    pinned = {key: getattr(defaults, key) for key in _PINNED}
    return json.dumps({"pinned": pinned, "signature": _signature(pinned, token)})


def workers_of_json(text: str, now: WorkerDefaults, token: str) -> WorkerDefaults:
    """Defaults of a record; the rest is as now.

    Raises:
        LookupError, TypeError, ValueError: it was not written by an operator of this job.
    """
    held = json.loads(text)
    pinned = held["pinned"]
    if not hmac.compare_digest(str(held["signature"]), _signature(pinned, token)):
        raise ValueError("the pinned fields are not signed with the job's token")
    return replace(now, **{key: pinned[key] for key in _PINNED if key in pinned})


def _signature(pinned: Mapping[str, Any], token: str) -> str:
    text = f"{WORKERS}\n{json.dumps(pinned, sort_keys=True)}"
    return hmac.new(token.encode(), text.encode(), "sha256").hexdigest()
