"""A job that was deleted and that somebody's finalizers hold says so."""

from __future__ import annotations

from tests.unit.heddle_operator.controller.test_controller import (
    a_body,
    apply,
    deleted,
    message,
    run,
)


def test_a_deleted_job_that_a_finalizer_holds_says_so_in_its_status(tmp_path):
    async def test(server, controller, cache):
        controller.start()
        body = a_body()
        path = await apply(server, controller, body)
        trains = {"type": "Running", "status": "True", "reason": "Training", "message": ""}
        await server.until(lambda s: message(s, path))
        held = deleted(server.objects[path])
        held["metadata"]["finalizers"] = ["example.com/audit"]
        held["status"] = {"phase": "Running", "conditions": [trains]}
        controller.put(held)
        await server.until(lambda s: "example.com/audit" in message(s, path))
        status = server.objects[path]["status"]
        found = {row["type"]: (row["status"], row["reason"]) for row in status["conditions"]}
        assert status["phase"] == "Terminating"
        assert found["Running"] == found["Ready"] == ("False", "JobDeleted")

    run(tmp_path, test)
