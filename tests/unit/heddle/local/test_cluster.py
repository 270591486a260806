"""heddle/local/cluster.py: a pod is a process, and when it goes nothing of it stays."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import sys

import pytest

from heddle.local.cluster import TERMINATION_GRACE_S, LocalCluster
from heddle.local.processes import POD_MARK, RUN_MARK, processes_with
from heddle_operator.ports.trigger import Trigger
from heddle_operator.state.actions import CreatePod, DeletePod
from heddle_operator.state.plan_reply import ReferencedPlan
from planner.cluster.composition import Node

pytestmark = pytest.mark.slow
POD = CreatePod("tiny-a-0", "a", 0, 2)
LISTENS = "import json, sys; print(json.dumps({'port': 1}), flush=True); "
PATIENT = LISTENS + "sys.stdin.read()"
STUBBORN = LISTENS + "import time; time.sleep(600)"
WITH_CHILD = (
    "import subprocess, sys; "
    "subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'],"
    " start_new_session=True); " + PATIENT
)
SAYS_ITS_OPTIONS = "import sys; print(sys.argv[1:], file=sys.stderr, flush=True); " + PATIENT


def with_cluster(test, tmp_path, agent=PATIENT, emulates=True):
    """Run `test(cluster, until)` on a cluster of node a, whose pods run `agent`."""

    async def main():
        trigger = Trigger()
        command = (sys.executable, "-c", agent)
        cluster = LocalCluster(
            "tiny",
            str(tmp_path),
            tmp_path,
            tmp_path / "token",
            trigger,
            emulates=emulates,
            agent_command=command,
        )

        async def until(is_so):
            async with asyncio.timeout(30):
                while not is_so(observed := await cluster.observe()):
                    await trigger.wait(0.1)
            return observed

        cluster.join(Node(name="a", gpu_type="demo-fast", gpus=2))
        try:
            await test(cluster, until)
        finally:
            await cluster.close()
        assert processes_with(**{RUN_MARK: str(tmp_path)}) == ()

    asyncio.run(main())


def processes_of(cluster, pod="tiny-a-0"):
    return processes_with(**{RUN_MARK: cluster.run_id, POD_MARK: pod})


def phases(observed):
    return {pod.name: pod.phase for pod in observed.pods}


def runs(observed):
    return phases(observed) == {"tiny-a-0": "running"}


def test_a_killed_node_takes_with_it_what_hides_in_another_session(tmp_path):
    async def test(cluster, until):
        await cluster.apply(POD)
        await until(runs)
        assert len(processes_of(cluster)) == 2
        cluster.kill("a")
        observed = await until(lambda _: not processes_of(cluster))
        assert (observed.nodes, observed.pods) == ((), ())

    with_cluster(test, tmp_path, WITH_CHILD)


def test_a_node_that_is_killed_while_a_pod_starts_leaves_no_process(tmp_path):
    async def test(cluster, until):
        creating = asyncio.create_task(cluster.apply(POD))
        while not (await cluster.observe()).pods:
            await asyncio.wait({creating}, timeout=0)
        assert not creating.done()
        cluster.kill("a")
        await creating
        observed = await until(lambda _: not processes_of(cluster))
        assert observed.pods == ()

    with_cluster(test, tmp_path)


def test_a_pod_that_ends_by_itself_has_ended_and_its_name_can_be_freed(tmp_path):
    async def test(cluster, until):
        await cluster.apply(POD)
        observed = await until(lambda o: phases(o) == {"tiny-a-0": "ended"})
        assert observed.pods[0].address is None
        await cluster.apply(DeletePod("tiny-a-0", "it failed"))
        assert (await cluster.observe()).pods == ()

    with_cluster(test, tmp_path, LISTENS)


def test_a_job_in_mode_manual_follows_the_plan_that_it_was_told_last(tmp_path):
    async def test(cluster, until):
        assert (await cluster.observe()).referenced is None
        told = ReferencedPlan("first", None, "none is there yet"), ReferencedPlan("second", None)
        for referenced in told:
            cluster.follow(referenced)
            await until(lambda o, last=referenced: o.referenced == last)

    with_cluster(test, tmp_path)


def test_an_agent_that_says_no_port_never_runs(tmp_path):
    async def test(cluster, until):
        seen = []
        await cluster.apply(POD)
        await until(lambda o: seen.append(phases(o)) or phases(o) == {"tiny-a-0": "ended"})
        assert {"tiny-a-0": "running"} not in seen

    with_cluster(test, tmp_path, "print('Traceback: no such module')")


def test_who_ignores_the_end_of_its_input_is_killed_after_the_grace(tmp_path):
    async def test(cluster, until):
        await cluster.apply(POD)
        await until(runs)
        begin_s = asyncio.get_running_loop().time()
        await cluster.apply(DeletePod("tiny-a-0", "idle"))
        (pod,) = (await cluster.observe()).pods
        assert pod.deleting
        await until(lambda o: not o.pods)
        assert asyncio.get_running_loop().time() - begin_s >= TERMINATION_GRACE_S
        assert not processes_of(cluster)

    with_cluster(test, tmp_path, STUBBORN)


def test_a_notice_that_ends_takes_the_node_with_all_its_processes(tmp_path):
    async def test(cluster, until):
        await cluster.apply(POD)
        await until(runs)
        cluster.drain("a", notice_s=0.1)
        observed = await until(lambda o: not o.pods)
        assert observed.nodes == ()
        await until(lambda _: not processes_of(cluster))

    with_cluster(test, tmp_path)


def test_a_drained_node_stays_until_its_last_pod_has_gone(tmp_path):
    async def test(cluster, until):
        await cluster.apply(POD)
        await until(runs)
        cluster.drain("a")
        (node,) = (await cluster.observe()).nodes
        notice_s = node.leaving_at_s
        cluster.drain("a")  # again: the notice stands
        assert cluster.nodes["a"].leaving_at_s == notice_s == math.inf
        await cluster.apply(DeletePod("tiny-a-0", "its state has moved"))
        observed = await until(lambda o: not o.pods)
        assert observed.nodes == ()

    with_cluster(test, tmp_path)


@pytest.mark.parametrize("emulates", [True, False])
def test_an_agent_is_told_who_it_is(tmp_path, emulates):
    async def test(cluster, until):
        await cluster.apply(POD)
        await until(runs)

    with_cluster(test, tmp_path, SAYS_ITS_OPTIONS, emulates)
    said = (tmp_path / "tiny-a-0.log").read_text().splitlines()[0]
    options = json.loads(said.replace("'", '"'))
    told = dict(itertools.pairwise(options))
    assert [told[f"--{name}"] for name in ("job", "pod", "node", "gpus")] == [
        "tiny",
        "tiny-a-0",
        "a",
        "2",
    ]
    assert {"--exit-with-parent", "--ignore-sigterm"} <= set(options)
    assert ("--emulate" in options) == emulates


def test_no_pod_is_created_on_a_node_that_has_gone(tmp_path):
    async def test(cluster, until):
        await cluster.apply(CreatePod("tiny-b-0", "b", 0, 1))
        assert (await cluster.observe()).pods == ()
        assert cluster.first_pod_s is None

    with_cluster(test, tmp_path)
