"""A HeddleJob in a cluster of the harness: apply it, wait for what it shows, ask for its pods."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from heddle_operator.apis.labels import EPOCH_LABEL, JOB_LABEL
from tests.builders import heddle_job
from tests.cluster.api import pods
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterFailed

Json: TypeAlias = dict[str, Any]
JOBS = "/apis/heddle.dev/v1alpha1/namespaces/default/heddlejobs"
WITHIN_S = 240.0  # for a change of plan with new pods, many times what it takes on two idle cores
# A low rate: hundreds of steps stay comparable, and a lost or doubled step still shows.
TRAINING = {"globalBatch": 8, "sequenceLength": 128, "learningRate": 5e-5, "warmupSteps": 0}
ENDLESS = 100_000
# Changes follow each other here, so that none may wait for its turn.
PROMPT = {"joinDebounceSeconds": 0, "cooldownSeconds": 0, "minGainPercent": 0.1, "minHolders": 2}


def job_body(name: str, steps: int = ENDLESS, **elastic: Any) -> Json:
    """A job on the built-in text; further fields of `spec.elastic` by name."""
    return heddle_job(name, training=dict(TRAINING), steps=steps, elastic={**PROMPT, **elastic})


@dataclass(frozen=True, slots=True)
class Job:
    """A job by its name."""

    cluster: Cluster
    name: str

    @classmethod
    def apply(cls, cluster: Cluster, body: Mapping[str, Any]) -> Job:
        """Apply a HeddleJob.

        Raises:
            ClusterFailed: it is refused; the message has the API server's own.
        """
        cluster.kubectl("apply", "--filename=-", stdin=json.dumps(body))
        return cls(cluster, body["metadata"]["name"])

    def get(self) -> Json:
        """The resource."""
        return self.cluster.api.get(f"{JOBS}/{self.name}")

    def wait(self, claim: Callable[[Json], bool], what: str, within_s: float = WITHIN_S) -> Json:
        """The resource, once the claim holds of its status.

        Raises:
            ClusterFailed: it does not within the time; the message says where the job stands.
        """

        def holds(seen: Mapping[str, Json]) -> bool:
            return self.name in seen and claim(seen[self.name].get("status") or {})

        try:
            return self.cluster.api.wait(JOBS, holds, within_s, what)[self.name]
        except ClusterFailed as error:
            status = self.get().get("status") or {}
            said = {key: status.get(key) for key in ("phase", "message", "epoch", "nodes")}
            raise ClusterFailed(f"job {self.name}: {error}; it says {said}") from error

    def wait_until_on(self, *nodes: str, gpus: int = 0, within_s: float = WITHIN_S) -> Json:
        """The status, once the plan that trains is one for exactly these nodes.

        Whether another one is on its way already does not matter.
        """

        def claim(status: Json) -> bool:
            is_there = status.get("nodes") == sorted(nodes)
            return is_there and (not gpus or status.get("activeGPUs") == gpus)

        what = f"training on {', '.join(sorted(nodes))}"
        status: Json = self.wait(claim, what, within_s)["status"]
        return status

    def wait_for_condition(self, kind: str, reason: str, words: str) -> Json:
        """A condition of the job that holds, once it has this reason and these words."""

        def claim(status: Json) -> bool:
            found = condition_of(status, kind)
            return (
                found.get("status") == "True"
                and found["reason"] == reason
                and words in found["message"]
            )

        what = f"the condition {kind} ({reason}) with {words!r}"
        return condition_of(self.wait(claim, what)["status"], kind)

    def wait_for_phase(self, phase: str) -> Json:
        """The status, once the job is in this phase."""
        found: Json = self.wait(lambda status: status.get("phase") == phase, phase)["status"]
        return found

    @property
    def epoch(self) -> int:
        """The epoch that trains."""
        found: int = self.get()["status"]["epoch"]
        return found

    def patch(self, **spec: Any) -> None:
        """Merge into the spec."""
        text = json.dumps({"spec": spec})
        self.cluster.kubectl("patch", "heddlejob", self.name, "--type=merge", f"--patch={text}")

    @property
    def pods_path(self) -> str:
        """Where the API server lists its pods."""
        return f"{pods()}?labelSelector={JOB_LABEL}%3D{self.name}"

    def pods(self) -> dict[str, Json]:
        """Its pods by name."""
        listed = self.cluster.api.get(self.pods_path)["items"]
        return {pod["metadata"]["name"]: pod for pod in listed}

    def wait_for_pods(
        self, claim: Callable[[Mapping[str, Json]], bool], what: str, within_s: float = WITHIN_S
    ) -> dict[str, Json]:
        """Its pods, once the claim holds of them."""
        return self.cluster.api.wait(self.pods_path, claim, within_s, what)

    def epochs(self) -> dict[int, Json]:
        """The data of its epoch records."""
        return {
            int(body["metadata"]["labels"][EPOCH_LABEL]): body["data"]
            for body in self.epoch_bodies()
        }

    def epoch_bodies(self) -> list[Json]:
        """The ConfigMaps of its epochs."""
        path = f"/api/v1/namespaces/default/configmaps?labelSelector={JOB_LABEL}%3D{self.name}"
        found: list[Json] = self.cluster.api.get(path)["items"]
        return found

    def token(self) -> str:
        """Its bearer token, once the operator has made it."""
        path = "/api/v1/namespaces/default/secrets"
        name = f"{self.name}-token"
        secret = self.cluster.api.wait(path, lambda seen: name in seen, WITHIN_S, name)[name]
        return base64.b64decode(secret["data"]["token"]).decode()

    def wait_for_event(self, reason: str, words: str, within_s: float = WITHIN_S) -> Json:
        """An Event about the job with this reason and these words in its note."""

        def is_it(event: Json) -> bool:
            return (
                event.get("regarding", {}).get("name") == self.name
                and event.get("reason") == reason
                and words in event.get("note", "")
            )

        path = "/apis/events.k8s.io/v1/namespaces/default/events"
        what = f"an Event {reason} of {self.name} with {words!r}"
        seen = self.cluster.api.wait(
            path, lambda all_: any(map(is_it, all_.values())), within_s, what
        )
        return next(event for event in seen.values() if is_it(event))

    def delete(self) -> None:
        """Delete it and wait until its pods are gone."""
        self.cluster.kubectl("delete", "heddlejob", self.name, "--timeout=60s")
        self.wait_for_pods(lambda seen: not seen, f"the pods of {self.name} to be gone")


def condition_of(status: Json, kind: str) -> Json:
    """A condition in a status; empty where there is none of that kind."""
    return next((c for c in status.get("conditions", ()) if c["type"] == kind), {})
