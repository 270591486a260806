"""The end of a job: its weights are on the disk, whole, before a rank is done; a disk that refuses
costs time and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors import safe_open

from planner.plans.plan import Plan
from tests.distributed.pods import Pods, place, template
from worker.contract import Report, Resume, TrainingSpec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount the disks of these tests"),
]
STEPS = 3
DONE_S = 10.0  # after the disk can be written again
ROOMY, SMALL = "size=32m", "size=1m"  # the weights have 1.1 MB, for a while twice


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    found = Pods(tmp_path_factory.mktemp("pods"))
    try:
        found.start("a", gpus=8)
        yield found
    finally:
        found.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own with room for the weights."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", ROOMY, "tmpfs", tmp_path], check=True)
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True)


def spec(corpus: Path, output: Path, steps: int = STEPS) -> TrainingSpec:
    return TrainingSpec(
        model="tiny-llama",
        data=str(corpus),
        global_batch=4,
        sequence_length=32,
        steps=steps,
        output=str(output),
    )


def plan(first_gpu: int) -> Plan:
    """Two replicas; the first, which speaks for the model, is of TP 1."""
    return place(
        (template("1x6", 2, 1), template("1x6", 2, 1)), [("a", first_gpu), ("a", first_gpu + 1)]
    )


def phases(report: Report, slots: tuple[int, ...]) -> list[str]:
    return [rank.phase for rank in report.ranks if rank.slot in slots]


def check_weights(folder: Path) -> None:
    """The folder is the model, whole, and nothing else: no parts, no drafts."""
    names = {path.name for path in folder.iterdir()} - {"measurements"}
    assert names == {"config.json", "model.safetensors"}
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        found = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    assert len(found) == 3 + 9 * config["num_hidden_layers"]
    assert all(tensor.isfinite().all() for tensor in found.values())
    assert found["model.embed_tokens.weight"].any(dim=1).all()


@pytest.mark.parametrize(
    ("epoch", "refusal", "remedy", "sentence"),
    [
        (1, SMALL, ROOMY, "no space left on device"),
        (2, "ro", "rw", "read-only file system"),
    ],
    ids=["full", "read-only"],
)
def test_a_disk_that_refuses_keeps_the_state_and_the_job_ends_soon_after_it_takes_the_weights(
    pods: Pods, corpus: Path, disk: Path, epoch: int, refusal: str, remedy: str, sentence: str
) -> None:
    first = 2 * epoch - 2
    slots, pod = (first, first + 1), pods.pods["a"]
    directive = pods.directive(
        epoch, plan(first), spec(corpus, disk / "weights"), "a", reason="start"
    )
    pods.send(directive)
    pod.wait(lambda r: [x.pending_epoch for x in r.ranks if x.slot in slots] == [epoch] * 2)
    remount(disk, refusal)  # it was roomy when the job was admitted
    pods.send(directive.model_copy(update={"phase": "switch"}))
    report = pod.wait(lambda r: any(x.error_kind == "output" for x in r.ranks if x.slot == first))
    (saver,) = (rank for rank in report.ranks if rank.slot == first)
    assert (saver.phase, saver.step, saver.epoch) == ("saving", STEPS, epoch)
    assert (saver.error or "").startswith(f"{sentence}: ")
    pod.wait(lambda r: phases(r, slots) == ["saving", "done"])  # the other replica has no part
    assert not list(disk.rglob("*.part")), "a draft would keep the last room of a full disk"
    remount(disk, remedy)
    given_s = time.monotonic()
    report = pod.wait(lambda r: phases(r, slots) == ["done", "done"])
    assert time.monotonic() - given_s < DONE_S
    assert all(rank.error is None for rank in report.ranks if rank.slot in slots)
    check_weights(disk / "weights")


def test_a_rank_that_saves_hears_directives_and_hands_its_state_on(
    pods: Pods, corpus: Path, disk: Path
) -> None:
    """The replica that does not write takes over: nothing is lost with the one that cannot."""
    pod, old = pods.pods["a"], plan(4)
    directive = pods.directive(3, old, spec(corpus, disk / "weights"), "a", reason="start")
    pods.send(directive)
    pod.wait(lambda r: [x.pending_epoch for x in r.ranks if x.slot > 3] == [3, 3])
    remount(disk, SMALL)
    pods.send(directive.model_copy(update={"phase": "switch"}))
    pod.wait(lambda r: phases(r, (4, 5)) == ["saving", "done"])
    new = place((template("1x6", 2, 2),), [("a", 5)])
    holds = {("a", 4): 3, ("a", 5): 3}
    change = pods.directive(
        4, new, spec(corpus, disk / "weights"), "a", reason="loss", holds=holds,
        layouts={3: old}, resume=Resume(step=STEPS),
    )  # fmt: skip
    pods.send(change)
    pod.wait(lambda r: [x.pending_epoch for x in r.ranks if x.slot > 3] == [4, 4])
    remount(disk, ROOMY)
    pods.send(change.model_copy(update={"phase": "switch"}))
    pod.wait(lambda r: phases(r, (4, 5)) == ["done"] and any(x.slot == 4 for x in r.exits))
    check_weights(disk / "weights")


def test_the_pod_ends_well(pods: Pods) -> None:
    """Runs last: all that trained in the newest epoch is done."""
    assert pods.pods["a"].request("PUT", "/v1/end")[0] == 200
    assert pods.pods["a"].process.wait(timeout=10) == 0
