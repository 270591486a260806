"""A node whose end is announced 30 s before: the state has left in time, and no step is lost.

At the promised second its power fails, whatever is still on it.  Rounds take turns: a pipeline over
both nodes, half of whose state must move, and the planner's own plan, of which nothing need move if
there is haste.  One round is in every run; `HEDDLE_NOTICES=5` asks for five, whose figures are in
docs/results/notices.md.
"""

from __future__ import annotations

import datetime
import json
import os
import threading
import time
from collections.abc import Iterator

import pytest

from planner.cluster.composition import Composition, Node
from tests.builders import placed, template
from tests.cluster.api import NODES, condition
from tests.cluster.assets import Assets
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import NodeSpec
from tests.e2e.kubernetes.job import TRAINING, WITHIN_S, Job, job_body
from tests.e2e.kubernetes.listener import Listener
from tests.e2e.kubernetes.operator_process import OperatorProcess, operator_on

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(1200)]

ROUNDS = int(os.environ.get("HEDDLE_NOTICES", "1"))
NOTICE_S = 30.0  # the least that Azure promises, and what GCE leaves a spot node in all
NODE, POD, TYPE = "n2", "spot-n2-0", "demo-slow"
PLAN = "pipeline"  # name of the ConfigMap
CONDITION = "PreemptScheduled"  # AKS
ANNOTATION = "heddle.dev/draining"


@pytest.fixture
def operator(assets: Assets) -> Iterator[OperatorProcess]:
    """An operator of two nodes with two GPUs each."""
    nodes = (NodeSpec("n1", 2, TYPE), NodeSpec(NODE, 2, TYPE))
    with operator_on(nodes, assets) as found:
        yield found


def test_after_a_notice_of_30_s_the_state_has_left_before_the_power_fails(
    operator: OperatorProcess,
) -> None:
    cluster = operator.cluster
    cluster.kubectl("create", "configmap", PLAN, f"--from-literal=plan.json={pipeline()}")
    body = job_body("spot", minHolders=1, verify="Full", mode="Manual")
    body["spec"]["planRef"] = PLAN
    job = Job.apply(cluster, body)
    with Listener(job) as heard:
        for number in range(1, ROUNDS + 1):
            job.wait_until_on("n1", NODE, gpus=4)
            heard.wait_for_steps(3)
            a_node_goes(cluster, job, heard, CONDITION if number % 2 else ANNOTATION)
            if number < ROUNDS:
                is_next_planned = bool(number % 2)
                mode = "Auto" if is_next_planned else "Manual"
                job.patch(elastic={"mode": mode}, planRef=None if is_next_planned else PLAN)
                comes_back(cluster)
    assert not [record for record in job.epochs().values() if record["reason"] == "loss"]


def pipeline() -> str:
    """A plan of one pipeline over the GPUs of both nodes, as JSON."""
    stages = template("1x2 1x2 1x1 1x1", micro_batches=(TRAINING["globalBatch"],), gpu_type=TYPE)
    both = Composition(tuple(Node(name=name, gpu_type=TYPE, gpus=2) for name in ("n1", NODE)))
    return json.dumps(placed(stages, composition=both).to_json())


def a_node_goes(cluster: Cluster, job: Job, heard: Listener, notice: str) -> None:
    """Give the notice, fail the power when it said so, and see what the job has made of it."""
    before = job.epoch
    heard.wait(lambda heard: not is_free_of_state(heard), f"{POD} to hold state")
    end = threading.Timer(NOTICE_S, cluster.power_off, (NODE,))
    given_s = time.monotonic()
    end.start()
    try:
        give(cluster, notice)
        heard.wait(is_free_of_state, f"{POD} to hold no state", NOTICE_S)
        free_s = time.monotonic() - given_s
        job.wait_for_pods(lambda pods: POD not in pods, f"{POD} to be gone")
        gone_s = time.monotonic() - given_s
        end.join()
    finally:
        end.cancel()
    assert not cluster.is_on(NODE)
    heard.wait_for_steps(3)
    heard.assert_nothing_lost()
    status = job.wait_until_on("n1")
    assert (status["epoch"], status["plan"]["reason"]) == (before + 1, "drain")
    assert len(heard.state_digests(status["epoch"])) == 1
    changed = job.wait(
        lambda status: status.get("lastReconfiguration", {}).get("epoch") == before + 1,
        "what the change took",
    )["status"]["lastReconfiguration"]
    moved, stall_s = changed["bytesMoved"] / 1e6, changed["stallSeconds"]
    figures = f"{free_s:.1f} | {gone_s:.1f} | {stall_s:.2f} | {moved:.1f}"
    print(f"| {notice} | {figures} | {os.getloadavg()[0]:.1f} |")


def is_free_of_state(heard: Listener) -> bool:
    """Whether no rank of the pod holds state any more, as its agent says."""
    ranks = heard.reports[POD].ranks if POD in heard.reports else ()
    return all(rank.epoch is None or rank.phase == "left" for rank in ranks)


def give(cluster: Cluster, notice: str) -> None:
    """Give a notice of NOTICE_S seconds, as a node problem detector or a user's script does."""
    now = datetime.datetime.now(datetime.UTC)
    if notice == CONDITION:
        set_condition(cluster, "True", now)
    else:
        at = now + datetime.timedelta(seconds=NOTICE_S)
        cluster.kubectl("annotate", "node", NODE, f"{ANNOTATION}={at:%Y-%m-%dT%H:%M:%SZ}")


def set_condition(cluster: Cluster, status: str, now: datetime.datetime) -> None:
    """Write the condition as a node problem detector does."""
    row = {"type": CONDITION, "status": status, "lastTransitionTime": f"{now:%Y-%m-%dT%H:%M:%SZ}"}
    patch = json.dumps({"status": {"conditions": [row]}})
    cluster.kubectl("patch", "node", NODE, "--subresource=status", f"--patch={patch}")


def comes_back(cluster: Cluster) -> None:
    """Let the node stay: what announced its end is taken back once its power is on."""
    cluster.api.wait(
        NODES,
        lambda seen: condition(seen[NODE], "Ready") != "True",
        WITHIN_S,
        f"{NODE} to be called not ready",
    )
    cluster.heal(NODE)
    cluster.wait_for_nodes(NODE)
    set_condition(cluster, "False", datetime.datetime.now(datetime.UTC))
    cluster.kubectl("annotate", "node", NODE, f"{ANNOTATION}-")
