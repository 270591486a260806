"""heddle/train/data_set.py: what hinders the making of the pairs arrives with code and field."""

from __future__ import annotations

import asyncio

import pytest

from heddle.train.data_set import make_data
from heddle_operator.apis.errors import ProcessFailed
from heddle_operator.apis.heddlejob import load_job
from tests.builders import heddle_job
from tests.refusals import refused


@pytest.mark.slow
def test_texts_that_cannot_be_read_are_refused_as_the_command_refuses_them(tmp_path):
    job = load_job(heddle_job("tiny", data={"builtin": "text"}))
    with refused(ProcessFailed, "Missing") as error:
        asyncio.run(make_data(job, str(tmp_path), ("--input", "nowhere.txt")))
    assert str(error.value).startswith("the data set cannot be made: input 'nowhere.txt'")
    assert list(tmp_path.iterdir()) == []
