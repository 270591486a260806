"""heddle/train/screen/show.py: at whatever moment a run ends, nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from heddle.demo.run import DemoOptions, DemoRun
from heddle.demo.scenario import NODES
from heddle.local.processes import processes_with
from heddle.train.screen.keys import LEGEND
from heddle.train.screen.show import show

MARK = "HEDDLE_TEST_SHOW"


@pytest.mark.slow
@pytest.mark.parametrize("is_quiet", [False, True], ids=["lines and keys", "json"])
def test_sigterm_while_pods_start_ends_the_run_and_all_its_processes(
    tmp_path, monkeypatch, capfd, is_quiet
):
    value = str(tmp_path)
    monkeypatch.setenv(MARK, value)  # every process of the run inherits it
    _, terminal = os.openpty()
    monkeypatch.setattr("sys.stdin", os.fdopen(terminal))

    async def until_pods_start():
        run = asyncio.ensure_future(
            show(
                lambda say: DemoRun(
                    DemoOptions(nodes=NODES, script=(), steps=5, seed=1), tmp_path, say
                ),
                is_live=False,
                interactive=not is_quiet,
                is_quiet=is_quiet,
            )
        )
        while len(processes_with(**{MARK: value})) < 3:  # planner and two agents
            done, _ = await asyncio.wait({run}, timeout=0.05)
            assert not done
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(until_pods_start())
    assert processes_with(**{MARK: value}) == ()
    out, err = capfd.readouterr()
    said = err if is_quiet else out
    assert "the data set of the sources" in said
    assert is_quiet or LEGEND in said
    assert not (out if is_quiet else err).strip()
