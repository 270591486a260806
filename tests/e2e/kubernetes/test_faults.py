"""Nodes fail as nodes do, without a word: the job leaves them, loses no step, and comes back.

Two nodes hold every piece of the state twice, so that one may go.  Each fault strikes the same node
of a job that trains on both, and is healed before the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cluster.assets import Assets
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import NodeSpec
from tests.e2e.kubernetes.job import Job, Json, job_body
from tests.e2e.kubernetes.listener import Listener
from tests.e2e.kubernetes.operator_process import OperatorProcess, operator_on
from tests.e2e.kubernetes.reference import Reference

SILENCE_S = 7.0  # until survivors are told: 10 s from the newest answer, which is up to 3 s old
OTHER_RANK_S = 0.2  # a pod tells the steps of one of its two ranks; the slower one has the stall
pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(1200)]


@pytest.fixture
def operator(assets: Assets) -> Iterator[OperatorProcess]:
    """An operator of two slow nodes with two GPUs each."""
    nodes = (NodeSpec("n1", 2, "demo-slow"), NodeSpec("n2", 2, "demo-slow"))
    with operator_on(nodes, assets) as found:
        yield found


def test_a_job_survives_what_a_power_failure_and_every_kind_of_partition_do_to_a_node(
    operator: OperatorProcess, reference: Reference
) -> None:
    cluster = operator.cluster
    job = Job.apply(cluster, job_body("faults"))
    with Listener(job) as heard:
        job.wait_until_on("n1", "n2", gpus=4)
        heard.wait_for_steps(2)
        befall(cluster.power_off, cluster, job, heard, reason="loss")
        befall(cluster.cut, cluster, job, heard, reason="loss")
        befall(cluster.cut_api, cluster, job, heard, reason="drain")
        the_peers_lose_each_other(cluster, job, heard)
        heard.assert_exact(reference)


def befall(
    fault: Callable[[str], None], cluster: Cluster, job: Job, heard: Listener, reason: str
) -> None:
    """The fault strikes n2: the job leaves it for this reason, and returns once it is healed."""
    fault("n2")
    assert job.wait_until_on("n1")["plan"]["reason"] == reason
    heard.wait_for_steps(2)
    the_status_has_all_the_time_without_a_step(job, heard)
    cluster.heal("n2")
    job.wait_until_on("n1", "n2", gpus=4)
    heard.wait_for_steps(2)


def the_status_has_all_the_time_without_a_step(job: Job, heard: Listener) -> None:
    """The stall is what the steps of the pod on n1 leave between them, the silence with it."""
    epoch = job.epoch
    changed = job.wait(
        lambda status: status.get("lastReconfiguration", {}).get("epoch") == epoch,
        "what the change took",
    )["status"]["lastReconfiguration"]
    gap_s = heard.gap_s(epoch)
    assert changed["stallSeconds"] == pytest.approx(gap_s, abs=OTHER_RANK_S)
    if changed["reason"] == "loss":
        assert gap_s > changed["parts"]["detect_s"] > SILENCE_S


def the_peers_lose_each_other(cluster: Cluster, job: Job, heard: Listener) -> None:
    """Both nodes are ready and both agents answer, so nobody can say which one is at fault.

    No plan for both can form; the job rolls forward on one side, and uses both once they meet.
    """

    def on_one_side(status: Json) -> bool:
        return status.get("phase") == "Running" and len(status.get("nodes", ())) == 1

    cluster.cut_peers("n2")
    job.wait(on_one_side, "training on one side of the cut")
    heard.wait_for_steps(2)
    cluster.heal("n2")
    job.wait_until_on("n1", "n2", gpus=4)
    heard.wait_for_steps(2)
