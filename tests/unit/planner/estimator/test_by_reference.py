"""Named tuples by reference: what compiled functions read of them, and what is refused."""

from __future__ import annotations

import pickle
from typing import NamedTuple

import numba
import numpy as np
import pytest

from planner.estimator.by_reference import by_reference
from planner.estimator.jit import inlined, jit
from planner.estimator.reference_type import reference_to
from planner.estimator.tables import Floats, Ints


@by_reference
class Row(NamedTuple):
    """A row of numbers."""

    number: Ints
    values: Floats


@by_reference
class Sheet(NamedTuple):
    """Rows, and what they are multiplied by."""

    row: Row
    wide: Floats
    factor: float
    shift: int


@by_reference
class Flag(NamedTuple):
    """Of a kind that is not handed over."""

    row: Ints
    is_set: bool


def sheet(*values: float) -> Sheet:
    row = Row(np.array([len(values)]), np.array(values))
    return Sheet(row, np.arange(6.0).reshape(2, 3), 2.0, 7)


@jit
def total(row: Row) -> float:
    """The sum of the numbers that hold."""
    found = 0.0
    for i in range(row.number[0]):
        found += row.values[i]
    return found


@jit
def scaled_total(s: Sheet) -> float:
    """The sum of a nested tuple, with numbers and a matrix beside it."""
    return s.factor * total(s.row) + s.shift + s.wide[1, 2]


@jit
def double_first(s: Sheet) -> None:
    """Change what an array holds."""
    s.row.values[0] *= 2.0


@inlined
def first_of(wide: Floats, number: Ints) -> Row:
    """A row of a matrix, as a view."""
    row: Row = reference_to(Row(number, wide[0]))
    return row


@jit
def total_of_first(s: Sheet) -> float:
    """The sum of a tuple that is made here."""
    return total(first_of(s.wide, s.row.number))


@jit
def is_set(flag: Flag) -> bool:
    """Never reached."""
    return flag.is_set


def test_fields_are_read_by_name_numbers_arrays_and_nested_tuples():
    assert scaled_total(sheet(1.0, 2.0)) == 2.0 * 3.0 + 7 + 5.0


def test_arrays_are_the_callers_own():
    one = sheet(1.0, 2.0)
    double_first(one)
    double_first(one)
    assert one.row.values.tolist() == [4.0, 2.0]


def test_a_tuple_made_in_a_compiled_function_is_handed_on():
    assert total_of_first(sheet(1.0, 1.0, 1.0)) == 0.0 + 1.0 + 2.0


def test_a_tuple_with_other_fields_is_another_one():
    one = sheet(1.0)
    assert scaled_total(one) == 2.0 + 7 + 5.0
    assert scaled_total(one._replace(shift=0)) == 2.0 + 5.0
    assert scaled_total(one._replace(row=Row(np.array([1]), np.array([4.0])))) == 8.0 + 7 + 5.0


def test_what_comes_out_of_a_pickle_has_its_own_arrays():
    one = sheet(1.0, 2.0)
    double_first(one)
    other = pickle.loads(pickle.dumps(one))
    assert isinstance(other, Sheet)
    double_first(other)
    assert (one.row.values[0], other.row.values[0]) == (2.0, 4.0)


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is handed over")
def test_a_field_that_is_no_array_or_number_is_refused():
    with pytest.raises(TypeError, match="True is no array, int or float"):
        is_set(Flag(np.zeros(1, np.int64), True))


def test_it_is_a_named_tuple_like_any_other():
    number, values = sheet(3.0).row
    assert (number.tolist(), values.tolist()) == ([1], [3.0])
    assert Row.__name__ == "Row"
    assert Row.__doc__ == "A row of numbers."
