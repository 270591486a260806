"""Planner processes are shared by all jobs, and limited in number, time and memory."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from heddle_operator.controller import planner_client, planner_pool
from heddle_operator.controller.planner_client import PlannerClient
from heddle_operator.controller.planner_pool import (
    NICER,
    USUAL_BYTES,
    GaveWay,
    PlannerPool,
    SearchFailed,
    planner_memory_bytes,
)
from heddle_operator.controller.planner_server import GAVE_WAY, READY, SearchSettings
from heddle_operator.ports.trigger import Trigger
from heddle_operator.state.actions import RequestPlan
from heddle_operator.state.worth import nodes_of
from planner.cluster.composition import Composition, Node
from planner.plans.plan import Plan

pytestmark = pytest.mark.slow
SETTINGS = SearchSettings(
    model="tiny-llama", global_batch=32, sequence_length=128, budget_evaluations=20
)
LARGE = Composition.from_text("demo-fast=32x8")


def nodes(count):
    return Composition(
        tuple(Node(name=f"n{i}", gpu_type="demo-fast", gpus=1) for i in range(count))
    )


def run(test, **options):
    async def main():
        pool = PlannerPool(**options)
        try:
            await asyncio.wait_for(test(pool), 110)
        finally:
            await pool.close()

    asyncio.run(main())


def test_jobs_of_any_models_share_a_few_processes():
    async def test(pool):
        kinds = [replace(SETTINGS, global_batch=batch) for batch in (8, 16, 32, 64, 128)]
        asked = RequestPlan(nodes(2), None)
        work = [pool.search(settings, asked, str(settings)) for settings in kinds]
        found = await asyncio.gather(*work)
        assert len({Plan.from_json(reply["plan"]).digest for reply in found}) == 5
        assert len(pool._idle) <= 2
        assert 0 < pool._held_bytes <= 1 << 30

    run(test)


def test_a_search_beyond_its_time_is_killed_said_and_followed_by_others():
    async def test(pool):
        await pool.start()
        endless = replace(SETTINGS, budget_evaluations=10**9)
        with pytest.raises(SearchFailed, match="did not end within 1 s and was killed"):
            await pool.search(endless, RequestPlan(LARGE, None), "job")
        assert pool._held_bytes == 0
        pool._grace_s = 10.0
        assert (await pool.search(SETTINGS, RequestPlan(nodes(2), None), "job"))["plan"]

    run(test, size=1, grace_s=-59.0)


def test_a_search_that_needs_too_much_memory_is_said_and_the_processes_are_gone():
    async def test(pool):
        endless = replace(SETTINGS, budget_evaluations=10**9)
        with pytest.raises(SearchFailed, match="needs more than"):
            await pool.search(endless, RequestPlan(LARGE, None), "job")
        assert pool._held_bytes == 0

    run(test, memory_bytes=1 << 20)


def test_a_failed_search_is_an_answer_with_the_reason_and_is_tried_again(monkeypatch):
    monkeypatch.setattr(planner_client, "FAILED_S", 0.01)

    async def test(pool):
        trigger = Trigger()
        client = PlannerClient(SETTINGS, trigger, pool=pool)
        asked = RequestPlan(nodes(2), None)
        client.request(asked)
        await trigger.wait(60)
        assert "was killed" in client.replies[asked.key].problem
        await trigger.wait(10)
        assert client.replies == {}
        pool._grace_s = 10.0
        client.request(asked)
        await trigger.wait(60)
        assert client.replies[asked.key].plan is not None
        await client.close()

    run(test, grace_s=-59.999)


@pytest.mark.parametrize(
    ("start_s", "environment", "words"),
    [
        (60.0, {"LARGE": "x" * (1 << 20)}, "cannot be started: .*Argument list too long"),
        (0.01, {}, "was not ready within 0.01 s and was killed"),
    ],
    ids=["the machine starts none", "it takes too long"],
)
def test_a_process_that_does_not_start_is_an_answer_to_all_that_was_asked(
    monkeypatch, start_s, environment, words
):
    monkeypatch.setattr(planner_pool, "START_S", start_s)

    async def test(pool):
        trigger = Trigger()
        client = PlannerClient(SETTINGS, trigger, pool=pool)
        asked, sizes = RequestPlan(nodes(2), None), (("demo-fast", (1, 2)),)
        client.request(asked)
        await trigger.wait(10)
        assert re.search(words, client.replies[asked.key].problem)
        client.weigh(sizes)
        await trigger.wait(10)
        assert client.worths.keys() == {sizes}
        assert pool._held_bytes == 0
        await client.close()

    run(test, environment=environment)


def test_only_the_newest_answers_are_kept():
    async def test(pool):
        client = PlannerClient(SETTINGS, Trigger(), pool=pool)
        for number in range(200):
            client._reply((str(number), ""), None)
        assert len(client.replies) == planner_client.REPLIES_KEPT
        assert ("199", "") in client.replies

    run(test)


def test_one_jobs_long_searches_leave_the_other_process_to_the_others():
    async def test(pool):
        endless = replace(SETTINGS, budget_evaluations=10**9)
        hogs = [
            asyncio.create_task(pool.search(endless, RequestPlan(LARGE, None), "hog"))
            for _ in range(2)
        ]
        try:
            async with asyncio.timeout(40):
                reply = await pool.search(SETTINGS, RequestPlan(nodes(2), None), "other")
            assert reply["plan"]
            assert not any(hog.done() for hog in hogs)
        finally:
            for hog in hogs:
                hog.cancel()
            await asyncio.gather(*hogs, return_exceptions=True)

    run(test)


def test_the_search_of_a_job_that_lost_a_node_is_next():
    async def test(pool):
        answered = []

        async def search(job, reason):
            await pool.search(SETTINGS, RequestPlan(nodes(2), None, reason=reason), job)
            answered.append(reason)

        order = ("join", "join", "join", "start", "drain", "loss")
        await asyncio.gather(*(search(str(job), reason) for job, reason in enumerate(order)))
        assert answered == ["join", "drain", "loss", "start", "join", "join"]

    run(test, size=1)


async def settle(pool):
    """Let a search begin: its process is warm, so that nothing is waited for."""
    for _ in range(10):
        await asyncio.sleep(0)
    assert pool._busy


@pytest.mark.parametrize("lost", ["its own", "another's"])
def test_a_job_that_lost_a_node_waits_for_no_long_search(lost):
    async def test(pool):
        await pool.start()
        (process,) = pool._idle
        long = replace(SETTINGS, budget_evaluations=None, budget_s=60.0)
        joining = asyncio.create_task(pool.search(long, RequestPlan(LARGE, None), "a"))
        await settle(pool)
        asked = RequestPlan(nodes(2), None, reason="loss")
        async with asyncio.timeout(30):
            found = await pool.search(SETTINGS, asked, "a" if lost == "its own" else "b")
            early = await joining
        assert Plan.from_json(found["plan"]).gpus <= 2
        assert GAVE_WAY in early["notes"]
        assert early["plan"]
        assert pool._idle == [process]  # it stays warm

    run(test, size=1)


def test_what_gave_way_without_an_answer_is_asked_again():
    async def test(pool):
        await pool.start()
        trigger, sizes = Trigger(), (("h100", (8,) * 64), ("a100-40", (8,) * 64))
        large = replace(SETTINGS, model="llama3-8b", global_batch=2048, sequence_length=2048)
        client = PlannerClient(large, trigger, pool=pool, job="a")
        client.weigh(sizes)
        await settle(pool)
        await pool.search(SETTINGS, RequestPlan(nodes(2), None, reason="loss"), "b")
        assert await trigger.wait(10)
        assert (client.worths, client._weighings) == ({}, {})
        client.weigh(sizes)
        assert list(client._weighings) == [sizes]
        await client.close()

    run(test, size=1)


def test_a_weighing_that_gave_way_again_and_again_is_done_at_last():
    """Each time it goes on where it gave way: a start may wait for it while others lose nodes."""

    async def test(pool):
        await pool.start()
        sizes, times = (("h100", (8,) * 24), ("a100-40", (8,) * 24)), 0
        large = replace(SETTINGS, model="llama3-8b", global_batch=512, sequence_length=2048)
        while True:
            weighing = asyncio.create_task(pool.weigh(large, nodes_of(sizes), "a", "start"))
            await settle(pool)
            await pool.search(SETTINGS, RequestPlan(nodes(2), None, reason="loss"), "b")
            try:
                found = await weighing
                break
            except GaveWay:
                times += 1
        assert found["curves"].keys() == {"h100", "a100-40"}
        assert times > 0

    run(test, size=1)


def test_a_weighing_for_which_a_start_waits_is_before_a_search_for_a_join():
    async def test(pool):
        await pool.start()
        long = replace(SETTINGS, budget_evaluations=None, budget_s=60.0)
        joining = asyncio.create_task(pool.search(long, RequestPlan(LARGE, None), "a"))
        await settle(pool)
        client = PlannerClient(SETTINGS, Trigger(), pool=pool, job="b")
        async with asyncio.timeout(30):
            client.weigh((("demo-fast", (2,)),), "start")
            early = await joining
        assert GAVE_WAY in early["notes"]
        await asyncio.gather(*client._weighings.values())
        assert client.worths

    run(test, size=1)


def test_no_process_outlives_a_pool_that_is_closed_while_a_search_is_called_off():
    async def test(pool):
        is_busy = asyncio.Event()

        async def search():
            async with pool._process():
                is_busy.set()
                await asyncio.Event().wait()  # for an answer that does not come

        searching = asyncio.create_task(search())
        await is_busy.wait()
        (process,) = pool._busy
        searching.cancel()
        await asyncio.create_task(pool.close())  # once the search waits for the end of its process
        assert not process.is_alive

    run(test)


def nice_values_of(pid):
    """Of all threads of a process."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return {os.getpriority(os.PRIO_PROCESS, int(thread.name)) for thread in threads}


def test_a_search_lets_its_operator_have_the_cpu_first():
    async def test(pool):
        await pool.start()
        (process,) = pool._idle
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert nice_values_of(process._process.pid) == {min(19, own + NICER)}

    run(test, size=1, nicer=NICER)


def test_a_process_whose_operator_was_killed_ends_without_a_word():
    """It still searches when nobody reads its answers any more."""

    question = {"settings": asdict(SETTINGS), "composition": nodes(2).to_json(), "current": None}

    async def main():
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "heddle_operator.controller.planner_server",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(100):
            assert (await process.stdout.readline()).strip() == READY.encode()
            process._transport.get_pipe_transport(1).close()
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.close()
            said = await process.stderr.read()
            assert (await process.wait(), said) == (0, b"")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("limit", "num_bytes"),
    [
        ("8589934592\n", 4 << 30),
        ("536870912\n", 1 << 28),
        ("max\n", USUAL_BYTES),
        ("", USUAL_BYTES),
        (None, USUAL_BYTES),
    ],
)
def test_planners_have_half_of_the_memory_that_the_operators_container_may(
    tmp_path, limit, num_bytes
):
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
    assert planner_memory_bytes(tmp_path) == num_bytes
