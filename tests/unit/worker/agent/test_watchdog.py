"""worker/agent/watchdog.py: real processes that are silent, stuck, slow or waiting."""

from __future__ import annotations

import os
import signal

import pytest

from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from tests.distributed.pods import Pods
from worker.contract import TrainingSpec

pytestmark = pytest.mark.slow
SPEC = TrainingSpec(model="tiny-llama", data="text", global_batch=4, sequence_length=32, steps=10)
TEMPLATE = FilledTemplate(
    (Stage(gpu_type="demo-fast", tp=2, layers=3), Stage(gpu_type="demo-fast", tp=2, layers=3)),
    2,
    (2,),
)
PLAN = Plan((TEMPLATE,), (PlacedStage(0, 0, 0, "a", (0, 1)), PlacedStage(0, 0, 1, "a", (2, 3))))


@pytest.fixture(scope="module")
def pods(tmp_path_factory):
    """An agent whose four ranks train, each with the fate that `entries.live` gives its slot."""
    folder = tmp_path_factory.mktemp("pods")
    found = Pods(
        folder,
        rank_entry="tests.unit.worker.entries:live",
        options=("--peer-timeout-s", "1.5", "--stuck-s", "3"),
    )
    try:
        found.start("a")
        found.send(found.directive(1, PLAN, SPEC, "a", reason="start"))
        yield found
    finally:
        found.close()


def exit_of(pods, slot):
    report = pods.pods["a"].wait(lambda report: any(gone.slot == slot for gone in report.exits))
    return next(gone for gone in report.exits if gone.slot == slot)


def ranks_of(report):
    return {rank.slot: rank for rank in report.ranks}


def test_a_silent_rank_is_killed_and_its_exit_says_why(pods):
    gone = exit_of(pods, 1)
    assert gone.code == -signal.SIGKILL
    assert gone.error == (
        "rank 1 (stage 0, GPU 1 of pod tiny-a-0) sent no heartbeat for 1.5 s and was killed"
    )


def test_a_stuck_rank_is_named_with_its_stage_and_part_before_it_is_killed(pods):
    report = pods.pods["a"].wait(
        lambda report: any(rank.slot == 2 and rank.error for rank in report.ranks)
    )
    (stuck,) = (rank for rank in report.ranks if rank.slot == 2)
    assert stuck.error.startswith("rank 2 (stage 1, GPU 2 of pod tiny-a-0) made no progress for 3")
    assert "in 'forward', waited for no peer" in stuck.error
    assert (stuck.error_kind, stuck.part, stuck.progress) == ("other", "forward", 7)
    assert exit_of(pods, 2).error == stuck.error


def test_the_stacks_of_a_stuck_rank_are_in_the_log(pods):
    exit_of(pods, 2)
    log = (pods.folder / "a.log").read_text()
    assert "_run_in_a_circle" in log
    assert "in _beat" in log, "all threads"


def test_a_rank_that_is_slow_or_waits_is_left_alone(pods):
    exit_of(pods, 2)
    begun = ranks_of(pods.pods["a"].report())[0].progress
    # Progress comes once a second: three seconds are as long as the stuck one was given.
    report = pods.pods["a"].wait(lambda report: ranks_of(report)[0].progress >= begun + 4)
    ranks = ranks_of(report)
    assert set(ranks) == {0, 3}
    assert ranks[3].waiting
    assert not ranks[0].waiting
    assert max(rank.beat_age_s for rank in ranks.values()) < 1.5


def test_a_halt_reaches_the_ranks(pods):
    pods.pods["a"].wait(lambda report: {0, 3} <= {rank.slot for rank in report.ranks})
    body = b'{"epoch": 1, "reason": "pod tiny-b-0 does not answer"}'
    assert pods.pods["a"].request("PUT", "/v1/halt", body)[0] == 200
    pods.pods["a"].wait(
        lambda report: any(rank.error == "pod tiny-b-0 does not answer" for rank in report.ranks)
    )


def test_a_stopped_fork_server_makes_the_pod_unready_and_hides_no_death(tmp_path):
    pods = Pods(
        tmp_path,
        rank_entry="tests.unit.worker.entries:live",
        options=("--peer-timeout-s", "1.5"),
    )
    try:
        pods.start("a")
        pods.send(pods.directive(1, PLAN, SPEC, "a", reason="start"))
        report = pods.pods["a"].wait(lambda report: len(report.ranks) == 4)
        victim = next(rank for rank in report.ranks if rank.slot == 3)
        os.kill(report.fork_server_pid, signal.SIGSTOP)
        os.kill(victim.pid, signal.SIGKILL)
        assert exit_of(pods, 3).pid == victim.pid
        pods.pods["a"].wait(lambda report: not report.ready and report.ranks)
        os.kill(report.fork_server_pid, signal.SIGCONT)
        pods.pods["a"].wait(lambda report: report.ready)
    finally:
        pods.close()
