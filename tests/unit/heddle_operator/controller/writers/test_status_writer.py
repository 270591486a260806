"""A job that waits for what comes by itself says so, and warns of it only after a while."""

from __future__ import annotations

import json

import pytest

from heddle_operator.controller import job_controller
from heddle_operator.controller.writers import status_writer
from planner.model.catalogue import MODELS
from tests.unit.heddle_operator.controller.stage import JOB, NS, runner
from worker.weights.hugging_face.config import config_of


@pytest.fixture
def run(tmp_path, monkeypatch):
    return runner(tmp_path, monkeypatch)


def message(stage):
    return stage.server.objects[JOB]["status"]["message"]


def conditions(stage):
    """The reason of each condition."""
    rows = stage.server.objects[JOB]["status"]["conditions"]
    return {row["type"]: row["reason"] for row in rows}


@pytest.mark.slow
def test_a_model_in_a_folder_waits_for_its_config_map_and_says_so(run):
    config = config_of(MODELS["tiny-llama"])

    async def test(stage, port):
        await stage.phase("Pending")
        assert message(stage).startswith("spec.model.configRef: ")
        assert conditions(stage) == {"Ready": "ConfigMapMissing", "Stalled": "Settled"}
        assert stage.reasons() == set()
        held = {"metadata": {"name": "llama"}, "data": {"config.json": json.dumps(config)}}
        await stage.server.put(f"{NS}/configmaps/llama", held)
        await stage.server.until(lambda _: "minGPUs is 3" in message(stage))

    run(test, model={"path": "/volume/llama", "configRef": "llama"}, minGPUs=3)


@pytest.mark.slow
@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_api_server_says_nothing_of_a_job(run, monkeypatch, status):
    monkeypatch.setattr(job_controller, "RETRY_S", 0.05)
    get, path = f"GET {NS}/configmaps/llama", f"{NS}/configmaps/llama"

    async def test(stage, port):
        await stage.server.until(lambda s: s.requests.count(("GET", path)) >= 3)
        assert "status" not in stage.server.objects[JOB]
        assert stage.server.of("events") == {}
        held = {"data": {"config.json": json.dumps(config_of(MODELS["tiny-llama"]))}}
        await stage.server.put(path, held)
        stage.server.refuses.clear()
        await stage.phase("Pending")

    model = {"path": "/volume/llama", "configRef": "llama"}
    run(test, model=model, refuses={get: (status, "too busy")}, minGPUs=3)


EARLIER = [{"uid": "earlier", "controller": True, "kind": "HeddleJob", "name": "tiny"}]


@pytest.mark.slow
def test_a_job_waits_until_its_predecessors_secret_is_gone_and_warns_after_a_while(
    run, monkeypatch
):
    path = f"{NS}/secrets/tiny-token"
    monkeypatch.setattr(job_controller, "RETRY_S", 0.05)
    monkeypatch.setattr(status_writer, "TOLD_S", 1.0)

    async def test(stage, port):
        await stage.phase("Pending")
        assert conditions(stage) == {"Ready": "EarlierJobRemains", "Stalled": "Settled"}
        assert stage.reasons() == set()
        await stage.server.until(lambda _: stage.reasons() == {"EarlierJobRemains"})
        await stage.server.remove(path)
        await stage.server.until(lambda _: "minGPUs is 3" in message(stage))

    held = {"metadata": {"ownerReferences": EARLIER}, "data": {"token": "b2xk"}}
    run(test, minGPUs=3, before={path: held})
