"""What does not depend on each other is done at once; all else keeps its order."""

from __future__ import annotations

from heddle_operator.controller.waves import waves
from heddle_operator.state.actions import CloseEpoch, CreatePod, DeletePod, PruneEpoch, RecordEvent

A, B = CreatePod("a", "a", 0, 1), CreatePod("b", "b", 0, 1)
OLD, OLDER = DeletePod("old", "test"), DeletePod("older", "test")


def test_pods_are_created_at_once_but_after_what_was_decided_before():
    assert waves([OLD, OLDER, A, B]) == ((OLD, OLDER), (A, B))
    assert waves([A, OLD, B]) == ((A,), (OLD,), (B,))


def test_the_records_of_epochs_are_written_one_after_another():
    first, second = CloseEpoch(1, "aborted"), CloseEpoch(2, "live")
    assert waves([first, second]) == ((first,), (second,))
    assert waves([PruneEpoch(1), PruneEpoch(2)]) == ((PruneEpoch(1), PruneEpoch(2)),)


def test_no_action_gets_lost_or_moves():
    actions = [RecordEvent("k", "R", "m"), A, B, CloseEpoch(1, "live"), OLD]
    assert [action for wave in waves(actions) for action in wave] == actions
    assert waves([]) == ()
