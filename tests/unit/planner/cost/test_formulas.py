"""The rules of the cost model as laws of numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.formulas import (
    broadcast_factor,
    micro_batches_within,
    nic_share,
    peak_bytes,
    pipeline_seconds,
    ring_factor,
    zero_cut,
)

SECONDS = st.floats(1e-6, 1e3)
COUNTS = st.integers(1, 2**20)


@given(COUNTS, SECONDS, st.floats(1, 100))
def test_a_replica_trains_in_its_time_what_it_was_asked_to(micro_batches, slowest_s, stages):
    sum_s = stages * slowest_s
    limit_s = pipeline_seconds(micro_batches, slowest_s, sum_s)
    found = micro_batches_within(limit_s, slowest_s, sum_s, 2**21)
    # Rounding of the time moves the count where it is more than 1e-9 of a micro-batch.
    assert abs(found - micro_batches) <= 1 + limit_s / slowest_s * 2**-50
    assert micro_batches_within(limit_s, slowest_s, sum_s, 3) <= 3


def test_no_time_trains_nothing_and_the_sum_of_the_stages_one():
    assert micro_batches_within(0.5, 0.2, 1.0, 8) == 0
    assert micro_batches_within(1.0, 0.2, 1.0, 8) == 1
    assert micro_batches_within(1.4, 0.2, 1.0, 8) == 3


@given(COUNTS)
def test_a_ring_sends_twice_what_each_holds_at_most_and_one_holder_nothing(members):
    assert ring_factor(1) == 0
    assert 0 <= ring_factor(members) < 2


@given(COUNTS)
def test_a_ring_broadcasts_each_byte_once_over_each_link_and_one_holder_nothing(members):
    assert broadcast_factor(members) == (members > 1)


@given(COUNTS, COUNTS)
def test_zero_cuts_so_that_the_copies_hold_all(parameters, copies):
    own = zero_cut(parameters, copies)
    assert own * copies >= parameters > (own - 1) * copies


def test_gpus_that_send_together_share_no_nic():
    assert nic_share(4, 4) == 1
    assert nic_share(8, 2) == pytest.approx(4)
    assert nic_share(0, 2) == 1


def test_the_peak_is_of_a_micro_batch_or_of_the_optimizer_step():
    assert peak_bytes(10, 5, 1, 1, 1, 3) == 18
    assert peak_bytes(10, 5, 1, 1, 1, 30) == 40
