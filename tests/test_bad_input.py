"""Bad input, as a user meets it: the command ends with 2 and one sentence that names it.

The command runs in this process, and in one of its own where a limit on GPUs is refused; what each
sentence says is for the tests of the module that finds the mistake.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from planner.profiles.profile import PROFILES
from tests.builders import MOE, heddle_job, tiled
from tests.checkpoints import of_a_job, save, state
from tests.refusals import command_refused as refused
from tests.refusals import sentence
from worker.checkpoint.attempts import Attempt
from worker.checkpoint.vaults.folder_vault import FolderVault
from worker.device.gpus import Nvml
from worker.weights.run_record import RECORD, RunRecord

pytestmark = pytest.mark.slow
HEDDLE = Path(sys.executable).with_name("heddle")
PLAN = ("plan", "--composition", "demo-fast=2x2", "--batch", "8", "--budget-evaluations", "50")


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """A plan of the tiny model for 8 samples a step, as `heddle plan` prints it."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_text(subprocess.check_output([HEDDLE, *PLAN, "--output", "json"], text=True))
    return path


@pytest.fixture
def job(tmp_path):
    """Writes a job file."""

    def write(model="tiny-llama", batch=8, **spec):
        body = heddle_job(
            "bad",
            model={"name": model},
            training={"globalBatch": batch, "sequenceLength": 128},
            output={"path": str(tmp_path / "out")},
            **spec,
        )
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(body))
        return path

    return write


@pytest.mark.parametrize("limit", ["0", "-3", "h100=", "h100=8", "demo-fast=x"])
def test_a_limit_on_gpus(limit):
    done = subprocess.run([HEDDLE, *PLAN, "--max-gpus", limit], capture_output=True, text=True)
    assert limit.partition("=")[0] in sentence(done.returncode, done.stderr)


def test_a_plan_of_another_job_or_for_more_gpus(plan, job):
    assert "tiny-llama" in refused("train", "--check", job("llama3-8b"), "--plan", plan)
    assert "16" in refused("train", "--check", job(batch=16), "--plan", plan)
    assert "--ranks" in refused("train", "--check", job(), "--plan", plan, "--ranks", "1")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: json.dumps({**json.loads(text), "format": 0}),
        lambda text: json.dumps({**json.loads(text), "templates": "none"}),
    ],
)
def test_a_plan_that_is_none_or_of_another_format(plan, job, change):
    bad = plan.with_name("bad.json")
    bad.write_text(change(plan.read_text()))
    assert f"--plan {bad}" in refused("train", "--check", job(), "--plan", bad)


def test_a_folder_that_a_living_process_or_one_of_another_host_holds(tmp_path, job):
    out = tmp_path / "out"
    out.mkdir()
    host, pid = socket.gethostname(), os.getpid()
    for holder in (host, "far"):
        record = RunRecord(run="r", job="other", host=holder, pid=pid, has_ended=False)
        (out / RECORD).write_text(record.to_text())
        with (out / RECORD).open("rb") as held:
            if holder == host:
                fcntl.flock(held, fcntl.LOCK_EX)
            said = refused("train", "--check", job())
        assert f"process {pid} of host {holder}" in said


def test_a_profile_that_is_cut_off(tmp_path):
    shutil.copytree(PROFILES / "tiny-llama", tmp_path / "tiny-llama")
    file = tmp_path / "tiny-llama" / "demo-fast.json"
    file.write_text('{"layers": [')
    assert str(file) in refused(*PLAN, "--profile", tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "--check", "job.yaml", "--output-path"),
        ("plan", "--composition", "demo-fast=1x2", "--policy"),
        ("plan", "--composition", "demo-fast=1x2", "--profile"),
        ("weights", "check"),
        ("data", "prepare", "--output-path", "out", "--input"),
    ],
)
def test_a_path_that_is_too_long(arguments, job):
    job()
    said = refused(*arguments, "x" * 300, cwd=job().parent)
    assert "too long" in said.lower()


def test_checkpoints_that_are_not_there_or_damaged(tmp_path):
    folder, attempt = tmp_path / "checkpoints", Attempt(1, 10)
    for path in (folder, tmp_path, "gs://name:word@bucket", ""):
        assert "word" not in refused("checkpoint", "ls", path)
    save(FolderVault(folder), attempt, tiled("1x3"), state(MOE, 10), of_a_job(MOE, 10))
    assert "step 10" in refused("checkpoint", "show", folder, "--step", "11")
    file = folder / attempt.name("rank-0-0.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    assert file.name in refused("checkpoint", "verify", folder)
    assert file.name in refused("checkpoint", "export", folder, tmp_path / "out")
    (folder / attempt.manifest).write_bytes(b"{}")
    assert str(attempt) in refused("checkpoint", "verify", folder)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"suspend": True}, ("suspend", "spec.checkpoint", "give a path")),
        ({"checkpoint": {}}, ("spec.checkpoint.path", "required")),
        ({"checkpoint": {"path": ""}}, ("spec.checkpoint.path", "1 or more characters")),
        ({"checkpoint": {"path": "gs://b/x"}}, ("spec.checkpoint.path", "gs://", "s3://")),
        ({"checkpoint": {"path": "s3://"}}, ("spec.checkpoint.path", "3 to 63")),
        ({"checkpoint": {"path": "s3://B!/x"}}, ("spec.checkpoint.path", "3 to 63")),
        ({"checkpoint": {"path": "/proc/none"}}, ("spec.checkpoint.path", "/proc/none")),
        ({"checkpoint": {"path": "/x", "interval": {}}}, ("interval", "steps and seconds")),
    ],
    ids=str,
)
def test_checkpoints_of_a_job(job, spec, words):
    said = refused("train", "--check", job(**spec))
    assert all(word in said for word in words), said


def test_verbs_of_checkpoints(tmp_path):
    folder, attempt = tmp_path / "checkpoints", Attempt(1, 10)
    save(FolderVault(folder), attempt, tiled("1x3"), state(MOE, 10), of_a_job(MOE, 10))
    assert "--step and --all-but" in refused("checkpoint", "rm", folder)
    assert "--yes" in refused("checkpoint", "rm", folder, "--step", "10")
    assert "step 10" in refused("checkpoint", "rm", folder, "--step", "11")
    assert "step 10" in refused("checkpoint", "verify", folder, "--step", "11")
    file = tmp_path / "file"
    file.touch()
    assert str(file) in refused("checkpoint", "export", folder, file)
    assert str(folder) in refused("checkpoint", "export", folder, folder / "model")
    mixed = ("--format", "dcp", "--dtype", "fp32")
    assert "--dtype" in refused("checkpoint", "export", folder, tmp_path / "out", *mixed)
    assert "KUBECONFIG" in refused("checkpoint", "now", "bad", KUBECONFIG=str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("path", "environment", "words"),
    [
        ("s3://", {}, "s3://BUCKET/PREFIX"),
        ("s3://Bad_Bucket/x", {}, "3 to 63"),
        ("s3://bucket/../x", {}, "plain words"),
        ("s3://bucket/x", {}, "AWS_ACCESS_KEY_ID"),
        ("s3://bucket/x", {"AWS_ENDPOINT_URL": "nonsense"}, "http://HOST:PORT"),
    ],
)
def test_a_path_in_s3(path, environment, words):
    nobody = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_ENDPOINT_URL": ""}
    assert words in refused("checkpoint", "ls", path, **{**nobody, **environment})


@pytest.mark.skipif(Nvml().version() is not None, reason="this machine has an NVIDIA driver")
def test_gpus_that_are_not_there(job):
    cuda = job(worker={"device": "CUDA"})
    assert "spec.worker.device CUDA" in refused("train", cuda)
    assert "--device cuda" in refused("train", job(), "--device", "cuda")
    assert "no CUDA device" in refused("profile", "--gpu-type", "h100", "--device", "cuda")


def test_a_precision_that_no_gpu_is_trained_in(job):
    path = job()
    body = yaml.safe_load(path.read_text())
    body["spec"]["training"]["precision"] = "fp8"
    path.write_text(yaml.safe_dump(body))
    assert "fp8" in refused("train", path)
    assert "fp8" in refused("plan", "--composition", "h100=1x2", "--precision", "fp8")
