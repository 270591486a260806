"""worker/columns.py: what is written by column is read back equal, and what is odd is refused."""

from __future__ import annotations

import gzip
import json

import pytest

from worker.columns import (
    by_column,
    by_row,
    compressed_directive,
    directive_by_row,
    plan_by_column,
    plan_by_row,
)

ROWS = [{"node": "a", "gpus": [0, 1], "rank": None}, {"node": "b", "gpus": [2], "rank": 1}]
PLAN = {"templates": [{"stages": []}], "placement": ROWS}
DIRECTIVE = {"job": "tiny", "plan": PLAN, "layouts": {"1": PLAN}, "members": ROWS, "store": "s:1"}


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], []], ids=["two", "one", "none"])
def test_rows_are_read_back_equal(rows):
    assert by_row(by_column(rows)) == rows


def test_rows_of_other_keys_have_no_columns():
    with pytest.raises(ValueError, match="row 1 has the keys"):
        by_column([{"a": 1}, {"b": 1}])


@pytest.mark.parametrize("columns", [{"a": [1], "b": [1, 2]}, {"a": 1}, {"a": [1], "b": None}])
def test_columns_that_are_no_table_are_refused(columns):
    with pytest.raises(ValueError, match="column"):
        by_row(columns)


def test_a_directive_is_read_back_equal_whichever_way_it_is_written():
    sent = json.loads(gzip.decompress(compressed_directive(DIRECTIVE)))
    assert sent["members"] == by_column(ROWS)
    assert directive_by_row(sent) == directive_by_row(DIRECTIVE) == DIRECTIVE


@pytest.mark.parametrize("plan", [PLAN, {"placement": 3}, None, "plan"])
def test_a_plan_by_row_or_no_plan_stays_as_it_is(plan):
    assert plan_by_row(plan) == plan


def test_a_plan_is_read_back_equal():
    assert plan_by_row(plan_by_column(PLAN)) == PLAN
