"""`heddle checkpoint ... --job`: the status answers, or a Job with the job's volumes works."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time

import click
import pytest
from click.testing import CliRunner

from heddle.cli.checkpoints import cluster_job
from heddle.main import heddle
from heddle_operator.resources.pinned_workers import workers_to_json
from heddle_operator.resources.pods import WorkerDefaults
from tests.unit.heddle.commands.test_status import JOBS, put, put_job, refused, said, server

__all__ = ["server"]  # a fixture
PATH = JOBS.format("ml", "tiny")
BATCH = "/apis/batch/v1/namespaces/ml/jobs"
LIMIT_S = 20.0
SAVED = {"step": 40, "savedAt": "2026-11-28T05:00:00Z", "bytes": 8000, "heldOutLoss": 2.5}
TEMPLATE = {
    "spec": {
        "volumes": [{"name": "saves", "persistentVolumeClaim": {"claimName": "saves"}}],
        "containers": [
            {"name": "worker", "volumeMounts": [{"name": "saves", "mountPath": "/saves"}]}
        ],
    }
}
DEFAULTS = WorkerDefaults(image="heddle:7", template={})


def saving(server, template=TEMPLATE, **status):
    put_job(server, **status)
    body = server.objects[PATH]
    body["spec"] |= {"checkpoint": {"path": "/saves/"}, "worker": {"template": template}}
    body["metadata"] |= {"uid": "u-9", "generation": 1}


def on_record(server, token="secret", signed_by="secret", uid="u-9"):
    """The token of the job, and the record of its epoch."""
    secret = {"data": {"token": base64.b64encode(token.encode()).decode()}}
    put(server, "/api/v1/namespaces/ml/secrets/tiny-token", secret)
    owner = {"kind": "HeddleJob", "name": "tiny", "uid": uid, "controller": True}
    metadata = {
        "labels": {"heddle.dev/job": "tiny", "heddle.dev/epoch": "2"},
        "ownerReferences": [owner],
    }
    data = {"workers": workers_to_json(DEFAULTS, signed_by)}
    put(
        server,
        "/api/v1/namespaces/ml/configmaps/tiny-epoch-2",
        {"metadata": metadata, "data": data},
    )


class Controller:
    """Runs the Job as Kubernetes would: a pod, a log, an exit code."""

    def __init__(self, server, log="", code=0, phase="Succeeded", **status):
        self.server, self.job = server, None
        ended = {"name": "worker", "state": {"terminated": {"exitCode": code}}}
        self.status = {"phase": phase, "containerStatuses": [ended], **status}
        self.log = log
        self._thread = threading.Thread(target=self._work)

    def _work(self):
        until_s = time.monotonic() + LIMIT_S
        while time.monotonic() < until_s:
            if found := self.server.of("jobs"):
                ((name, self.job),) = found.items()
                metadata = {"labels": {"job-name": name}}
                self.server.logs[f"{name}-x", "worker"] = self.log
                put(
                    self.server,
                    f"/api/v1/namespaces/ml/pods/{name}-x",
                    {"metadata": metadata, "status": self.status},
                )
                return
            time.sleep(0.01)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._thread.join()

    @property
    def arguments(self):
        return self.job["spec"]["template"]["spec"]["containers"][0]["args"]


def run(*arguments):
    """(exit code, output, what is said beside it)."""
    done = CliRunner().invoke(heddle, ["checkpoint", *arguments], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.return_value, done.stdout, done.stderr


def test_the_newest_and_the_best_are_listed_from_the_status(server):
    saving(server, checkpoint={**SAVED, "bestStep": 30, "bestHeldOutLoss": 1.5})
    rows = json.loads(said("checkpoint", "ls", "--job", "ml/tiny", "--output", "json"))
    assert [(row["step"], row["held_out_loss"], row["is_best"]) for row in rows] == [
        (40, 2.5, False), (30, 1.5, True),
    ]  # fmt: skip
    head, newest, best = said("checkpoint", "ls", "--job", "tiny").splitlines()
    assert head.split() == ["step", "saved", "bytes", "loss", "best"]
    assert newest.split() == ["40", "2026-11-28T05:00:00Z", "8,000", "2.5000", "-"]
    assert best.split() == ["30", "-", "-", "1.5000", "best"]
    saving(server, checkpoint={**SAVED, "bestStep": 40, "bestHeldOutLoss": 2.5})
    assert said("checkpoint", "ls", "--job", "tiny").splitlines()[1].split()[-1] == "best"


def test_what_the_status_knows_is_shown(server):
    saving(server, checkpoint={**SAVED, "lostSteps": 3})
    shown = json.loads(said("checkpoint", "show", "--job", "ml/tiny", "--output", "json"))
    assert (shown["job"], shown["path"], shown["step"]) == ("ml/tiny", "/saves/tiny", 40)
    assert (shown["saved"], shown["lost_steps"]) == (SAVED["savedAt"], 3)
    given = ("checkpoint", "show", "--job", "tiny", "-n", "ml", "-o", "json")
    assert json.loads(said(*given)) == shown
    with pytest.raises(click.UsageError):
        run("show", "/saves", "-n", "ml")


@pytest.mark.parametrize("verb", ["ls", "show"])
def test_a_job_without_a_checkpoint_is_refused(server, verb):
    put_job(server)
    assert "spec.checkpoint" in refused("checkpoint", verb, "--job", "ml/tiny")
    saving(server)
    assert "tells of no checkpoint yet" in refused("checkpoint", verb, "--job", "ml/tiny")


def test_a_verb_runs_as_a_job_whose_log_and_exit_code_are_its_own(server):
    saving(server)
    on_record(server)
    for code in (0, 2):
        server.objects = {
            path: body for path, body in server.objects.items() if "/jobs/" not in path
        }
        with Controller(server, f"step 40\ncode {code}\n", code) as controller:
            found = run("verify", "--job", "ml/tiny", "--step", "40")
        assert found[:2] == (code, f"step 40\ncode {code}\n")
        assert "works on /saves/tiny" in found[2]
    wanted = ["checkpoint", "verify", "/saves/tiny", "--step", "40", "--output", "table"]
    assert controller.arguments == wanted
    spec = controller.job["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == "heddle:7"
    assert {"name": "saves", "mountPath": "/saves"} in spec["containers"][0]["volumeMounts"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (
            ("export", "/saves/out", "--format", "dcp", "--overwrite"),
            ("export", "/saves/tiny", "/saves/out", "--format", "dcp", "--overwrite"),
        ),
        (
            ("export", "/saves/out", "--step", "3", "--dtype", "bf16"),
            ("export", "/saves/tiny", "/saves/out", "--step", "3", "--format", "hugging-face",
             "--dtype", "bf16"),
        ),
        (("rm", "--step", "3"), ("rm", "/saves/tiny", "--step", "3")),
        (("rm", "--all-but", "2", "--yes"), ("rm", "/saves/tiny", "--all-but", "2", "--yes")),
    ],
)  # fmt: skip
def test_all_options_reach_the_job(server, given, wanted):
    saving(server)
    on_record(server)
    with Controller(server) as controller:
        assert run(*given, "--job", "tiny")[0] == 0
    assert controller.arguments == ["checkpoint", *wanted, "--output", "table"]


def test_a_target_that_does_not_last_is_refused_before_anything_is_made(server):
    saving(server)
    on_record(server)
    assert "is on no volume" in refused("checkpoint", "export", "--job", "tiny", "/tmp/out")
    assert not server.of("jobs")


def test_there_is_no_such_job(server):
    assert "there is no HeddleJob none" in refused("checkpoint", "verify", "--job", "ml/none")


@pytest.mark.parametrize(
    "record", [None, {"signed_by": "another"}, {"uid": "of an earlier job"}], ids=str
)
def test_a_record_that_no_operator_of_the_job_signed_starts_nothing(server, record):
    saving(server)
    if record is not None:
        on_record(server, **record)
    assert "is on record" in refused("checkpoint", "verify", "--job", "tiny")
    assert not server.of("jobs")


def test_a_template_that_its_author_may_not_have_starts_nothing(server):
    host = {"name": "saves", "hostPath": {"path": "/"}}
    template = {"spec": {**TEMPLATE["spec"], "volumes": [host]}}
    saving(server, template)
    on_record(server)
    assert "may not set hostPath" in refused("checkpoint", "verify", "--job", "tiny")
    assert not server.of("jobs")


@pytest.mark.parametrize(
    ("what", "details"),
    [
        ("POST jobs", {"kind": "jobs", "group": "batch"}),
        ("GET tiny-token", {"kind": "secrets", "name": "tiny-token"}),
        ("GET configmaps", {"kind": "configmaps"}),
    ],
    ids=["Jobs", "Secret", "records"],
)
def test_a_caller_without_the_right_is_told_so_in_a_sentence(server, what, details):
    saving(server)
    on_record(server)
    words = 'jobs.batch is forbidden: User "u" may not create resource "jobs"'
    server.refuses[what] = (403, words, details)
    said_ = refused("checkpoint", "rm", "--job", "tiny", "--step", "3")
    assert said_.startswith(words)
    assert "ask for the role edit" in said_


@pytest.mark.parametrize(
    "details", [{"kind": "jobs", "name": "tiny-rm"}, {}], ids=["quota", "webhook"]
)
def test_a_job_that_a_quota_or_a_policy_refuses_is_no_lack_of_rights(server, details):
    saving(server)
    on_record(server)
    words = "exceeded quota: the namespace cannot hold another Job"
    server.refuses["POST jobs"] = (403, words, details)
    assert refused("checkpoint", "rm", "--job", "tiny", "--step", "3") == words


def test_a_pod_that_waits_is_explained_and_its_job_deleted_after_the_time(server, monkeypatch):
    monkeypatch.setattr(cluster_job, "START_S", 1.0)
    saving(server)
    on_record(server)
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "no node has the volume"}
    pending = {"phase": "Pending", "conditions": [unscheduled], "containerStatuses": []}
    with Controller(server, **pending):
        words = refused("checkpoint", "verify", "--job", "tiny")
    assert "did not start within 1 s: no node has the volume" in words
    assert not server.of("jobs")


def test_a_pod_that_is_evicted_is_no_success(server):
    saving(server)
    on_record(server)
    gone = {"phase": "Failed", "containerStatuses": [], "message": "the node was low on memory"}
    with Controller(server, **gone):
        assert "low on memory" in refused("checkpoint", "verify", "--job", "tiny")


def test_ctrl_c_deletes_the_job(server):
    saving(server)
    on_record(server)
    running = {"phase": "Running", "containerStatuses": []}
    with Controller(server, "at work\n", **running):
        process = subprocess.Popen(
            [sys.executable, "-m", "heddle", "checkpoint", "verify", "--job", "ml/tiny"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(os.environ),
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert "is deleted" in err
    assert "Traceback" not in err
    assert not server.of("jobs")


@pytest.mark.parametrize(
    "arguments",
    [
        ("ls",),
        ("ls", "/saves", "--job", "tiny"),
        ("show", "--job", "tiny", "--step", "3"),
        ("verify", "--job", "/tiny"),
        ("verify", "--job", "a/b/c"),
        ("export", "--job", "tiny"),
        ("export", "/saves"),
        ("export", "/saves", "/out", "--job", "tiny"),
        ("now",),
        ("now", "tiny", "--job", "tiny"),
        ("now", "ml/tiny", "-n", "other"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(arguments):
    done = CliRunner().invoke(heddle, ["checkpoint", *arguments])
    assert done.exit_code == 2
    assert "Error: " in done.output
