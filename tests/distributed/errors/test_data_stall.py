"""A disk of data that stalls stops no rank: all wait, and train on, or halt where they are told."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from planner.model.catalogue import find_model
from tests.distributed.pods import WAIT_S, Pods, place, template
from tests.unit.worker.data.lines import prepared_lines
from worker.contract import READING, TrainingSpec

pytestmark = pytest.mark.slow
MODEL = replace(find_model("tiny-llama"), layers=2)
PLAN = place((template("1x2", 1, 2), template("1x2", 1, 2)), [("a", 0), ("b", 0)])
STUCK_S = 3.0


@pytest.fixture
def pods(tmp_path):
    """Two replicas that have trained some steps, and know how long one takes."""
    spec = TrainingSpec(
        model=MODEL.name,
        shape=MODEL.to_json(),
        data=prepared_lines(tmp_path),
        global_batch=4,
        sequence_length=32,
        steps=1_000_000,
    )
    found = Pods(
        tmp_path,
        rank_entry="tests.distributed.errors.stalling:main",
        environment={"HEDDLE_TEST_STALL": str(tmp_path / "stall")},
        options=("--stuck-s", f"{STUCK_S:g}"),
    )
    try:
        found.start("a", "b", gpus=1)
        found.change(found.directive(1, PLAN, spec, "a", reason="start"))
        found.pods["a"].wait(lambda report: any(rank.step >= 3 for rank in report.ranks))
        yield found
    finally:
        found.close()


def stall(pods):
    """Stall the disk until an agent has told of a rank that waits longer than it may be stuck.

    The other rank may have read a little further, and then waits for its peer.
    """
    (pods.folder / "stall").touch()
    told = f"s for its data ('{pods.folder / 'lines'}')"
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        reports = [pod.report() for pod in pods.pods.values()]
        assert not any(report.exits for report in reports)
        if any(told in (pods.folder / f"{name}.log").read_text() for name in pods.pods):
            break
        time.sleep(0.2)
    ranks = [rank for report in reports for rank in report.ranks]
    assert any(rank.part == READING and not rank.waiting for rank in ranks)
    assert all(rank.part == READING or rank.waiting for rank in ranks)
    return ranks


def test_ranks_whose_disk_stalls_longer_than_they_may_be_stuck_train_on(pods):
    before = stall(pods)
    (pods.folder / "stall").unlink()
    for pod, old in zip(pods.pods.values(), before, strict=True):
        report = pod.wait(lambda r, step=old.step: any(rank.step > step + 5 for rank in r.ranks))
        assert [rank.pid for rank in report.ranks] == [old.pid]


def test_ranks_that_wait_for_their_disk_halt_when_they_are_told(pods):
    stall(pods)
    reason = "pod tiny-c-0 does not answer"
    for pod in pods.pods.values():
        body = json.dumps({"epoch": 1, "reason": reason}).encode()
        assert pod.request("PUT", "/v1/halt", body)[0] == 200
    for pod in pods.pods.values():
        report = pod.wait(lambda report: [rank.phase for rank in report.ranks] == ["halted"])
        assert [rank.error for rank in report.ranks] == [f"lost a peer: {reason}"]
