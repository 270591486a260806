"""docs/reference/errors.md has every code that a program may read."""

import re
from pathlib import Path
from typing import get_args

from planner.errors import CODES
from planner.program import CLOSED_PIPE, INTERRUPTED
from worker.checkpoint.vaults.vault import Why

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "errors.md").read_text()


def test_every_code_has_a_row_and_no_other():
    assert set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)) == set(CODES)


def test_every_failure_of_a_store_is_named():
    assert set(get_args(Why)) <= set(re.findall(r"`([a-z]+)`", TEXT))


def test_every_exit_code_has_a_row():
    rows = {int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)}
    assert {0, 1, 2, INTERRUPTED, CLOSED_PIPE} <= rows
