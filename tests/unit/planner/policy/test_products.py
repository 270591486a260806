"""Products by a few rows at a time are the products."""

from __future__ import annotations

import numpy as np
import pytest

from planner.policy.products import MOST, product


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 128, 1000])
@pytest.mark.parametrize("shape", [(128, 128), (30, 64), (600, 600)])
def test_it_is_the_product(rows, shape):
    draws = np.random.default_rng(rows)
    left = draws.standard_normal((rows, shape[0])).astype(np.float32)
    right = draws.standard_normal(shape).astype(np.float32)
    found = product(left, right)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, left @ right, rtol=1e-4, atol=1e-4)


def test_rows_that_are_left_to_one_thread_are_a_whole_number_of_them():
    assert MOST // (128 * 128) == 16
