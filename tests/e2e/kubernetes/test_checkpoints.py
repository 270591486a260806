"""A job loses all of its nodes twice, is suspended, and goes on elsewhere under a newer operator.

Its checkpoints are on a disk that all nodes share, which is full for a while: the suspension waits
for it.  What the job says is held against what is on that disk, and its losses against those of
one plain process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from tests.cluster.api import pods
from tests.cluster.assets import Assets
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import NodeSpec
from tests.cluster.installation import OPERATOR_NODE, Installation
from tests.e2e.kubernetes.job import Job, Json, condition_of, job_body
from tests.e2e.kubernetes.listener import Listener
from tests.e2e.kubernetes.reference import Reference
from worker.checkpoint.attempts import Attempt, complete
from worker.checkpoint.vaults.folder_vault import FolderVault

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(1200)]

NAME, EVERY_STEPS = "saver", 10
SLOW, FAST = "demo-slow", "demo-fast"
DISK = "size=64m"  # a checkpoint takes 4 MB of it
ALLOW = "--set=worker.allow={hostPath}"  # of the volume of the checkpoints
SOON = "--set=settings.nodeGoneSeconds=15"
NEXT = "--set=worker.template.metadata.labels.chart=next"


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk of its own, which every node sees."""

    folder: Path

    @property
    def saves(self) -> Path:
        """Where the checkpoints of the job are."""
        return self.folder / NAME

    def newest(self) -> Attempt:
        """The newest whole checkpoint."""
        return complete(FolderVault(self.saves).names())[0]

    def num_bytes(self, attempt: Attempt) -> int:
        """Bytes of its files, the manifest aside."""
        files = (self.saves / Path(attempt.manifest).parent).rglob("*.safetensors")
        return sum(file.stat().st_size for file in files)

    @contextmanager
    def full(self) -> Iterator[None]:
        """Nothing more can be written."""
        filler = self.folder / "filler"
        with filler.open("wb", buffering=0) as opened:
            left = os.statvfs(self.folder)
            os.posix_fallocate(opened.fileno(), 0, left.f_bavail * left.f_frsize)
        try:
            yield
        finally:
            filler.unlink()

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Nothing can be written."""
        remount = ("mount", "-o")
        subprocess.run([*remount, "remount,ro", self.folder], check=True)
        try:
            yield
        finally:
            subprocess.run([*remount, f"remount,rw,{DISK}", self.folder], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A disk in memory; it must be there before the nodes, which see no later mount."""
    found = tmp_path / "disk"
    found.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", found], check=True)
    try:
        yield Disk(found)
    finally:
        subprocess.run(["umount", "--lazy", found], check=True)


@pytest.fixture
def chart(assets: Assets, disk: Disk) -> Iterator[Installation]:
    """Heddle installed by its chart beside two nodes of two slow GPUs each."""
    slow = (NodeSpec(name, 2, SLOW) for name in ("n1", "n2"))
    with Cluster.start((OPERATOR_NODE, *slow), assets=assets) as cluster:
        installation = Installation(cluster)
        installation.install(ALLOW, SOON)
        yield installation
        print(installation.operator_log())


def body(disk: Disk) -> Json:
    """A job that saves its state to the disk."""
    found = job_body(NAME, minHolders=1)
    volume = {"name": "saves", "hostPath": {"path": str(disk.folder), "type": "Directory"}}
    mount = {"name": "worker", "volumeMounts": [{"name": "saves", "mountPath": "/saves"}]}
    found["spec"] |= {
        "checkpoint": {"path": "/saves", "interval": {"steps": EVERY_STEPS}},
        "worker": {"template": {"spec": {"volumes": [volume], "containers": [mount]}}},
    }
    return found


def test_a_job_survives_the_loss_of_all_its_nodes_and_goes_on_elsewhere_after_a_suspension(
    chart: Installation, disk: Disk, reference: Reference
) -> None:
    cluster = chart.cluster
    job = Job.apply(cluster, body(disk))
    with Listener(job) as heard:
        job.wait_until_on("n1", "n2", gpus=4)
        it_trains_on_while_the_disk_is_read_only(job, heard, disk)
        all_nodes_are_lost(cluster, job, heard, disk, ("n1", "n2"), "n3")
        all_nodes_are_lost(cluster, job, heard, disk, ("n3",), "n4")
        # As a cloud's controller does, once the machines are gone.
        cluster.kubectl("delete", "nodes", "n1", "n2", "n3")
        suspended_s = a_suspension_waits_for_a_full_disk(cluster, job, heard, disk)
        it_holds_nothing_and_says_so(cluster, job, disk, suspended_s)
        its_checkpoint_is_worked_on_by_a_job(cluster, job, disk)
        the_chart_is_upgraded(chart, job)
        it_goes_on_by_other_gpus(cluster, job, heard, disk)
        heard.assert_exact(reference)


def it_trains_on_while_the_disk_is_read_only(job: Job, heard: Listener, disk: Disk) -> None:
    """No save succeeds, which is said, and steps go on; then saves succeed again."""
    job.wait(lambda status: status.get("checkpoint", {}).get("step", 0) > 0, "a checkpoint")
    with disk.read_only():
        job.wait_for_condition("CheckpointStale", "SaveFailed", "Read-only file system")
        job.wait_for_event("CheckpointFailed", "Read-only file system")
        heard.wait_for_steps(EVERY_STEPS)
        assert condition_of(job.get()["status"], "Running")["reason"] == "Training"
    job.wait(
        lambda status: condition_of(status, "CheckpointStale")["status"] == "False",
        "a save that succeeds again",
    )


def all_nodes_are_lost(
    cluster: Cluster, job: Job, heard: Listener, disk: Disk, lost: tuple[str, ...], new: str
) -> None:
    """The power of all nodes fails at once, and another node joins: the job goes on by itself."""
    wanted = heard.step + EVERY_STEPS + 3
    job.wait(lambda s: s.get("checkpoint", {}).get("step", 0) >= wanted - EVERY_STEPS, "a save")
    heard.wait(lambda heard: heard.step >= wanted, "steps after it")
    before = job.get()["status"]
    for node in lost:
        cluster.power_off(node)
    failed_s = time.monotonic()
    newest, trained = disk.newest().step, heard.step + 1
    cluster.add_node(new, 2, SLOW)
    status = job.wait_until_on(new, gpus=2)
    epoch = status["epoch"]
    heard.wait(
        lambda heard: any(of == epoch for of, _, _ in heard.curve.records),
        f"a step of epoch {epoch}",
    )
    print(f"{new} goes on {time.monotonic() - failed_s:.1f} s after the power failed")

    assert status["plan"]["reason"] == "start"
    left = job.epochs()[before["epoch"]]
    assert left["outcome"] == "lost"
    reached = int(left["step"])
    assert reached <= trained
    again = max(0, reached - newest)  # as far as the operator knew
    told, known = status["checkpoint"], before["checkpoint"].get("lostSteps", 0)
    assert (told["restoredEpoch"], told["restoredStep"]) == (epoch, newest)
    assert told["lostSteps"] == known + again
    job.wait_for_event(
        "StateLost", f"after step {reached}; the job looks for its newest checkpoint"
    )
    event = job.wait_for_event("Restored", f"epoch {epoch} goes on from the checkpoint of step ")
    assert f"checkpoint of step {newest} in /saves/{NAME}" in event["note"]
    assert (f"; {again} step" in event["note"]) == bool(again)


def a_suspension_waits_for_a_full_disk(
    cluster: Cluster, job: Job, heard: Listener, disk: Disk
) -> float:
    """While the disk is full the job trains on and says why; when room was made, as Unix time."""
    with disk.full():
        job.patch(suspend=True)
        full = job.wait_for_condition("CheckpointStale", "SaveFailed", "No space left on device")
        assert "the checkpoint of step" in full["message"]
        job.wait_for_event("CheckpointFailed", "No space left on device")
        held = job.wait(
            lambda s: s["phase"] == "Suspending" and "and the job trains on" in s["message"],
            "its word that it trains on",
        )
        assert "No space left on device" in held["status"]["message"]
        heard.wait_for_steps(EVERY_STEPS)
        status = job.get()["status"]
        assert status["phase"] == "Suspending"
        assert condition_of(status, "Running")["reason"] == "Training"
    return time.time()


def it_holds_nothing_and_says_so(
    cluster: Cluster, job: Job, disk: Disk, suspended_s: float
) -> None:
    """No pod and no GPU; the checkpoint on the disk is the one that the status names."""
    status = job.wait(
        lambda s: s["phase"] == "Suspended" and not s["grantedGPUs"], "Suspended without a GPU"
    )["status"]
    print(f"it is suspended {time.time() - suspended_s:.1f} s after room was made")
    job.wait_for_pods(lambda seen: not running_of(cluster, seen), "its pods to be gone")
    newest = disk.newest()
    assert (status["checkpoint"]["step"], status["progress"]["step"]) == (newest.step, newest.step)
    assert status["checkpoint"]["bytes"] == disk.num_bytes(newest) > 0
    saved_s = datetime.fromisoformat(status["checkpoint"]["savedAt"]).timestamp()
    assert int(suspended_s) <= saved_s <= time.time() + 1
    assert (status["activeGPUs"], status.get("nodes", [])) == (0, [])
    assert "plan" not in status
    words = f"the job is suspended after step {newest.step}"
    assert status["message"] == words
    job.wait_for_event("Suspended", words)
    for kind, reason in (
        ("Ready", "Suspended"),
        ("Running", "Suspended"),
        ("CheckpointStale", "Saved"),
        ("Failed", "Suspended"),
    ):
        found = condition_of(status, kind)
        assert (found["status"], found["reason"]) == ("False", reason)
    wide = cluster.kubectl("get", "heddlejob", job.name, "--output=wide").splitlines()
    at = wide[0].index("LAST SAVE")
    assert wide[1][at:].split()[0][-1] in "sm"  # its age


def its_checkpoint_is_worked_on_by_a_job(cluster: Cluster, job: Job, disk: Disk) -> None:
    """`heddle checkpoint --job` reads, exports and removes what is on the disk of the nodes."""
    newest, began_s = disk.newest(), time.monotonic()
    done, found = checkpoint_of(cluster, job, "verify")
    assert (done, found["step"], found["is_whole"]) == (0, newest.step, True)
    assert checkpoint_of(cluster, job, "export", "/saves/out", "--format", "dcp")[0] == 0
    weights = [file for file in (disk.folder / "out").iterdir() if file.suffix == ".safetensors"]
    assert sum(file.stat().st_size for file in weights) > 0
    assert checkpoint_of(cluster, job, "rm", "--step", str(newest.step))[0] == 2  # needs --yes
    assert disk.newest() == newest
    print(f"three verbs took {time.monotonic() - began_s:.1f} s by Jobs")


def checkpoint_of(cluster: Cluster, job: Job, *arguments: str) -> tuple[int, Json]:
    """Exit code and answer of `heddle checkpoint` about the job, on this host."""
    command = (sys.executable, "-m", "heddle", "checkpoint", *arguments, "--output", "json")
    done = subprocess.run(
        [*command, "--job", f"default/{job.name}"],
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return done.returncode, json.loads(lines[-1]) if lines else {}


def the_chart_is_upgraded(chart: Installation, job: Job) -> None:
    """Another operator takes over, and the job stays suspended beside free GPUs."""
    before = operators(chart.cluster)
    chart.cluster.power_off("n4")
    chart.cluster.kubectl("delete", "node", "n4")
    chart.cluster.add_node("n5", 2, FAST)
    began_s = time.monotonic()
    chart.upgrade(ALLOW, SOON, NEXT)
    chart.cluster.api.wait(
        pods(), lambda _: not operators(chart.cluster) & before, 60.0, "the old operator to be gone"
    )
    job.patch(elastic={"cooldownSeconds": 1})  # whoever has seen it is the new operator
    generation = job.get()["metadata"]["generation"]
    status = job.wait(lambda s: s["observedGeneration"] == generation, "its word")["status"]
    print(f"another operator leads {time.monotonic() - began_s:.1f} s after the upgrade began")
    assert status["phase"] == "Suspended"
    assert not running_of(chart.cluster, job.pods())


def running_of(cluster: Cluster, seen: Mapping[str, Json]) -> list[str]:
    """Pods of nodes whose power is on; the cluster takes its time to collect the others."""
    return [name for name, pod in seen.items() if cluster.is_on(pod["spec"]["nodeName"])]


def operators(cluster: Cluster) -> set[str]:
    """Names of the operator's pods."""
    selector = "labelSelector=app.kubernetes.io%2Fcomponent%3Doperator"
    return {pod["metadata"]["name"] for pod in cluster.api.get(f"{pods()}?{selector}")["items"]}


def it_goes_on_by_other_gpus(cluster: Cluster, job: Job, heard: Listener, disk: Disk) -> None:
    """Its next step is the one after the last, and no attempt has failed."""
    before, newest = job.get()["status"]["checkpoint"], disk.newest().step
    assert heard.step + 1 == newest
    resumed_s = time.monotonic()
    job.patch(suspend=False, backoffLimit=0)
    status = job.wait_until_on("n5", gpus=2)
    heard.wait_for_steps(EVERY_STEPS)
    told = status["checkpoint"]
    assert (told["restoredEpoch"], told["restoredStep"]) == (status["epoch"], newest)
    assert told["lostSteps"] == before["lostSteps"]
    job.wait_for_event("Restored", f"goes on from the checkpoint of step {newest} in ")
    seen = job.pods()
    (name,) = running_of(cluster, seen)
    assert seen[name]["metadata"]["labels"]["chart"] == "next"
    outcomes = [record["outcome"] for _, record in sorted(job.epochs().items())]
    left = [outcome for outcome in outcomes if outcome in ("lost", "suspended", "failed")]
    assert (left, outcomes[-1]) == (["lost", "lost", "suspended"], "live")
    took_s = time.monotonic() - resumed_s
    print(f"it trains by another GPU type {took_s:.1f} s after it was resumed")
