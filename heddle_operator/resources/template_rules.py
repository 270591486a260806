"""Fields of `spec.worker.template` for the author of a job, and those for an administrator only.

Invariant: what is not listed here is refused, unless the chart's `worker.allow` names it; whatever
passes has the form that Kubernetes asks for, as far as the operator itself reads it, and changes no
volume or container of the administrator, because it has none of their names.
Source: Kubernetes' Pod Security Standards (restricted), and what a pod needs to train.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeAlias

from heddle_operator.apis.errors import InvalidJob
from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.labels import WORKER
from heddle_operator.inventory.requests import GPU

# A form is a word of `_FORMS`, the fields of an object, a list of one form, or whether a value
# gives the pod no more than it would have without.
Form: TypeAlias = "str | Mapping[str, Form] | tuple[Form] | Callable[[Any], bool]"


def _is_all_of(value: object, kind: type) -> bool:
    return all(isinstance(row, kind) for row in value) if isinstance(value, list) else False


_FORMS: Mapping[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "a whole number": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "true or false": lambda value: isinstance(value, bool),
    "an object": lambda value: isinstance(value, Mapping),
    "a list": lambda value: isinstance(value, list),
    "a list of texts": lambda value: _is_all_of(value, str),
    "a list of whole numbers": lambda value: _is_all_of(value, int),
    "an object of texts": lambda value: (
        isinstance(value, Mapping) and all(isinstance(text, str) for text in value.values())
    ),
}
_USER: Mapping[str, Form] = {
    "runAsUser": lambda user: _FORMS["a whole number"](user) and user > 0,
    "runAsGroup": "a whole number",
    "runAsNonRoot": lambda value: value is True,
    "seccompProfile": lambda found: (
        isinstance(found, Mapping) and found.get("type") in ("RuntimeDefault", "Localhost")
    ),
}
_KEY: Mapping[str, Form] = {"name": "text", "key": "text", "optional": "true or false"}
_SOURCE: Mapping[str, Form] = {"name": "text", "optional": "true or false"}
_CONTAINER: Mapping[str, Form] = {
    "name": "text",
    "image": "text",
    "imagePullPolicy": "text",
    "command": "a list of texts",
    "args": "a list of texts",
    "workingDir": "text",
    "env": (
        {
            "name": "text",
            "value": "text",
            "valueFrom": {
                "fieldRef": "an object",
                "resourceFieldRef": "an object",
                "configMapKeyRef": _KEY,
                "secretKeyRef": _KEY,
            },
        },
    ),
    "envFrom": ({"prefix": "text", "configMapRef": _SOURCE, "secretRef": _SOURCE},),
    "ports": ({"name": "text", "containerPort": "a whole number", "protocol": "text"},),
    "resources": {"limits": "an object", "requests": "an object"},
    "volumeMounts": (
        {"name": "text", "mountPath": "text", "subPath": "text", "readOnly": "true or false"},
    ),
    "securityContext": {
        **_USER,
        "readOnlyRootFilesystem": "true or false",
        "privileged": lambda value: value is False,
        "allowPrivilegeEscalation": lambda value: value is False,
        "capabilities": lambda found: isinstance(found, Mapping) and set(found) <= {"drop"},
    },
}
_TEMPLATE: Mapping[str, Form] = {
    "metadata": {"labels": "an object of texts", "annotations": "an object of texts"},
    "spec": {
        "containers": (_CONTAINER,),
        "initContainers": (_CONTAINER,),
        "volumes": (
            {
                "name": "text",
                "persistentVolumeClaim": "an object",
                "emptyDir": "an object",
                "configMap": "an object",
                "secret": "an object",
            },
        ),
        "nodeSelector": "an object of texts",
        "tolerations": (
            {
                "key": "text",
                "operator": "text",
                "value": "text",
                "effect": "text",
                "tolerationSeconds": "a whole number",
            },
        ),
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": (
                        {
                            "matchExpressions": (
                                {"key": "text", "operator": "text", "values": "a list of texts"},
                            ),
                            "matchFields": (
                                {"key": "text", "operator": "text", "values": "a list of texts"},
                            ),
                        },
                    ),
                },
                "preferredDuringSchedulingIgnoredDuringExecution": ("an object",),
            },
            "podAffinity": "an object",
            "podAntiAffinity": "an object",
        },
        "imagePullSecrets": ({"name": "text"},),
        "priorityClassName": "text",  # a quota of the namespace says who may use which
        "terminationGracePeriodSeconds": "a whole number",
        "securityContext": {
            **_USER,
            "fsGroup": "a whole number",
            "fsGroupChangePolicy": "text",
            "supplementalGroups": "a list of whole numbers",
        },
        "hostNetwork": lambda value: value is False,
        "hostPID": lambda value: value is False,
        "hostIPC": lambda value: value is False,
        "automountServiceAccountToken": lambda value: value is False,
    },
}
# What `worker.allow` may name: fields of a pod, of its containers and of their securityContext, and
# kinds of volumes.
GRANTABLE = frozenset(
    {
        *("hostNetwork", "hostPID", "hostIPC", "hostUsers", "hostAliases", "hostname", "subdomain"),
        *("serviceAccountName", "automountServiceAccountToken", "schedulerName"),
        *("runtimeClassName", "dnsPolicy", "dnsConfig", "shareProcessNamespace", "resourceClaims"),
        *("privileged", "capabilities", "allowPrivilegeEscalation", "runAsUser", "runAsNonRoot"),
        *("seccompProfile", "appArmorProfile", "seLinuxOptions", "sysctls", "procMount"),
        *("livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "hostPort", "claims"),
        *("volumeDevices", "mountPropagation", "hostPath", "nfs", "csi", "ephemeral", "projected"),
        *("downwardAPI", "image"),
    }
)
_NAMED = ("containers", "initContainers", "volumes", "volumeMounts", "env")
_PATH = "spec.worker.template"
_OWN = "heddle.dev/"
GRACE_LIMIT_S = 86_400  # a day; agents refuse more
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"


def check_allowed(
    job: HeddleJob, allow: Collection[str], others: Iterable[Mapping[str, Any]] = ()
) -> None:
    """Refuse a job whose pod template asks for more than its author may have.

    Args:
        job: whose `spec.worker.template` is looked at.
        allow: of `GRANTABLE`, what the administrator lets authors use besides.
        others: the administrator's templates, which the job's own is merged with by name.

    Raises:
        InvalidJob: names the first such field, and says what to do.
    """
    template = job.spec.worker.template
    # What is misshapen is refused before the names in it are looked at.
    for sentence in chain(problems_of(template, allow), _taken(template, others)):
        raise InvalidJob(f"{job.name}: {sentence}", field=_PATH, code="Unsupported")


def problems_of(template: Mapping[str, Any], allow: Collection[str]) -> Iterator[str]:
    """Refusals of a template, a sentence each; see `check_allowed`."""
    found = list(_compared(template, _TEMPLATE, _PATH, "", allow))
    yield from found
    if not found:
        yield from _foreign(template, allow)
        yield from _out_of_range(template)
        yield from _bad_grace(template, _PATH)


def administrators_problems(template: Mapping[str, Any]) -> Iterator[str]:
    """What has another form than that of a pod template, a sentence each.

    Args:
        template: of the administrator, who may set every field.  Each job is merged with it, so
            that a mistake in it would keep all jobs from their pods.
    """
    found = [sentence[1:] for sentence in _compared(template, _TEMPLATE, "", "", None)]
    yield from found
    if not found:
        yield from (sentence[1:] for sentence in _bad_grace(template, ""))


def _taken(template: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Names of the administrator's volumes and containers, which would be merged with the job's."""
    for kind in ("volumes", "containers", "initContainers"):
        theirs = {
            row.get("name") for other in others for row in (other.get("spec") or {}).get(kind) or ()
        }
        for index, row in enumerate(template.get("spec", {}).get(kind, ())):
            if row["name"] in theirs and (kind, row["name"]) != ("containers", WORKER):
                yield (
                    f"spec.worker.template.spec.{kind}[{index}] has the name {row['name']!r}, "
                    "which the administrator uses; choose another"
                )


def _out_of_range(template: Mapping[str, Any]) -> Iterator[str]:
    """Values of the right form that mean something else to the operator or the agent."""
    spec = template.get("spec", {})
    for index, volume in enumerate(spec.get("volumes", ())):
        if len(volume) != 2:  # its name, and the source
            yield (
                f"spec.worker.template.spec.volumes[{index}] has {len(volume) - 1} sources; "
                "give it one, such as a persistentVolumeClaim"
            )
    for kind in ("labels", "annotations"):
        for key in template.get("metadata", {}).get(kind, {}):
            if key.startswith(_OWN):
                yield (
                    f"spec.worker.template.metadata.{kind}: keys that begin with {_OWN} are the "
                    f"operator's, found {reprlib.repr(key)}; leave it out"
                )


def _bad_grace(template: Mapping[str, Any], path: str) -> Iterator[str]:
    grace_s = template.get("spec", {}).get("terminationGracePeriodSeconds", 0)
    if not 0 <= grace_s <= GRACE_LIMIT_S:
        yield (
            f"{path}.spec.terminationGracePeriodSeconds must be from 0 to {GRACE_LIMIT_S}, "
            f"found {grace_s}"
        )


def _compared(
    value: Any, form: Form, path: str, name: str, allow: Collection[str] | None
) -> Iterator[str]:
    """The problems of one value, whose field has this name."""
    if callable(form):
        if not form(value) and not _may_set(name, allow):
            yield _refused(path, name, value)
        return
    word = form if isinstance(form, str) else "a list" if isinstance(form, tuple) else "an object"
    if not _FORMS[word](value):
        yield _misshapen(path, word, value)
    elif isinstance(form, tuple):
        for index, row in enumerate(value):
            yield from _compared(row, form[0], f"{path}[{index}]", name, allow)
            if name in _NAMED and isinstance(row, Mapping) and not row.get("name"):
                yield f"{path}[{index}] has no name; give it one"
    elif not isinstance(form, str):
        yield from _fields(value, form, path, allow)


def _fields(
    value: Mapping[str, Any], form: Mapping[str, Form], path: str, allow: Collection[str] | None
) -> Iterator[str]:
    for key, inner in value.items():
        if key in form:
            yield from _compared(inner, form[key], f"{path}.{key}", key, allow)
        elif not _may_set(key, allow):
            yield _refused(f"{path}.{key}", key, None)


def _may_set(name: str, allow: Collection[str] | None) -> bool:
    return allow is None or name in allow  # None: of an administrator, who may set every field


def _foreign(template: Mapping[str, Any], allow: Collection[str]) -> Iterator[str]:
    """Volumes and GPUs that others gave the pod, and annotations that are a security context."""
    spec = template.get("spec", {})
    own = {volume["name"] for volume in spec.get("volumes", ())}
    for kind in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(kind, ())):
            path = f"spec.worker.template.spec.{kind}[{index}]"
            for mount in container.get("volumeMounts", ()):
                name = mount["name"]
                if name not in own and not name.startswith("heddle-"):
                    yield (
                        f"{path} mounts the volume {name!r}, which the template does not have; "
                        "declare it among the template's volumes"
                    )
            asked = container.get("resources", {}).values()
            if any(GPU in row for row in asked):
                is_worker = (kind, container["name"]) == ("containers", WORKER)
                why = "the plan says how many it gets" if is_worker else "the GPUs are the worker's"
                yield f"{path} asks for {GPU}; {why}, leave it out"
    for key in template.get("metadata", {}).get("annotations", {}):
        if key.startswith(_APPARMOR) and "appArmorProfile" not in allow:
            yield _refused("spec.worker.template.metadata.annotations", "appArmorProfile", None)


def _refused(path: str, name: str, value: object) -> str:
    found = "" if value is None else f" as {reprlib.repr(value)}"
    if name not in GRANTABLE:
        return f"{path}: a job cannot set this{found}; leave it out"
    return (
        f"{path}: a job may not set {name}{found}; leave it out, or ask the administrator to "
        f"add {name} to the chart's worker.allow"
    )


def _misshapen(path: str, form: str, value: object) -> str:
    return f"{path} must be {form}, found {reprlib.repr(value)}"
