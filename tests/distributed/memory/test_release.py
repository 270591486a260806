"""No tensor of an old epoch stays in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.plans.plan import Plan
from tests.distributed.pods import Pods, place, template
from worker.contract import TrainingSpec

pytestmark = pytest.mark.slow
ONE = place((template("1x6", 2, 2), template("1x3+1x3", 1, 4)), [("a", 0), ("a", 1), ("a", 2)])
TWO = place((template("1x2+2x4", 2, 4),), [("a", 2), ("a", 0), ("a", 1)])


def test_old_engines_are_freed_on_first_and_last_stages(tmp_path: Path, corpus: Path) -> None:
    spec = TrainingSpec(
        model="tiny-llama", data=str(corpus), global_batch=8, sequence_length=32, steps=1000
    )
    counts = tmp_path / "counts"
    counts.mkdir()
    pods = Pods(
        tmp_path,
        rank_entry="tests.distributed.faults.rank_entries:counting",
        environment={"HEDDLE_TEST_COUNT": str(counts)},
    )
    try:
        pods.start("a")
        old: Plan | None = None
        for epoch, plan in enumerate((ONE, TWO, ONE, TWO), start=1):
            holds = {("a", gpu): epoch - 1 for gpu in range(3)} if old else {}
            layouts = {epoch - 1: old} if old else {}
            pods.change(pods.directive(epoch, plan, spec, "a", holds=holds, layouts=layouts))
            step = max(rank.step for rank in pods.pods["a"].report().ranks)
            pods.pods["a"].wait(
                lambda report, step=step: any(rank.step >= step + 2 for rank in report.ranks)
            )
            old = plan
    finally:
        pods.close()
    found = {path.name: int(path.read_text()) for path in counts.iterdir()}
    assert len(found) == 6, "three ranks looked in the third epoch and in the fourth"
    assert set(found.values()) == {0}
