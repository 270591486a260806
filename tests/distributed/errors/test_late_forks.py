"""A rank that starts when its epoch has been called off holds nothing, and ends."""

from __future__ import annotations

import pytest

from tests.distributed.pods import Pods, place, template
from worker.contract import TrainingSpec

pytestmark = pytest.mark.slow
PLAN = place((template("1x3+1x3", 1, 4),), [("a", 0), ("a", 1)])


def test_a_rank_that_is_forked_after_its_epoch_was_called_off_ends(tmp_path, corpus):
    spec = TrainingSpec(
        model="tiny-llama", data=str(corpus), global_batch=4, sequence_length=32, steps=10
    )
    pods = Pods(tmp_path)
    try:
        pods.start("a")
        a = pods.pods["a"]
        directive = pods.directive(1, PLAN, spec, "a", reason="start")
        assert a.put(directive)[0] == 200
        assert a.put(directive.model_copy(update={"phase": "abort"}))[0] == 200
        report = a.wait(lambda report: len(report.exits) == 2, timeout_s=20.0)
        assert report.ranks == ()
    finally:
        pods.close()
