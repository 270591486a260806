"""What cannot be had is said in one sentence, and whoever trains goes on training.

One job trains on one node while everything that may keep a joiner from starting does so in turn;
then the modes in which it is not to move by itself; then jobs that cannot be run beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from planner.cluster.composition import Composition, Node
from planner.profiles.profile import load_profile
from planner.request import PlanRequest
from planner.search.driver import search
from tests.builders import work_on
from tests.cluster.assets import Assets
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import NodeSpec
from tests.cluster.errors import ClusterFailed
from tests.cluster.host_mounts import host_mounts
from tests.cluster.installation import install_crd
from tests.e2e.kubernetes.job import TRAINING, Job, Json, job_body
from tests.e2e.kubernetes.listener import Listener
from tests.e2e.kubernetes.operator_process import OperatorProcess, operator_of
from tests.e2e.kubernetes.reference import Reference

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(1200)]

LEAVING = "heddle.dev/draining"
NOWHERE = "localhost/there-is-no-such-image:1"
QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "one-pod"},
    "spec": {"hard": {"pods": "1"}},
}
# Of another version, whatever it may be: an agent whose report is not the one of the contract.
STRANGER = (
    "import http.server as h\n"
    "class Agent(h.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        self.send_response(200); self.end_headers(); self.wfile.write(b'{\"job\": 7}')\n"
    "h.HTTPServer(('', 8470), Agent).serve_forever()\n"
)


@pytest.fixture
def operator(assets: Assets) -> Iterator[OperatorProcess]:
    """An operator of two slow nodes, one of which is kept from joining, and of a strange one."""
    nodes = (
        NodeSpec("n1", 2, "demo-slow"),
        NodeSpec("n2", 2, "demo-slow"),
        NodeSpec("odd", 1, "abacus-9000"),
    )
    with Cluster.start(nodes, assets=assets) as cluster:
        keep_away(cluster)
        install_crd(cluster)
        with operator_of(cluster) as found:
            yield found


def keep_away(cluster: Cluster) -> None:
    """Give n2 a notice, so that nobody starts there."""
    cluster.kubectl("annotate", "--overwrite", "node", "n2", f"{LEAVING}=not-yet")


def let_join(cluster: Cluster) -> None:
    cluster.kubectl("annotate", "node", "n2", f"{LEAVING}-")


def worker(**container: Any) -> Json:
    """`spec.worker` with these fields of its container."""
    return {"template": {"spec": {"containers": [{"name": "worker", **container}]}}}


def test_what_cannot_start_or_run_is_said_while_others_train_on(
    operator: OperatorProcess, reference: Reference
) -> None:
    cluster = operator.cluster
    job = Job.apply(cluster, job_body("steady"))
    with Listener(job) as heard:
        job.wait_until_on("n1", gpus=2)
        ranks = heard.processes()
        joiners_that_cannot_start_leave_the_old_plan_alone(cluster, job, heard)
        jobs_that_cannot_run_say_why(cluster)
        assert heard.processes() == ranks
        assert job.epoch == 1

        job.patch(worker=worker(), elastic={"mode": "Recommend"})
        let_join(cluster)
        job.wait_for_event("PlanRecommended", "not adopted (mode Recommend)")
        heard.wait_for_steps(2)
        assert job.epoch == 1

        a_manual_job_moves_to_the_plan_it_is_given_and_to_no_other(cluster, job, heard)
        two_jobs_never_share_a_gpu(cluster, job)
        heard.wait_for_steps(2)
        job.delete()
        heard.assert_exact(reference)


def joiners_that_cannot_start_leave_the_old_plan_alone(
    cluster: Cluster, job: Job, heard: Listener
) -> None:
    no_image = worker(image=NOWHERE, imagePullPolicy="IfNotPresent")
    too_large = worker(resources={"requests": {"cpu": "1000"}})
    for spec, words in ((no_image, "ImagePull"), (too_large, "Insufficient cpu")):
        job.patch(worker=spec)
        a_join_fails_because_of(words, cluster, job, heard)
    # A merge patch keeps what it does not name.
    job.patch(worker=None)
    cluster.kubectl("apply", "--filename=-", stdin=json.dumps(QUOTA))
    a_join_waits_for_the_quota("quota one-pod leaves 0 pods more", cluster, job, heard)
    cluster.kubectl("delete", "resourcequota", "one-pod")


def a_join_fails_because_of(words: str, cluster: Cluster, job: Job, heard: Listener) -> None:
    """The reason is in an Event; the old plan trains on and the pod goes."""
    let_join(cluster)
    job.wait_for_event("PodsCannotStart", words)
    job.wait_for_condition("NodesLeftOut", "PodsCannotStart", words)
    heard.wait_for_steps(2)
    assert job.epoch == 1
    keep_away(cluster)
    job.wait_for_pods(lambda pods: set(pods) == {"steady-n1-0"}, "the joiner's pod to be gone")


def a_join_waits_for_the_quota(words: str, cluster: Cluster, job: Job, heard: Listener) -> None:
    """No pod is tried that the quota would refuse; the old plan trains on."""
    let_join(cluster)
    job.wait(lambda status: words in status["message"], "a word on the quota")
    heard.wait_for_steps(2)
    assert set(job.pods()) == {"steady-n1-0"}
    assert job.epoch == 1
    keep_away(cluster)


def a_manual_job_moves_to_the_plan_it_is_given_and_to_no_other(
    cluster: Cluster, job: Job, heard: Listener
) -> None:
    job.patch(elastic={"mode": "Manual"}, planRef="chosen")
    job.wait(lambda status: "ConfigMap chosen" in status["message"], "a word on the missing plan")
    assert job.epoch == 1
    cluster.kubectl("create", "configmap", "chosen", f"--from-literal=plan.json={plan_for_both()}")
    status = job.wait_until_on("n1", "n2", gpus=4)
    assert status["plan"]["digest"] == json.loads(plan_for_both())["digest"]
    heard.wait_for_steps(2)


def plan_for_both() -> str:
    """What `heddle plan --output json` would say for both nodes, as JSON."""
    nodes = Composition(
        tuple(Node(name=name, gpu_type="demo-slow", gpus=2) for name in ("n1", "n2"))
    )
    workload = work_on("tiny-llama", int(TRAINING["globalBatch"]), 128)
    found = search(
        PlanRequest(workload=workload, composition=nodes, current=None, min_holders=2),
        load_profile("tiny-llama"),
    )
    return json.dumps({**found.plan.to_json(), "digest": found.plan.digest})


def two_jobs_never_share_a_gpu(cluster: Cluster, first: Job) -> None:
    """The second waits, and says who holds what; it starts as soon as the first one leaves.

    Its workers turn out to be of another version, which is said too.
    """
    command = host_mounts().command("-c", STRANGER)
    body = changed("second", data={"path": "/not/used"}, worker=worker(command=command))
    second = Job.apply(cluster, body)
    second.wait_for_event("InsufficientGPUs", "n1 has no free GPU (other pods hold 2 of 2)")
    assert second.pods() == {}
    first.patch(elastic={"mode": "Auto", "maxGPUs": 2}, planRef=None)
    second.wait_for_pods(
        lambda pods: any(pod["status"]["phase"] == "Running" for pod in pods.values()),
        "the second job's pod to run",
    )
    second.wait_for_event("PodsCannotStart", "its agent is of another version")
    first.wait(lambda status: status.get("grantedGPUs") == 2, "the first job on two GPUs")
    second.delete()


def jobs_that_cannot_run_say_why(cluster: Cluster) -> None:
    for body, words in refused_at_once():
        with pytest.raises(ClusterFailed) as refused:
            Job.apply(cluster, body)
        assert words in str(refused.value)
    told = [Job.apply(cluster, body) for body, _, _ in told_later()]
    for job, (_, reason, words) in zip(told, told_later(), strict=True):
        job.wait_for_event(reason, words)
        status = job.wait(lambda status, words=words: words in status.get("message", ""), words)
        assert len(status["status"]["message"]) < 1000
    for job in told:
        job.delete()


def changed(name: str, **spec: Any) -> Json:
    """A job that is as it should be but for these fields of its spec."""
    body = job_body(name)
    body["spec"] |= spec
    return body


def refused_at_once() -> list[tuple[Json, str]]:
    """Jobs that the API server refuses, and its words."""
    limits = job_body("limits", minGPUs=4, maxGPUs=2)
    return [
        (limits, "minGPUs is above maxGPUs; lower one or raise the other"),
        (job_body("n" * 64), "more than 63 characters"),
        (
            changed("both", data={"builtin": "text", "path": "/x"}),
            "exactly one of builtin, path and blend",
        ),
        (changed("none", steps=0), "greater than or equal to 1"),
        (changed("typo", stepz=3), 'unknown field "spec.stepz"'),
    ]


def told_later() -> list[tuple[Json, str, str]]:
    """Jobs that only the operator can judge; the reason of its Event, and its words."""
    only_odd = {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "odd"}}}}
    nowhere = {"template": {"spec": {"nodeSelector": {"no": "node"}}}}
    rooted = {"template": {"spec": {"hostNetwork": True}}}
    strange = job_body("strange", gpuTypes={"allow": ["abacus-9000"]})
    return [
        (changed("unknown", model={"name": "no-such-model"}), "InvalidSpec", "no-such-model"),
        (strange, "InvalidSpec", "'abacus-9000', for which tiny-llama has no profile"),
        (changed("rooted", worker=rooted), "InvalidSpec", "a job may not set hostNetwork"),
        (changed("odd", worker=only_odd), "InsufficientGPUs", "odd is of GPU type abacus-9000"),
        (changed("nowhere", worker=nowhere), "InsufficientGPUs", "0 GPUs are usable"),
    ]
