"""Image and administrator's templates of a job's pods, kept in its epoch records.

A job that trains goes on with the image it started with when the operator is upgraded, so that its
pods never run two; an upgrade is no drain.  What the job's own author writes is not pinned.
Invariant: a record gives a pod nothing that the job's author could not ask for, because whoever may
write ConfigMaps could have written it: a template that says more holds only while the administrator
says the same.
"""

from __future__ import annotations

import json
from dataclasses import replace

from heddle_operator.resources.pods import WorkerDefaults
from heddle_operator.resources.template_rules import problems_of

WORKERS = "workers"  # key of an epoch record
_TEMPLATES = ("template", "base")


def workers_to_json(defaults: WorkerDefaults) -> str:
    """As text for a record."""
    return json.dumps({key: getattr(defaults, key) for key in ("image", *_TEMPLATES)})


def workers_of_json(text: str, now: WorkerDefaults) -> WorkerDefaults:
    """What a record holds; the rest, and templates that an author may not write, are as now.

    Raises:
        LookupError, TypeError, ValueError: somebody wrote something else there.
    """
    held = json.loads(text)
    templates = {key: held[key] for key in _TEMPLATES}
    if not isinstance(held["image"], str) or not all(map(_is_mapping, templates.values())):
        raise TypeError("the pinned image is no text, or a pinned template no mapping")
    if any(next(problems_of(row, now.allow), None) for row in templates.values()):
        templates = {}
    return replace(now, image=held["image"], **templates)


def _is_mapping(found: object) -> bool:
    return isinstance(found, dict)
