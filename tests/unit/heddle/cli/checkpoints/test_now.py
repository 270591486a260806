"""`heddle checkpoint now`: asks by an annotation, and waits for the checkpoint in the status."""

from __future__ import annotations

import json
import threading
import time
from datetime import datetime

import pytest

from heddle_operator.apis.labels import SAVE_ANNOTATION
from planner.errors import HeddleError
from tests.unit.heddle.commands.test_status import JOBS, put_job, refused, said, server

__all__ = ["server"]  # a fixture
PATH = JOBS.format("ml", "tiny")
LIMIT_S = 20.0
CHECKPOINT = {"path": "/saves"}


def saving(server, **status):
    put_job(server, **status)
    server.objects[PATH]["spec"]["checkpoint"] = CHECKPOINT


def answered(server, **status):
    """Let an operator answer the annotation with a status; the thread that does."""

    def work():
        until_s = time.monotonic() + LIMIT_S
        while time.monotonic() < until_s:
            body = server.objects[PATH]
            if SAVE_ANNOTATION in body["metadata"].get("annotations", {}):
                server.objects[PATH] = {**body, "status": {**body["status"], **status}}
                return
            time.sleep(0.01)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_the_checkpoint_is_told_once_it_is_whole(server):
    saved = {"step": 40, "savedAt": "2026-11-28T05:00:00Z", "bytes": 8}
    saving(server, checkpoint={"step": 30, "savedAt": "2026-11-28T04:00:00Z"})
    operator = answered(server, checkpoint=saved)
    found = json.loads(said("checkpoint", "now", "tiny", "--output", "json").splitlines()[-1])
    operator.join()
    assert found == {"job": "ml/tiny", **saved}


def test_the_time_that_is_asked_for_is_the_api_servers(server):
    server.ahead_s = 3600.0
    saving(server)
    operator = answered(server, checkpoint={"step": 40, "savedAt": "2026-11-28T05:00:00Z"})
    said("checkpoint", "now", "tiny")
    operator.join()
    asked = server.objects[PATH]["metadata"]["annotations"][SAVE_ANNOTATION]
    ahead_s = datetime.fromisoformat(asked).timestamp() - time.time()
    assert ahead_s == pytest.approx(3600.0, abs=60.0)


def test_a_job_without_a_path_is_refused(server):
    put_job(server)
    assert "spec.checkpoint" in refused("checkpoint", "now", "tiny")


def test_a_job_that_does_not_train_is_refused(server):
    saving(server, phase="Suspended")
    assert "is Suspended" in refused("checkpoint", "now", "tiny")


def test_a_store_that_fails_is_named_after_the_time(server):
    rows = [{"type": "CheckpointStale", "status": "True", "message": "no space left on device"}]
    saving(server, conditions=rows)
    with pytest.raises(HeddleError) as error:
        said("checkpoint", "now", "tiny", "--timeout", "1")
    assert "no space left on device" in str(error.value)
