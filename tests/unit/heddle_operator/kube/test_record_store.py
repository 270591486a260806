"""A record that a rule refuses is tried again ever more seldom, and wakes the job once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from heddle_operator.apis.errors import ClusterConflict, ClusterUnavailable
from heddle_operator.kube import earlier_objects, record_store
from heddle_operator.resources import epoch_config_map
from heddle_operator.state.actions import AdoptPlan, CloseEpoch, PruneEpoch
from tests.unit.heddle_operator.controller import stage
from tests.unit.heddle_operator.kube.around import ADOPT, NODES, PLAN, runner

MAPS = "/api/v1/namespaces/ns/configmaps"
EARLIER = {"ownerReferences": [{"uid": "earlier", "controller": True}]}
LIVE = CloseEpoch(epoch=1, outcome="live")


@pytest.fixture
def run(tmp_path):
    return runner(tmp_path)


@pytest.mark.parametrize("what", ["POST configmaps", "PUT tiny-epoch-1"])
def test_the_server_is_not_asked_again_within_the_pause(run, what):
    async def test(around, server):
        action, method = (ADOPT, "POST") if what.startswith("POST") else (LIVE, "PUT")
        if action is LIVE:
            await around.adapter.apply(ADOPT)
        server.refuses[what] = (422, "a policy forbids it")
        server.requests.clear()
        for _ in range(3):
            with pytest.raises(ClusterUnavailable, match="a policy forbids it"):
                await around.adapter.apply(action)
        assert [asked for asked, _ in server.requests] == [method]

    run(test)


def test_the_pause_doubles_and_ends_with_the_refusal(run, monkeypatch):
    monkeypatch.setattr(record_store, "PAUSES_S", (0.0, 0.0))
    pauses = []

    def doubled_s(first_s, times, limit_s):
        pauses.append(times)
        return 0.0

    monkeypatch.setattr(record_store, "doubled_s", doubled_s)

    async def test(around, server):
        for refusals in (2, 1):
            server.refuses["POST configmaps"] = (403, "exceeded quota: team")
            for _ in range(refusals):
                with pytest.raises(ClusterUnavailable):
                    await around.adapter.apply(ADOPT)
            server.refuses.clear()
            await around.adapter.apply(ADOPT)
            await server.remove(f"{MAPS}/tiny-epoch-1")
            await around.observe()
        assert pauses == [1, 2, 1]

    run(test)


def test_the_job_is_woken_where_the_words_change_and_else_not(run, monkeypatch):
    monkeypatch.setattr(record_store, "PAUSES_S", (0.0, 0.0))

    async def test(around, server):
        woken = []
        for words in ("one", "one", "another"):
            server.refuses["POST configmaps"] = (403, words)
            with pytest.raises(ClusterUnavailable):
                await around.adapter.apply(ADOPT)
            woken.append(await around.trigger.wait(0.01))
        assert woken == [True, False, True]

    run(test)


def test_a_record_less_may_make_room_for_another_at_once(run):
    async def test(around, server):
        second = AdoptPlan(epoch=2, plan=PLAN, reason="start", composition=NODES)
        third = AdoptPlan(epoch=3, plan=PLAN, reason="start", composition=NODES)
        await around.adapter.apply(ADOPT)
        await around.adapter.apply(second)
        server.refuses["POST configmaps"] = (403, "exceeded quota: team")
        with pytest.raises(ClusterUnavailable):
            await around.adapter.apply(third)
        server.refuses.clear()
        await around.adapter.apply(PruneEpoch(1))
        await around.adapter.apply(third)
        assert [record.epoch for record in (await around.observe()).epochs] == [2, 3]

    run(test)


def test_a_record_that_was_deleted_is_no_other_operators(run):
    async def test(around, server):
        await around.adapter.apply(ADOPT)
        held = server.objects[f"{MAPS}/tiny-epoch-1"]
        await server.put(f"{MAPS}/tiny-epoch-1", {**held, "data": {**held["data"], "extra": ""}})
        with pytest.raises(ClusterConflict, match="another operator wrote the record of epoch 1"):
            await around.adapter.apply(LIVE)
        await server.remove(f"{MAPS}/tiny-epoch-1")
        with pytest.raises(ClusterConflict, match="the record of epoch 1 was deleted"):
            await around.adapter.apply(LIVE)

    run(test)


@pytest.mark.slow
def test_a_job_whose_record_is_refused_asks_seldom(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.CRITICAL)

    async def test(job, _):
        job.server.refuses["POST configmaps"] = (403, "exceeded quota: team")
        maps = ("POST", MAPS)
        await job.server.until(lambda server: maps in server.requests)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await job.server.until(lambda server: server.requests.count(maps) > 3)
        assert job.server.objects[stage.JOB]["status"]["phase"]

    stage.runner(tmp_path, monkeypatch)(test)


def test_a_record_of_an_earlier_job_is_said_only_where_it_stays(run, monkeypatch):
    async def test(around, server):
        path = f"{MAPS}/tiny-epoch-1"
        (owner,) = EARLIER["ownerReferences"]
        owners = [{**owner, "kind": "HeddleJob", "name": "tiny"}]
        await server.put(path, {"metadata": {"ownerReferences": owners}, "data": {"a": "b"}})
        with pytest.raises(ClusterUnavailable):
            await around.adapter.apply(ADOPT)
        assert (await around.observe()).taken == ()
        monkeypatch.setattr(earlier_objects, "TOLD_S", 0.0)
        with pytest.raises(ClusterUnavailable):
            await around.adapter.apply(ADOPT)
        assert (await around.observe()).taken != ()
        await server.remove(path)
        await around.adapter.apply(ADOPT)
        assert (await around.observe()).taken == ()

    run(test)


@pytest.mark.parametrize("metadata", [EARLIER, {}], ids=["of an earlier job", "of somebody"])
def test_a_config_map_of_somebody_else_is_left_as_it_is_until_it_goes(run, metadata):
    async def test(around, server):
        path = f"{MAPS}/tiny-epoch-1"
        held = await server.put(path, {"metadata": metadata, "data": {"a": "b"}})
        with pytest.raises(ClusterUnavailable):
            await around.adapter.apply(ADOPT)
        assert server.objects[path] == held
        (words,) = (await around.observe()).taken
        assert words.endswith("remove it, or give the job another name")
        await server.remove(path)
        await around.adapter.apply(ADOPT)
        observed = await around.observe()
        assert ([record.epoch for record in observed.epochs], observed.taken) == ([1], ())

    run(test)


@pytest.mark.parametrize("status", [400, 403, 413, 422])
def test_a_record_that_the_server_takes_never_is_said_until_it_takes_one(run, status, monkeypatch):
    monkeypatch.setattr(record_store, "PAUSES_S", (0.0, 0.0))

    async def test(around, server):
        server.refuses["POST configmaps"] = (status, "a policy forbids it")
        with pytest.raises(ClusterUnavailable):
            await around.adapter.apply(ADOPT)
        assert "a policy forbids it" in (await around.observe()).unrecorded
        server.refuses.clear()
        await around.adapter.apply(ADOPT)
        assert (await around.observe()).unrecorded == ""

    run(test)


def test_a_plan_that_could_not_be_sealed_is_not_adopted(run, monkeypatch):
    monkeypatch.setattr(epoch_config_map, "MOST_BYTES", 500)

    async def test(around, server):
        with pytest.raises(ClusterUnavailable):
            await around.adapter.apply(ADOPT)
        observed = await around.observe()
        assert observed.epochs == ()
        assert "a ConfigMap holds 500" in observed.unrecorded

    run(test)


def test_of_two_operators_the_second_to_write_a_record_looks_again(run):
    async def test(around, server):
        late = around.another()
        await around.adapter.apply(ADOPT)
        with pytest.raises(ClusterConflict):
            await late.apply(ADOPT)
        await around.adapter.apply(CloseEpoch(epoch=1, outcome="live"))
        with pytest.raises(ClusterConflict):
            await late.apply(CloseEpoch(epoch=1, outcome="aborted"))
        assert [r.outcome for r in (await around.observe()).epochs] == ["live"]

    run(test)
