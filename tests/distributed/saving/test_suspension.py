"""Ranks save when they are told, and stop for a suspension once their checkpoint is whole."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed.pods import Pods, place, template
from worker.checkpoint_records import Look
from worker.contract import Report, TrainingSpec
from worker.training_settings import Checkpointing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount the disk of these tests"),
]
PLAN = place((template("1x3+1x3", 1, 4),), [("a", 0), ("a", 1)])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True)


def phases(report: Report) -> set[str]:
    return {rank.phase for rank in report.ranks}


def steps(report: Report) -> int:
    return max(rank.step for rank in report.ranks)


def test_ranks_save_and_are_suspended_once_the_store_takes_it(tmp_path, corpus, disk):
    spec = TrainingSpec(
        model="tiny-llama",
        data=str(corpus),
        global_batch=4,
        sequence_length=32,
        steps=100_000,
        checkpoint=Checkpointing(path=str(disk / "tiny")),
    )
    pods = Pods(tmp_path)
    try:
        pods.start("a")
        a = pods.pods["a"]
        pods.change(pods.directive(1, PLAN, spec, "a", reason="start"))
        a.wait(lambda report: phases(report) == {"training"} and steps(report) > 2)

        assert a.request("PUT", "/v1/save", b"{}")[0] == 200
        report = a.wait(lambda report: len(report.saves) == 2)
        assert {save.outcome for save in report.saves} == {"saved"}
        (first,) = {save.step for save in report.saves}

        remount(disk, "ro")
        a.request("PUT", "/v1/suspend", b"{}")
        report = a.wait(lambda report: sum(s.outcome == "failed" for s in report.saves) == 2)
        assert all(save.error for save in report.saves if save.outcome == "failed")
        failed = max(save.step for save in report.saves)
        a.wait(lambda report: phases(report) == {"training"} and steps(report) > failed + 2)

        remount(disk, "rw")
        a.request("PUT", "/v1/suspend", b"{}")
        report = a.wait(lambda report: phases(report) == {"suspended"})
        last = max(save.step for save in report.saves)
        assert {rank.step for rank in report.ranks} == {last}

        look = Look(epoch=2, training=spec).model_dump_json().encode()
        assert a.request("PUT", "/v1/checkpoints", look)[0] == 200
        seen = a.wait(lambda report: report.checkpoints is not None).checkpoints
        assert [found.step for found in seen.found] == [last, first]
        other = spec.model_copy(update={"global_batch": 8})
        a.request(
            "PUT", "/v1/checkpoints", Look(epoch=3, training=other).model_dump_json().encode()
        )
        seen = a.wait(lambda r: r.checkpoints is not None and r.checkpoints.epoch == 3).checkpoints
        assert [refused.code for refused in seen.refused] == ["other", "other"]
        assert a.request("PUT", "/v1/checkpoints", b"[]")[0] == 400
    finally:
        pods.close()
