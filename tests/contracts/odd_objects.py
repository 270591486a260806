"""Objects of strangers, drawn at random: of any form that an API server may store."""

from __future__ import annotations

from random import Random
from typing import Any

Json = dict[str, Any]
JOB, JOB_UID = "steady", "uid"
WORDS = ("", "x", "0", "-1", "1e9", "nan", "null", "[", "{}", "\u2028", "a" * 200, "../..")
NUMBERS = ("0", "1", "8", "1000", "1k", "2e3", "4Ki", "1M", "3", "1E")
KEYS = (
    "heddle.dev/job", "heddle.dev/epoch", "heddle.dev/gpu-type", "heddle.dev/evictable",
    "nvidia.com/gpu.product", "nvidia.com/gpu.memory", "nvidia.com/gpu.clique",
)  # fmt: skip
NOTES = ("heddle.dev/node", "heddle.dev/ordinal", "heddle.dev/created-at", "heddle.dev/draining")
RECORD = (
    *("plan", "digest", "reason", "composition", "adoptedAt", "outcome", "seal", "sealedAt"),
    *("closedAt", "stepSeconds", "cause", "failures"),
)


class Strangers:
    """Draws objects; the same seed draws the same ones.

    Args:
        job_uid: of a job that some claim to belong to.
    """

    def __init__(self, seed: int, job_uid: str) -> None:
        self._random = Random(seed)
        self._job_uid = job_uid

    def draw(self, number: int) -> tuple[str, Json]:
        """The collection's path of the next object, and the object."""
        kind = self._random.choice(("nodes", "pods", "configmaps", "heddlejobs"))
        body: Json = getattr(self, f"_{kind}")()
        body["metadata"] = {**self._metadata(), **body.get("metadata", {}), "name": f"odd-{number}"}
        if kind == "nodes":
            return "/api/v1/nodes", body
        group = "/apis/heddle.dev/v1alpha1" if kind == "heddlejobs" else "/api/v1"
        return f"{group}/namespaces/default/{kind}", body

    def _some(self, of: tuple[str, ...]) -> list[str]:
        return [key for key in of if self._random.random() < 0.5]

    def _label(self) -> str:
        return self._random.choice([w for w in WORDS if w.isalnum() and len(w) < 64] + [JOB])

    def _metadata(self) -> Json:
        owner = {
            "apiVersion": "heddle.dev/v1alpha1", "kind": "HeddleJob", "name": JOB,
            "uid": self._job_uid, "controller": True,
        }  # fmt: skip
        return {
            "labels": {key: self._label() for key in self._some(KEYS)},
            "annotations": {key: self._random.choice(WORDS) for key in self._some(NOTES)},
            "ownerReferences": [owner] if self._random.random() < 0.5 else [],
        }

    def _nodes(self) -> Json:
        resources = {"nvidia.com/gpu": self._random.choice(NUMBERS)}
        taint = {"key": self._label() or "k", "effect": "NoSchedule"}
        return {
            "metadata": {"ownerReferences": []},
            "spec": self._random.choice(({}, {"taints": [taint]}, {"unschedulable": True})),
            "status": self._random.choice(
                (
                    {},
                    {"capacity": resources},
                    {"capacity": resources, "allocatable": resources},
                    {"conditions": [{"type": "Ready", "status": self._label()}]},
                    {"conditions": [{"type": "", "status": "True"}], "allocatable": resources},
                )
            ),
        }

    def _pods(self) -> Json:
        gpus = {"nvidia.com/gpu": self._random.choice(NUMBERS)}
        resources = self._random.choice(({}, {"limits": gpus}, {"limits": gpus, "requests": gpus}))
        container = {"name": "c", "image": "none", "resources": resources}
        spec: Json = {"containers": [container]}
        if self._random.random() < 0.3:
            spec["initContainers"] = [{**container, "name": "i", "restartPolicy": "Always"}]
        if self._random.random() < 0.5:
            spec["nodeName"] = f"odd-{self._random.randrange(1000)}"
        return {"spec": spec}

    def _configmaps(self) -> Json:
        return {"data": {key: self._random.choice(WORDS) for key in self._some(RECORD)}}

    def _heddlejobs(self) -> Json:
        odd: tuple[Any, ...] = (None, 7, "x", [], {}, [None], [{}], {"a": 1}, [{"name": "worker"}])
        keys = ("containers", "volumes", "nodeSelector", "tolerations", "affinity", "hostNetwork")
        template: Json = {"spec": {key: self._random.choice(odd) for key in self._some(keys)}}
        if self._random.random() < 0.2:
            template = {"spec": self._random.choice(odd)}
        names = ("tiny-llama", "nobody", "../x", "config.json")
        return {
            "metadata": {"ownerReferences": []},
            "apiVersion": "heddle.dev/v1alpha1",
            "kind": "HeddleJob",
            "spec": {
                "model": {"name": self._random.choice(names)},
                "data": {"path": self._random.choice(("/x", "..", "/" + "a" * 300))},
                "training": {
                    "globalBatch": self._random.choice((1, 7, 2**31)),
                    "sequenceLength": self._random.choice((1, 128, 2**31)),
                    "learningRate": self._random.choice((1e-300, 1e30, 1.0)),
                },
                "steps": self._random.choice((1, 10**9)),
                "elastic": {"minGPUs": self._random.choice((1, 10**6))},
                "worker": {"template": template},
            },
        }
