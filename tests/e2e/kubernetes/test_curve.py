"""A curve that is not that of one process is told from one that is."""

from __future__ import annotations

import pytest

from tests.e2e.kubernetes.curve import Curve
from worker.contract import StepRecord

EXPECTED = (5.0, 4.0, 3.0, 2.0)


def trained(epoch, step, loss=None, start_s=0.0):
    found = EXPECTED[step] if loss is None else loss
    return StepRecord(
        epoch=epoch, step=step, loss=found, gradient_norm=1.0, start_s=start_s, end_s=start_s + 1
    )


def curve_of(*records, pod="a"):
    curve = Curve()
    curve.add(pod, records)
    return curve


def test_a_curve_with_every_step_once_is_exact_however_often_it_is_heard():
    steps = (trained(1, 0), trained(1, 1), trained(2, 2), trained(2, 3))
    curve = curve_of(*steps)
    curve.add("a", steps[1:])
    curve.add("b", steps[:2])
    assert curve.faults(EXPECTED) == []
    assert [record.epoch for record in curve.history()] == [1, 1, 2, 2]


def test_a_step_that_a_loss_undid_counts_in_the_epoch_that_trained_it_again():
    curve = curve_of(trained(1, 0), trained(1, 1), trained(2, 1, start_s=9.0), trained(2, 2))
    assert curve.faults(EXPECTED) == []
    assert curve.history()[1].epoch == 2
    assert curve.first_step_s(2) == 0.0
    assert curve.step == 2


def test_the_gap_before_an_epoch_is_that_of_a_pod_which_trained_before_it():
    curve = curve_of(trained(1, 0, start_s=1.0), trained(1, 1, start_s=2.0))
    curve.add("a", [trained(2, 2, start_s=15.0)])
    curve.add("b", [trained(1, 1, start_s=2.5)])
    curve.add("c", [trained(2, 2, start_s=14.0)])
    assert curve.gap_s(2) == 12.0


def test_a_step_that_two_epochs_trained_was_lost_once():
    steps = (trained(1, 0), trained(1, 1), trained(2, 2))
    assert curve_of(*steps).gaps() == []
    assert curve_of(*steps, trained(2, 1)).gaps() == ["step 1 was trained in epochs 1, 2"]
    assert curve_of(*steps[::2]).gaps() == ["step 1 was never trained"]


@pytest.mark.parametrize(
    ("records", "fault"),
    [
        ((trained(1, 0), trained(1, 2)), "step 1 was never trained"),
        (
            (trained(1, 0), trained(1, 1), trained(1, 1, start_s=5.0)),
            "a trained step 1 of 1 twice",
        ),
        (
            (trained(1, 0), trained(2, 1), trained(1, 2)),
            "epoch 1 trained step 2 after a newer one",
        ),
        ((trained(1, 0, loss=5.00002),), "the loss of step 0 is 2.0e-05 off"),
        ((trained(1, 0, loss=float("nan")),), "the loss of step 0 is nan off"),
    ],
)
def test_what_is_wrong_is_said(records, fault):
    assert curve_of(*records).faults(EXPECTED) == [fault]
