"""The operator is killed at every moment of a change; the change is finished, and nobody noticed.

One change survives the deaths of five operators in a row, each at the next moment: what one did is
found and continued by the next, so that neither an epoch nor a rank process is wasted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.cluster.assets import Assets
from tests.cluster.configuration import NodeSpec
from tests.e2e.kubernetes.dying_operator import MOMENTS
from tests.e2e.kubernetes.job import Job, job_body
from tests.e2e.kubernetes.listener import Listener
from tests.e2e.kubernetes.operator_process import OperatorProcess, operator_on
from tests.e2e.kubernetes.reference import Reference

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(1200)]

LEAVING = "heddle.dev/draining"
WITHOUT_JOINERS = tuple(moment for moment in MOMENTS if moment != "pods created")


@pytest.fixture
def operator(assets: Assets) -> Iterator[OperatorProcess]:
    """An operator of one slow node with two GPUs; a second one waits to join."""
    with operator_on([NodeSpec("n1", 2, "demo-slow")], assets) as found:
        yield found


def test_an_operator_that_is_killed_at_any_moment_of_a_change_is_followed_by_one_that_ends_it(
    operator: OperatorProcess, reference: Reference
) -> None:
    cluster = operator.cluster
    body = job_body("kills", verify="Full")
    # Deleted with nobody there to release them, the pods train on for all but 5 s of this.
    body["spec"]["worker"] = {"template": {"spec": {"terminationGracePeriodSeconds": 10}}}
    job = Job.apply(cluster, body)
    with Listener(job) as heard:
        job.wait_until_on("n1", gpus=2)
        heard.wait_for_steps(2)
        ranks = heard.processes()

        cluster.add_node("n2", 2, "demo-slow", wait=False)
        operator.kill()
        die_at_each(operator, job, MOMENTS, epoch=2)
        job.wait_until_on("n1", "n2", gpus=4)
        one_change_was_made(job, heard, epoch=2)
        assert ranks < heard.processes()

        ranks = {process for process in heard.processes() if process[0] == "kills-n1-0"}
        operator.kill()
        cluster.kubectl("annotate", "node", "n2", f"{LEAVING}=maintenance")
        die_at_each(operator, job, WITHOUT_JOINERS, epoch=3)
        job.wait_until_on("n1", gpus=2)
        one_change_was_made(job, heard, epoch=3)
        job.wait_for_pods(lambda pods: set(pods) == {"kills-n1-0"}, "the pod on n2 to be gone")
        assert heard.processes() == ranks

        heard.wait_for_steps(2)
        heard.assert_exact(reference)
        operator.kill()
        job.delete()  # the garbage collector's work alone


def die_at_each(operator: OperatorProcess, job: Job, moments: tuple[str, ...], epoch: int) -> None:
    """Let an operator die at each moment in turn, then start one that lives."""
    digest = ""
    for moment in moments:
        operator.start_to_die(moment)
        operator.wait_until_dead(moment)
        records = job.epochs()
        assert max(records) == epoch, f"after {moment!r}"
        digest = digest or records[epoch]["digest"]
        assert records[epoch]["digest"] == digest
        assert records[epoch]["outcome"] == "open"
    operator.start()


def one_change_was_made(job: Job, heard: Listener, epoch: int) -> None:
    """It ended at the same epoch and the same state."""
    records = job.epochs()
    assert max(records) == epoch
    assert records[epoch]["outcome"] == "live"
    heard.wait_for_steps(2)
    assert len(heard.state_digests(epoch)) == 1
    print(f"epoch {epoch}: state {heard.state_digests(epoch)}", file=sys.stderr)
