"""The worker pods of a job: place, GPUs, identity, and what templates add to them.

Invariant: equal input gives equal bodies, and what a template may not change (place, GPUs,
identity) is written last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from heddle_operator.apis.data import TEXT_BYTES
from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.labels import (
    AGENT_PORT,
    CREATED_ANNOTATION,
    NODE_ANNOTATION,
    ORDINAL_ANNOTATION,
    WORKER,
)
from heddle_operator.inventory.filters import GPU_TAINT
from heddle_operator.inventory.host_ports import (
    AGENT,
    PORTS,
    free_port,
    has_host_network,
    range_of,
)
from heddle_operator.inventory.quantities import times
from heddle_operator.inventory.requests import GPU
from heddle_operator.resources.metadata import Body, metadata
from heddle_operator.resources.pod_template import merge
from heddle_operator.resources.secret import token_name
from heddle_operator.state.actions import CreatePod
from worker.contract_version import CONTRACT, VARIABLE
from worker.log_lines import Format

GRACE_S = 60  # from the notice to the end of a pod; the agent trains on until 5 s before
TOLERATION_S = 10  # a node may be not ready for so long before its pods get their notice
TOKEN_FOLDER, DATA_FOLDER = "/var/run/heddle", "/var/lib/heddle/data"
# Of every container, sidecars too, so that a pod passes the Pod Security Standard `restricted`.
_UNPRIVILEGED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
SHM = "heddle-shm"
# What no init container may have, or what is the worker's alone.
WORKERS_OWN = (
    *("ports", "args", "resources"),
    *("livenessProbe", "readinessProbe", "startupProbe", "lifecycle"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDefaults:
    """Defaults of an administrator for all worker pods.

    Attributes:
        image: of the workers.
        template: a pod template that is merged over the job's own: what it says holds.
        log_format: of workers whose job does not say.
        base: a pod template that is merged below the job's own: the job may say otherwise.
        allow: what a job's own template may hold besides; see `template_rules`.
        per_gpu: quantities that a pod asks for with each of its GPUs, below all templates.
        shm_per_gpu: limit of /dev/shm for each GPU.
        host_ports: FIRST-LAST, of agents whose pods have the network of their host.
    """

    image: str
    template: Mapping[str, Any]
    log_format: Format = "text"
    base: Mapping[str, Any] = field(default_factory=dict)
    allow: frozenset[str] = frozenset()
    per_gpu: Mapping[str, str] = field(default_factory=dict)
    shm_per_gpu: str = "8Gi"
    host_ports: str = PORTS

    @property
    def templates(self) -> tuple[Mapping[str, Any], ...]:
        """The administrator's, below and over the job's own."""
        return self.base, self.template


def pod_spec_of(job: HeddleJob, defaults: WorkerDefaults, port: int = AGENT_PORT) -> Body:
    """Spec of the job's pods as far as it is the same for all of them, but for the agent's port."""
    base: Body = {
        "terminationGracePeriodSeconds": GRACE_S,
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [
            {"key": GPU_TAINT, "operator": "Exists"},
            *(
                {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute",
                 "tolerationSeconds": TOLERATION_S}
                for key in ("not-ready", "unreachable")
            ),
        ],
        "containers": [_worker_container(defaults.image, port)],
        "volumes": [
            {"name": "heddle-token", "secret": {"secretName": token_name(job)}},
            {"name": SHM, "emptyDir": {"medium": "Memory"}},
            {"name": "heddle-tmp", "emptyDir": {}},
            {"name": "heddle-data", "emptyDir": {}},
        ],
    }  # fmt: skip
    for template in (defaults.base, job.spec.worker.template, defaults.template):
        base = merge(base, template.get("spec") or {})
    for kind in ("containers", "initContainers"):
        if kind in base:
            base[kind] = [_secured(row) for row in base[kind]]
    return base


def per_gpu_of(spec: Mapping[str, Any], defaults: WorkerDefaults) -> Mapping[str, str]:
    """Quantities that a pod of this spec requests with each GPU, but for what its templates say."""
    worker = next(row for row in spec["containers"] if row["name"] == WORKER)
    own = worker.get("resources") or {}
    said = {*(own.get("limits") or {}), *(own.get("requests") or {})}
    return {name: each for name, each in defaults.per_gpu.items() if name not in said}


def trials(
    job: HeddleJob, defaults: WorkerDefaults, now_wall_s: float, largest_gpus: int
) -> Iterator[Body]:
    """Pods of a job that are tried and never made: with one GPU, and with a whole node's.

    A policy may take pods of whole nodes alone.
    """
    for gpus in sorted({1, largest_gpus}):
        trial = CreatePod(f"{job.name}-dry-run", "dry-run", 0, gpus)
        yield pod_body(job, trial, defaults, now_wall_s)


def pod_body(
    job: HeddleJob,
    action: CreatePod,
    defaults: WorkerDefaults,
    now_wall_s: float,
    taken: frozenset[int] = frozenset(),
) -> Body:
    """One worker pod: tied to its node, with exactly the GPUs that were granted.

    Args:
        job: whose pod it is.
        action: its name, its node and its GPUs.
        defaults: of the administrator.
        now_wall_s: of the wall clock.
        taken: ports of its node that other pods have.

    Raises:
        NoHostPort: it has the network of its host, which has no port left for it.
    """
    spec, port = pod_spec_of(job, defaults), AGENT_PORT
    ports = range_of(defaults.host_ports)
    if has_host_network(spec) and ports is not None:
        # A port may be held by what no watch tells, so that a later pod begins elsewhere.
        begin = f"{action.name} {now_wall_s // 60:.0f}"
        port = free_port(ports, taken, begin, action.node)
        spec = pod_spec_of(job, defaults, port)
    spec.pop("nodeName", None)
    spec |= {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "affinity": _tied_to(action.node, spec.get("affinity") or {}),
    }
    containers = {container["name"]: container for container in spec["containers"]}
    worker = containers.pop(WORKER)
    if has_host_network(spec):  # else NCCL takes pods with one host name for one host
        worker = merge({"env": [{"name": "NCCL_HOSTID", "value": action.name}]}, worker)
    arguments = _arguments(job, action, defaults, spec, port)
    gpus = {GPU: str(action.gpus)}
    own = worker.get("resources") or {}
    asked = merge(_with_gpus(per_gpu_of(spec, defaults), action.gpus), own)
    resources = merge(asked, {"limits": gpus, "requests": gpus})
    spec["volumes"] = [_limited(row, defaults, action.gpus) for row in spec["volumes"]]
    agent = {
        **worker,
        "args": [*arguments, *worker.get("args", [])],
        "resources": resources,
    }
    spec["containers"] = [agent, *containers.values()]
    data = _data_containers(job, {**worker, "resources": asked})
    if data:
        spec["initContainers"] = [*spec.get("initContainers", []), *data]
    noted = {
        NODE_ANNOTATION: action.node,
        ORDINAL_ANNOTATION: str(action.ordinal),
        CREATED_ANNOTATION: f"{now_wall_s:.3f}",
    }
    body = metadata(job, action.name, **{"app.kubernetes.io/component": "worker"})
    for template in (defaults.template, job.spec.worker.template, defaults.base):
        given = template.get("metadata") or {}
        body["labels"] = {**(given.get("labels") or {}), **body["labels"]}
        noted = {**(given.get("annotations") or {}), **noted}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**body, "annotations": noted},
        "spec": spec,
    }


def _arguments(
    job: HeddleJob, action: CreatePod, defaults: WorkerDefaults, spec: Body, port: int
) -> list[str]:
    """Of the agent's command."""
    arguments = [
        *("worker", "agent", "--job", job.name, "--pod", action.name, "--node", action.node),
        *("--gpus", str(action.gpus), "--host", "$(POD_IP)", "--port", str(port)),
        *("--token-file", f"{TOKEN_FOLDER}/token"),
        *("--grace-s", str(spec["terminationGracePeriodSeconds"])),
        *("--peer-timeout-s", f"{job.spec.elastic.peer_timeout_seconds:g}"),
        *("--log-format", job.spec.worker.log_format or defaults.log_format),
    ]
    if job.spec.worker.device != "Auto":  # which an agent takes by itself, an older one too
        arguments += ["--device", job.spec.worker.device.lower()]
    return arguments


def with_data_folder(job: HeddleJob) -> HeddleJob:
    """The job as its pods see it: init containers make pairs of its texts."""
    return job.with_data(DATA_FOLDER)


def _secured(container: Mapping[str, Any]) -> Body:
    """The container unprivileged, unless it says otherwise."""
    own = container.get("securityContext") or {}
    added = (own.get("capabilities") or {}).get("add") or ()
    given: Body = dict(_UNPRIVILEGED)
    if own.get("privileged") or "CAP_SYS_ADMIN" in added:
        del given["allowPrivilegeEscalation"]  # the API server takes no such pod that denies it
    return merge({"securityContext": given}, container)


def _worker_container(image: str, port: int) -> Body:
    health = {"path": "/healthz", "port": port}
    return {
        "name": WORKER,
        "image": image,
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "USER", "value": "heddle"},  # torch asks for a name, and the uid may have none
            {"name": "HOME", "value": "/tmp"},
            {"name": "TMPDIR", "value": "/tmp"},
            {"name": VARIABLE, "value": str(CONTRACT)},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},  # CUDA and NVML
        ],
        "ports": [{"name": AGENT, "containerPort": port}],
        # A pod that does not answer for two minutes is beyond what the operator waits for.
        "readinessProbe": {"httpGet": health, "periodSeconds": 5, "timeoutSeconds": 2},
        "livenessProbe": {
            "httpGet": health,
            "initialDelaySeconds": 60,
            "periodSeconds": 20,
            "timeoutSeconds": 10,
            "failureThreshold": 6,
        },
        "securityContext": {"readOnlyRootFilesystem": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "heddle-token", "mountPath": TOKEN_FOLDER, "readOnly": True},
            {"name": SHM, "mountPath": "/dev/shm"},
            {"name": "heddle-tmp", "mountPath": "/tmp"},
            {"name": "heddle-data", "mountPath": DATA_FOLDER},
        ],
    }


def _with_gpus(per_gpu: Mapping[str, str], gpus: int) -> Body:
    """Requests of a pod with its GPUs; devices are limited, too."""
    asked = {name: times(each, gpus) for name, each in per_gpu.items()}
    devices = {name: quantity for name, quantity in asked.items() if "/" in name}
    return {"requests": asked, **({"limits": devices} if devices else {})}


def _limited(volume: Mapping[str, Any], defaults: WorkerDefaults, gpus: int) -> Body:
    """The volume of /dev/shm with its limit; any other as it is."""
    folder = volume.get("emptyDir")
    if volume.get("name") != SHM or not isinstance(folder, Mapping):
        return dict(volume)
    limit = times(defaults.shm_per_gpu, gpus)
    return {**volume, "emptyDir": {"sizeLimit": limit, **folder}}


def _data_containers(job: HeddleJob, worker: Mapping[str, Any]) -> list[Body]:
    """Make pairs of the job's texts where the worker looks for them; the same in every pod.

    They run before the worker, with its requests but for devices: a quota asks each container.
    """
    kept = {key: value for key, value in worker.items() if key not in WORKERS_OWN}
    resources = {
        kind: {key: value for key, value in given.items() if "/" not in key}
        for kind, given in (worker.get("resources") or {}).items()
    }
    builtin = ("--builtin", str(job.spec.data.builtin), "--max-bytes", str(TEXT_BYTES))
    return [
        {
            **kept,
            "name": f"data-{index}" if index else "data",
            "args": list(command),
            "resources": resources,
        }
        for index, command in enumerate(job.spec.data.commands(DATA_FOLDER, builtin))
    ]


def _tied_to(node: str, affinity: Mapping[str, Any]) -> Body:
    """The template's affinity, and this very node in each of its alternatives."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    nodes = affinity.get("nodeAffinity") or {}
    terms: Sequence[Mapping[str, Any]] = (nodes.get(required) or {}).get("nodeSelectorTerms") or [
        {}
    ]
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    tied = [{**term, "matchFields": [*(term.get("matchFields") or []), field]} for term in terms]
    return {**affinity, "nodeAffinity": {**nodes, required: {"nodeSelectorTerms": tied}}}
