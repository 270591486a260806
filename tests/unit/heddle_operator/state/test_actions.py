"""heddle_operator/state/actions.py: an action says in words what it will do, and to what."""

from __future__ import annotations

import pytest

from heddle_operator.state.actions import (
    AdoptPlan,
    CloseEpoch,
    CreatePod,
    DeletePod,
    EndPod,
    PruneEpoch,
    RecordEvent,
    RequestPlan,
    SealEpoch,
    SendDirective,
)
from heddle_operator.state.epoch_record import Seal
from heddle_operator.state.plan_reply import PlanKey
from tests.builders import nodes, placed, template
from tests.unit.worker.changes import change, plan

TWO = nodes("fast-0:2 fast-1:1")
PLAN = placed(template("2x6", 4, (8,)), composition=TWO)
SEAL = Seal(members=(), store="10.0.0.1:5", resume=None, sealed_s=0.0)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (RequestPlan(TWO, None), "search a plan for 3 GPUs on 2 nodes"),
        (
            AdoptPlan(epoch=3, plan=PLAN, reason="join", composition=TWO),
            f"adopt epoch 3 (join): {PLAN.templates[0]}",
        ),
        (SealEpoch(3, SEAL), "seal epoch 3 with 0 members"),
        (CloseEpoch(epoch=3, outcome="live"), "epoch 3 is live"),
        (
            CloseEpoch(epoch=3, outcome="aborted", message="a pod died"),
            "epoch 3 is aborted: a pod died",
        ),
        (CreatePod("tiny-a-0", "a", 0, 2), "create pod tiny-a-0 with 2 GPUs"),
        (DeletePod("tiny-a-0", "it failed"), "delete pod tiny-a-0: it failed"),
        (EndPod("tiny-a-0"), "end pod tiny-a-0"),
        (PruneEpoch(3), "delete the record of epoch 3"),
        (SendDirective("tiny-a-0", change(None, plan("1x2"))), "prepare epoch 2 at tiny-a-0"),
        (RecordEvent("k", "PlanKept", "+0.5 % does not pay"), "PlanKept: +0.5 % does not pay"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_an_action_is_told_in_one_line(action, words):
    assert str(action) == words


def test_the_answer_to_a_question_is_filed_under_its_nodes_and_its_plan():
    first, again = RequestPlan(TWO, PLAN), RequestPlan(nodes("fast-0:2 fast-1:1"), PLAN)
    assert first.key == again.key == PlanKey(TWO.digest, PLAN.digest)
    others = {RequestPlan(TWO, None).key, RequestPlan(nodes("fast-0:2"), PLAN).key}
    assert first.key not in others
    assert len(others) == 2
