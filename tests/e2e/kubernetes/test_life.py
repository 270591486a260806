"""A job, installed by the chart, through everything that befalls its nodes and its operator.

The scenarios are long because each start of a job costs a dozen seconds, and because what comes
before is what makes the next event hard.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from safetensors import safe_open

from planner.model.catalogue import find_model
from planner.model.tensors import model_tensors
from tests.cluster.api import NODES
from tests.cluster.assets import Assets
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import GPU_RESOURCE, NodeSpec
from tests.cluster.host_mounts import ROOT, host_mounts
from tests.cluster.installation import CHART, OPERATOR_NODE, Installation, heddle_command
from tests.e2e.kubernetes.job import WITHIN_S, Job, Json, job_body
from tests.e2e.kubernetes.listener import Listener
from tests.e2e.kubernetes.reference import STEPS_TO_COMPLETE, Reference
from worker.weights.hugging_face.families import FAMILIES
from worker.weights.hugging_face.reading import open_weights

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(1200)]

DRAIN = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={WITHIN_S:g}s")
TAINT = "cloud.google.com/impending-node-termination:NoSchedule"
NEXT_WORKERS = (
    "--set=worker.image.repository=localhost/not-there-yet",
    "--set-string=worker.image.tag=2",
)
WEIGHTS_TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def chart(assets: Assets) -> Iterator[Installation]:
    """Heddle installed by its chart beside two slow nodes of two GPUs each, and another team's."""
    slow = (NodeSpec(name, 2, "demo-slow", (("team", "life"),)) for name in ("n1", "n2"))
    beside = NodeSpec("n4", 2, labels=(("team", "beside"),))
    with Cluster.start((OPERATOR_NODE, *slow, beside), assets=assets) as cluster:
        installation = Installation(cluster)
        installation.install("--set=worker.allow={hostPath}")  # of the volume of final weights
        yield installation
        print(installation.operator_log())


def body_of_team(team: str) -> Json:
    """A job that keeps to the nodes of its team."""
    body = job_body(team)
    body["spec"]["worker"] = {"template": {"spec": {"nodeSelector": {"team": team}}}}
    return body


def wait_for_gpus(cluster: Cluster, node: str, field: str, count: int) -> None:
    """Wait until a node shows so many GPUs in `capacity` or `allocatable`."""

    def shown(seen: dict[str, dict]) -> bool:
        return int(seen[node]["status"][field].get(GPU_RESOURCE, 0)) == count

    cluster.api.wait(NODES, shown, WITHIN_S, f"{node} with {field} of {count} GPUs")


def test_the_chart_is_clean_and_renders_what_its_values_say(chart: Installation) -> None:
    helm = chart.cluster.helm
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))
    rendered = helm("template", "trial", str(CHART), "--set=crds.enabled=false")
    assert "kind: Deployment" in rendered
    assert "CustomResourceDefinition" not in rendered
    said = helm("template", "trial", str(CHART), "--set=lease.seconds=1", check=False)
    assert said == ""  # refused by values.schema.json


def test_a_job_lives_through_all_that_befalls_its_nodes_and_its_operator(
    chart: Installation, reference: Reference
) -> None:
    cluster = chart.cluster
    job = Job.apply(cluster, body_of_team("life"))
    mixture = body_of_team("beside")
    mixture["spec"]["model"] = {"name": "tiny-mixtral"}
    other = Job.apply(cluster, mixture)
    with Listener(job) as heard, Listener(other) as heard_beside:
        job.wait_until_on("n1", "n2", gpus=4)  # at once, or a node that is late joins
        heard.wait_for_steps(2)

        cluster.add_node("n3", 2, "demo-fast")
        cluster.kubectl("label", "node", "n3", "team=life")
        assert job.wait_until_on("n1", "n2", "n3", gpus=6)["plan"]["reason"] == "join"
        heard.wait_for_steps(2)

        a_restarted_kubelet_is_no_loss(cluster, job, heard)
        other.wait_until_on("n4", gpus=2)
        heard_beside.wait_for_steps(2)
        both_go_on_without_their_operator(chart, heard, heard_beside)
        a_node_joins_the_pod_that_is_older_than_the_operator(cluster, other, heard_beside)
        other.delete()
        a_drain_waits_until_the_state_has_moved(cluster, job, heard)
        a_sick_gpu_is_left(cluster, job, heard)
        a_node_with_a_termination_taint_is_left(cluster, job, heard)
        the_job_can_be_looked_at(cluster, job)
        job.delete()
        assert not [record for record in job.epochs().values() if record["reason"] == "loss"]
        heard.assert_exact(reference)
    chart.upgrade("--set=worker.allow={hostPath}")


def a_restarted_kubelet_is_no_loss(cluster: Cluster, job: Job, heard: Listener) -> None:
    """For two seconds its node has no GPU at all, as far as the API server knows."""
    ranks, epoch = heard.processes(), job.epoch
    cluster.restart_kubelet("n1")
    wait_for_gpus(cluster, "n1", "capacity", 0)
    wait_for_gpus(cluster, "n1", "allocatable", 2)
    heard.wait_for_steps(3)
    assert (job.epoch, heard.processes()) == (epoch, ranks)


def a_drain_waits_until_the_state_has_moved(cluster: Cluster, job: Job, heard: Listener) -> None:
    """The pod is evicted, trains on through its grace, and goes once its state has moved."""
    cluster.kubectl("drain", "n2", *DRAIN)
    assert job.wait_until_on("n1", "n3")["plan"]["reason"] == "drain"
    assert not [pod for pod in job.pods().values() if pod["spec"]["nodeName"] == "n2"]
    heard.wait_for_steps(2)


def both_go_on_without_their_operator(chart: Installation, *jobs: Listener) -> None:
    """Upgrade, uninstall and reinstall change nothing for the ranks."""
    before = [(heard.job.epoch, heard.processes()) for heard in jobs]
    chart.upgrade("--set=log.level=debug", "--set=worker.allow={hostPath}")
    assert "--log-level=debug" in chart.cluster.kubectl("get", chart.operator, "--output=yaml")
    chart.uninstall()
    assert not chart.cluster.kubectl("get", "deployments", "--output=name")
    assert "heddlejobs.heddle.dev" in chart.cluster.kubectl("get", "crds", "--output=name")
    for heard in jobs:
        heard.wait_for_steps(5)
    # Pods that join from now on are of the image that the job started with: there is no other.
    chart.install("--set=worker.allow={hostPath}", *NEXT_WORKERS)
    for heard in jobs:
        trained = heard.step
        heard.job.wait(
            lambda status, trained=trained: status["progress"]["step"] > trained,
            "a status of the new operator",
        )
    assert [(heard.job.epoch, heard.processes()) for heard in jobs] == before


def a_node_joins_the_pod_that_is_older_than_the_operator(
    cluster: Cluster, job: Job, heard: Listener
) -> None:
    ranks = heard.processes()
    cluster.add_node("n5", 2)
    cluster.kubectl("label", "node", "n5", "team=beside")
    assert job.wait_until_on("n4", "n5", gpus=4)["plan"]["reason"] == "join"
    heard.wait_for_steps(2)
    assert ranks < heard.processes()
    heard.assert_nothing_lost()


def a_sick_gpu_is_left(cluster: Cluster, job: Job, heard: Listener) -> None:
    cluster.sick_gpu("n3", 1)
    assert job.wait_until_on("n1")["plan"]["reason"] == "drain"
    heard.wait_for_steps(2)
    cluster.heal_gpus("n3")


def a_node_with_a_termination_taint_is_left(cluster: Cluster, job: Job, heard: Listener) -> None:
    job.wait(lambda status: "n3" in status["nodes"], "the job to be back on n3")
    cluster.kubectl("taint", "node", "n3", TAINT)
    assert job.wait_until_on("n1")["plan"]["reason"] == "drain"
    job.wait_for_event("NodeLeaving", "impending-node-termination")
    heard.wait_for_steps(2)


def the_job_can_be_looked_at(cluster: Cluster, job: Job) -> None:
    table = cluster.kubectl("get", "heddlejob", job.name).splitlines()
    assert table[0].split()[:5] == ["NAME", "PHASE", "EPOCH", "GPUS", "STEP"]
    assert table[1].split()[:4] == [job.name, "Running", str(job.epoch), "2"]
    assert json.loads(heddle(cluster, "status", job.name, "--plan"))["digest"] in heddle(
        cluster, "status", job.name, "--output", "json"
    )


def heddle(cluster: Cluster, *arguments: str) -> str:
    """What `heddle` prints, as a user of this cluster runs it."""
    done = subprocess.run(
        [*heddle_command(host_mounts()), *arguments],
        env={**cluster.environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_complete_job_ends_its_pods_well_and_leaves_the_weights_of_one_process(
    chart: Installation, reference: Reference, tmp_path: Path
) -> None:
    volume = {"name": "out", "hostPath": {"path": str(tmp_path), "type": "Directory"}}
    mount = {"name": "worker", "volumeMounts": [{"name": "out", "mountPath": "/out"}]}
    body = job_body(
        "short", steps=STEPS_TO_COMPLETE, leaveOnCordon=True, gpuTypes={"allow": ["demo-slow"]}
    )
    body["spec"]["output"] = {"path": "/out"}
    body["spec"]["worker"] = {"template": {"spec": {"volumes": [volume], "containers": [mount]}}}
    chart.cluster.kubectl("uncordon", "n2")
    job = Job.apply(chart.cluster, body)
    with Listener(job) as heard:
        job.wait_until_on("n1", "n2")
        heard.wait_for_steps(2)
        chart.cluster.kubectl("cordon", "n2")  # which is a notice to this job
        job.wait_until_on("n1")
        status = job.wait_for_phase("Complete")
        assert status["progress"]["step"] == STEPS_TO_COMPLETE
        job.wait_for_pods(have_ended_well, "pods that exited with 0")
        assert heard.step + 1 == STEPS_TO_COMPLETE
        heard.assert_exact(reference)
    assert "short-n1-0 | " in heddle(chart.cluster, "logs", "short")
    apart = furthest_apart(tmp_path, reference.weights)
    print(f"{STEPS_TO_COMPLETE} steps: weights are up to {apart:.1e} apart")
    assert apart <= WEIGHTS_TOLERANCE
    job.delete()


def have_ended_well(pods: Mapping[str, Json]) -> bool:
    return bool(pods) and all(pod["status"]["phase"] == "Succeeded" for pod in pods.values())


def furthest_apart(folder: Path, expected: Path) -> float:
    """The largest difference of any weight; all tensors must be there."""
    model = find_model("tiny-llama")
    found, worst = open_weights(folder, model, FAMILIES["llama"]), 0.0
    with safe_open(expected, "pt") as wanted:
        assert {tensor.name for tensor in model_tensors(model)} == set(wanted.keys())
        for tensor in model_tensors(model):
            whole = found.first_rows(tensor, 0, tensor.rows)
            worst = max(worst, float((whole - wanted.get_tensor(tensor.name)).abs().max()))
    return worst
