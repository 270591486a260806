"""heddle/train/run.py: events change the cluster once, and only where they can."""

from __future__ import annotations

import asyncio
import signal
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from heddle.demo.run import DemoOptions, DemoRun
from heddle.train.local_job import LocalJob
from heddle.train.recorder import Recorder
from heddle.train.run import RunOptions, search_settings
from heddle.train.screen.show import interrupt
from heddle.train.script import Event
from heddle_operator.apis.checkpoint import Checkpoint
from heddle_operator.apis.errors import ProcessFailed
from heddle_operator.apis.heddlejob import load_job
from planner.cluster.composition import Composition, Node
from tests.builders import demo_profile
from tests.refusals import refused
from tests.unit.heddle.train.recorded import (
    RESUMED_S,
    THREE,
    TWO,
    a_run,
    recorded,
    report,
    steps,
    switch,
)

EXAMPLE = Path(__file__).parents[4] / "manifests" / "examples" / "tiny.yaml"
JOIN = Event(5, "join", "fast-3", Node(name="fast-3", gpu_type="demo-fast", gpus=2))


@pytest.fixture
def told():
    return []


@pytest.fixture
def run(tmp_path, told):
    found = DemoRun(DemoOptions(nodes=TWO, script=(JOIN,), steps=10, seed=1), tmp_path, told.append)
    for node in TWO.nodes:
        found.cluster.join(node)
    return found


def test_a_node_joins_once(run, told):
    run.apply_event(JOIN)
    run.apply_event(JOIN)
    assert sorted(run.cluster.nodes) == ["fast-1", "fast-2", "fast-3"]
    assert told == ["step 0: node fast-3 joins"]
    assert [each.event for each in run.recorder.happened] == [JOIN]  # the second changed nothing


def test_a_drained_node_that_hosts_nothing_is_gone(run, told):
    run.apply_event(Event(5, "drain", "fast-2"))
    assert sorted(run.cluster.nodes) == ["fast-1"]
    assert told == ["step 0: node fast-2 is drained"]


def test_a_kill_is_noted_with_its_time(run, told):
    before_s = time.monotonic()
    run.apply_event(Event(5, "kill", "fast-2"))
    assert sorted(run.cluster.nodes) == ["fast-1"]
    ((at_s, event),) = [(each.at_s, each.event) for each in run.recorder.happened]
    assert before_s <= at_s <= time.monotonic()
    assert event.verb == "kill"
    assert told == ["step 0: node fast-2 is killed without notice"]


@pytest.mark.parametrize("verb", ["drain", "kill"])
def test_a_node_that_has_gone_can_neither_be_drained_nor_killed(run, told, verb):
    run.apply_event(Event(5, verb, "nobody"))
    assert sorted(run.cluster.nodes) == ["fast-1", "fast-2"]
    assert told == []
    assert run.recorder.happened == []


def test_a_restart_costs_from_the_first_pod_to_the_first_step(tmp_path):
    run = a_run(tmp_path, THREE)
    assert run.restart_s is None  # no pod was spawned
    run.cluster.first_pod_s = RESUMED_S - 7.0
    started = switch(0, None, 0).model_copy(update={"epoch": 1})
    run.recorder.take_report(report("demo-fast-1-0", switches=(started,)))
    assert run.restart_s == pytest.approx(7.0)
    run.recorder = Recorder()
    assert run.restart_s is None


def test_only_the_user_may_read_the_token(run, tmp_path):
    token = tmp_path / "token"
    assert len(token.read_text()) == 32
    assert stat.S_IMODE(token.stat().st_mode) == 0o600


def test_two_runs_share_neither_marker_nor_token(tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    first, second = (a_run(folder) for folder in folders)
    assert first.run_id != second.run_id
    assert (folders[0] / "token").read_text() != (folders[1] / "token").read_text()


def test_the_result_counts_what_is_left_of_the_run(tmp_path):
    run = a_run(tmp_path)
    found = run.result()
    assert found["orphan_processes"] == 0
    assert found["engine"].startswith("deepspeed ")
    assert (found["seed"], found["budget_evaluations"]) == (1, run.options.evaluations)


def test_plans_are_searched_for_what_the_job_trains():
    body = yaml.safe_load(EXAMPLE.read_text())
    body["spec"]["training"]["precision"] = "bf16"
    body["spec"]["planner"] = {"recompute": "full"}
    options = RunOptions(
        job=load_job(body), nodes=TWO, script=(), joiners=(), profile=demo_profile()
    )
    assert search_settings(options).workload == options.job.workload


def test_a_run_without_a_node_promises_no_save(run):
    assert run.recorder.step == 0
    run.recorder = recorded()
    for node in TWO.nodes:
        run.apply_event(Event(10, "kill", node.name))
    training = asyncio.Future(loop=asyncio.new_event_loop())
    said = []
    interrupt(run, training, said.append, signal.SIGTERM)
    assert (run.has_quit, run.ended_by, training.cancelled()) == (True, signal.SIGTERM, True)
    assert said == [
        "step 10: SIGTERM: the run ends at once, as there is no new state to save; no checkpoint "
        "is whole, so the same command begins anew with --fresh"
    ]
    training.get_loop().close()


@pytest.mark.parametrize("phase", ["Saving", "Suspending", "Suspended"])
def test_a_run_is_never_given_up_while_its_ranks_only_write(run, phase):
    run._stepped_s -= 10_000.0
    run.recorder.phase = phase
    run.check_progress()
    run.recorder.phase = "Running"
    run.check_progress()  # steps are due from now on
    run._stepped_s -= 10_000.0
    with pytest.raises(ProcessFailed, match="no step was trained for"):
        run.check_progress()


@pytest.mark.slow
def test_a_run_whose_first_nodes_hold_no_plan_ends_where_nobody_can_add_one(tmp_path, told):
    options = DemoOptions(nodes=Composition(TWO.nodes[:1]), script=(), steps=10, seed=1).for_run()
    run = LocalJob(replace(options, ends_without_nodes=True), tmp_path, told.append)

    async def train():
        try:
            await run.train()
        finally:
            await run.close()

    with refused(ProcessFailed, "Refused"):
        asyncio.run(train())


@pytest.mark.slow
def test_a_run_whose_script_brings_no_node_any_more_ends_with_one_sentence(tmp_path, told):
    options = DemoOptions(nodes=TWO, script=(), steps=10, seed=1).for_run()
    saves = Checkpoint(path=str(tmp_path / "saves"))
    spec = options.job.spec.model_copy(update={"checkpoint": saves})
    job = options.job.model_copy(update={"spec": spec})
    options = replace(options, job=job, ends_without_nodes=True, begins_at=8)
    run = LocalJob(options, tmp_path, told.append)

    async def train_until_all_are_killed():
        training = asyncio.ensure_future(run.train())
        try:
            while not run.cluster.nodes:
                await asyncio.wait({training}, timeout=0.1)
            for node in TWO.nodes:
                run.apply_event(Event(0, "kill", node.name))
            run.recorder.take_report(report("demo-fast-1-0", *steps(1, 0, 100.0)))
            assert not run.suspend()  # nobody holds a state that could be saved
            await training
        finally:
            await run.close()

    with pytest.raises(ProcessFailed) as error:
        asyncio.run(train_until_all_are_killed())
    assert str(error.value) == (
        "no node is left, and no event of the script can bring one; the same command goes on from "
        "the checkpoint of step 8"
    )
