"""worker/profile/rows.py: rows in doubt are measured again, and the smaller time wins."""

from __future__ import annotations

import itertools

import pytest

from planner.profiles.entries import LayerCost
from worker.profile.rows import (
    CONFIRMATIONS,
    DoesNotFit,
    Part,
    Row,
    again,
    contradicting,
    doubtful,
    measured_rows,
    smaller,
    worth_measuring,
)

BLOCK = Part("block")


def row(seconds: float, **known) -> Row:
    return Row(
        LayerCost(
            forward_s=seconds / 3,
            backward_s=2 * seconds / 3,
            tp_communication_s=0.0,
            activation_bytes=1,
        ),
        **known,
    )


@pytest.mark.parametrize(
    ("per_sample_ms", "wrong"),
    [
        ((2.81, 2.19, 2.00, 1.92, 1.89), set()),  # of a quiet machine
        ((1.03, 0.91, 1.51, 1.04, 0.74), {4}),
        ((1.19, 0.72, 0.78, 1.02, 0.96), {8}),
        ((1.0, 0.4, 0.4, 0.4, 0.4), {1}),  # a larger one takes less time
        ((1.0, 1.0, 1.0, 1.0, 1.0), set()),
    ],
)
def test_times_that_cannot_all_be_true_are_found(per_sample_ms, wrong):
    times = {b: b * ms for b, ms in zip((1, 2, 4, 8, 16), per_sample_ms, strict=True)}
    assert contradicting(times) >= wrong
    assert bool(contradicting(times)) == bool(wrong)


def test_the_smaller_time_wins_and_what_is_kept_is_of_one_measurement():
    noisy = Row(
        LayerCost(
            forward_s=5.0,
            backward_s=2.0,
            tp_communication_s=0.0,
            activation_bytes=1,
            attention_s=0.4,
        ),
        0.5,
        9.0,
        0,
    )  # a forward pass that was disturbed
    calm = Row(
        LayerCost(
            forward_s=2.0,
            backward_s=4.0,
            tp_communication_s=0.0,
            activation_bytes=1,
            attention_s=0.5,
        ),
        0.1,
        1.0,
        0,
    )
    assert smaller(noisy, calm) == Row(
        LayerCost(
            forward_s=2.0,
            backward_s=4.0,
            tp_communication_s=0.0,
            activation_bytes=1,
            attention_s=0.4,
        ),
        0.1,
        1.0,
        0,
    )


def test_a_row_is_believed_once_later_ones_agree():
    found = row(1.0, confirmations=0)
    found = smaller(found, row(1.01))
    assert found.confirmations == 1
    assert smaller(found, row(2.0)).confirmations == 1
    assert smaller(found, row(0.5)).confirmations == 0


def test_rows_that_contradict_others_are_measured_again_and_no_others():
    rows = {(BLOCK, b): row(seconds) for b, seconds in ((1, 1.0), (2, 9.0), (4, 4.0))}
    asked = []

    def measure(part, b):
        asked.append(b)
        return row(2.0)

    again(rows, measure, itertools.count().__next__, 100, lambda *_: None)
    assert set(asked) == {2}
    assert rows[BLOCK, 2].seconds == pytest.approx(2.0)
    assert not doubtful(rows)


def test_each_row_is_measured_until_it_is_confirmed_or_the_time_is_over():
    def measured(limit_s):
        asked = []

        def measure(part, b):
            asked.append(b)
            return row(float(b))

        found = measured_rows(
            measure, (BLOCK,), (1, 2), itertools.count().__next__, limit_s, lambda *_: None
        )
        return asked, found[1]

    assert measured(1000.0) == ([1, 2] * (1 + CONFIRMATIONS), ())
    assert measured(0.0) == ([1], (2,))


def test_micro_batches_that_do_not_fit_are_left_out():
    def measure(part, b):
        if b > 2:
            raise DoesNotFit
        return row(float(b))

    rows, left = measured_rows(
        measure, (BLOCK,), (1, 2, 4, 8), itertools.count().__next__, 1000, lambda *_: None
    )
    assert ({b for _, b in rows}, left) == ({1, 2}, (4, 8))


def test_a_kept_row_is_worth_measuring_on_a_machine_that_is_quieter():
    sound = {(BLOCK, b): row(float(b), load=1.0) for b in (1, 2, 4)}
    assert not worth_measuring(sound, cores=2, load=0.1)
    busy = {(BLOCK, b): row(float(b), load=15.0) for b in (1, 2, 4)}
    assert worth_measuring(busy, cores=2, load=1.0)
    assert not worth_measuring(busy, cores=2, load=14.0)
    contradict = {**sound, (BLOCK, 2): row(9.0)}  # of a file that does not tell the load
    assert worth_measuring(contradict, cores=2, load=14.0)
