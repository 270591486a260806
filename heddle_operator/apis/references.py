"""Names of the ConfigMaps that a job refers to, and of namespaces.

Invariant: a name is a DNS label, so that it can leave neither its namespace nor its kind, whoever
puts it into a path.
Source: RFC 1123; Kubernetes' object names.
"""

from __future__ import annotations

import re
import reprlib
from typing import Annotated

from pydantic import AfterValidator, Field

MOST_BYTES = 253
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def is_label(name: str) -> bool:
    """Whether it is a DNS label, as the name of each namespace is."""
    return _LABEL.fullmatch(name) is not None


def why_no_name(name: str) -> str:
    """Fault in the name of a ConfigMap; "" if there is none."""
    if is_label(name):
        return ""
    return (
        f"{reprlib.repr(name)} cannot be the name of a ConfigMap here; give one of at most 63 "
        "lower-case letters, digits and dashes, in the job's own namespace"
    )


def _checked(name: str) -> str:
    problem = why_no_name(name)
    if problem:
        raise ValueError(problem)
    return name


# The schema allows every name of a ConfigMap; a rule beside it says why a longer one is refused.
ConfigMapName = Annotated[
    str, AfterValidator(_checked), Field(json_schema_extra={"maxLength": MOST_BYTES})
]
