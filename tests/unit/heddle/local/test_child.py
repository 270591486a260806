"""heddle/local/child.py: a child's error arrives whole, and none is left behind."""

from __future__ import annotations

import asyncio

import pytest

from heddle.local.child import run_child, run_heddle
from heddle_operator.apis.errors import ProcessFailed
from tests.refusals import refused


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write the module that the child runs; its name."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(source):
        (tmp_path / "of_child.py").write_text(source)
        return "of_child"

    return write


def test_each_line_of_its_output_is_heard(module):
    heard = []
    asyncio.run(run_child(module("print(1); print(2)"), (), "it failed", hear=heard.append))
    assert heard == [b"1\n", b"2\n"]


def test_a_child_that_dies_by_itself_failed_with_its_last_words(module):
    with refused(ProcessFailed, "Failed") as error:
        asyncio.run(run_child(module("import sys; sys.exit('no memory')"), (), "it failed"))
    assert str(error.value) == "it failed: no memory"


@pytest.mark.parametrize(
    ("line", "code"), [("cost /proc/nowhere.json", "Unreadable"), ("plan --x", "Malformed")]
)
def test_a_command_of_heddle_tells_the_code_of_its_error(line, code):
    with refused(ProcessFailed, code):
        asyncio.run(run_heddle(line.split(), "it failed"))


def test_a_child_whose_run_ends_is_ended(module):
    source = "import time; print(1, flush=True); time.sleep(60)"

    async def cut_short():
        begun = asyncio.Event()
        child = asyncio.ensure_future(
            run_child(module(source), (), "it failed", hear=lambda _: begun.set())
        )
        await begun.wait()
        child.cancel()
        with pytest.raises(asyncio.CancelledError):
            await child

    asyncio.run(asyncio.wait_for(cut_short(), 30))
