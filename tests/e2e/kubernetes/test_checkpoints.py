"""A job that loses all nodes twice, is suspended on one GPU type and goes on on another.

The chart is upgraded while it is suspended.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.assets import Assets
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import NodeSpec
from tests.cluster.installation import OPERATOR_NODE, Installation
from tests.e2e.kubernetes.job import Job, Json, condition_of, job_body
from tests.e2e.kubernetes.listener import Listener
from tests.e2e.kubernetes.reference import Reference

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(900)]
EVERY = 5  # steps
ALLOW = "--set=worker.allow={hostPath}"  # of the volume of the checkpoints


@pytest.fixture(scope="module")
def chart(assets: Assets) -> Iterator[Installation]:
    """Heddle installed by its chart beside a node."""
    with Cluster.start((OPERATOR_NODE, NodeSpec("n1", 2, "demo-slow")), assets=assets) as cluster:
        installation = Installation(cluster)
        installation.install(ALLOW)
        yield installation
        print(installation.operator_log())


def saving_body(folder: Path) -> Json:
    """A job that saves each fifth step into a folder of this machine, which all its nodes are."""
    body = job_body("saves")
    volume = {"name": "saves", "hostPath": {"path": str(folder), "type": "Directory"}}
    mount = {"name": "worker", "volumeMounts": [{"name": "saves", "mountPath": "/saves"}]}
    body["spec"]["checkpoint"] = {"path": "/saves", "interval": {"steps": EVERY}}
    body["spec"]["worker"] = {"template": {"spec": {"volumes": [volume], "containers": [mount]}}}
    return body


def saved_step(status: Json) -> int:
    found: int = status.get("checkpoint", {}).get("step", 0)
    return found


def replaced(cluster: Cluster, job: Job, heard: Listener, old: str, new: str) -> None:
    """All nodes of the job lose their power, and another one comes."""
    heard.wait_for_steps(EVERY)
    saved = saved_step(job.wait(saved_step, "a checkpoint")["status"])
    cluster.power_off(old)
    cluster.add_node(new, 2, "demo-slow")
    job.wait_for_event("StateLost", "the job goes back to a checkpoint")
    status = job.wait_until_on(new, gpus=2)
    assert status["checkpoint"]["restoredStep"] >= saved
    heard.wait_for_steps(2)


def test_a_job_survives_losing_all_nodes_twice_and_a_suspension(
    chart: Installation, reference: Reference, tmp_path: Path
) -> None:
    cluster = chart.cluster
    job = Job.apply(cluster, saving_body(tmp_path))
    with Listener(job) as heard:
        job.wait_until_on("n1", gpus=2)
        replaced(cluster, job, heard, "n1", "n2")
        replaced(cluster, job, heard, "n2", "n3")
        job.wait_for_event("Restored", "goes on from the checkpoint of step")

        job.patch(suspend=True)
        status = job.wait_for_phase("Suspended")
        # As a cloud's controller does, once the machines are gone: no kubelet ends their pods.
        cluster.kubectl("delete", "nodes", "n1", "n2")
        job.wait_for_pods(lambda seen: not seen, "no pod of a suspended job")
        assert condition_of(status, "Ready")["status"] == "False"
        job.wait_for_event("Suspended", "after step")
        step = saved_step(job.get()["status"])
        chart.upgrade("--set=log.level=debug", ALLOW)
        cluster.power_off("n3")
        cluster.kubectl("delete", "nodes", "n3")
        cluster.add_node("n4", 2, "demo-fast")

        job.patch(suspend=False)
        status = job.wait_until_on("n4", gpus=2)
        assert status["checkpoint"]["restoredStep"] == step
        heard.wait_for_steps(EVERY)
        heard.assert_exact(reference)
    outcomes = [record["outcome"] for _, record in sorted(job.epochs().items())]
    assert [outcome for outcome in outcomes if outcome != "aborted"] == [
        "lost",
        "lost",
        "suspended",
        "live",
    ]
    assert "Last Save" in cluster.kubectl("get", "heddlejob", "-o", "wide").title()
    job.delete()
