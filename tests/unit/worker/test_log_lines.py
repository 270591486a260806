"""worker/log_lines.py: each line says whose it is, and is one object where JSON is wanted."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys

from worker.log_lines import MOST_LINES, PERIOD_S, JsonLines, RateLimitFilter, about, begin_about

PROGRAM = """
import logging, subprocess, sys
from worker.log_lines import configure, note
configure({format!r})
note(job="tiny", pod="tiny-a-0")
logging.getLogger("worker.x").info("begins")
note(epoch=2, rank=5)
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("worker.x").exception("a defect")
child = "import logging; from worker.log_lines import configure; configure(); logging.info('child')"
subprocess.run([sys.executable, "-c", child])
"""


def lines(log_format):
    program = PROGRAM.format(format=log_format)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def test_json_is_one_object_a_line_also_of_a_child():
    first, second, child = map(json.loads, lines("json"))
    assert (first["job"], first["pod"], first["message"]) == ("tiny", "tiny-a-0", "begins")
    assert (second["epoch"], second["rank"]) == (2, 5)
    assert second["trace"].startswith("Traceback (most recent call last):")
    assert child["message"] == "child"


def test_text_says_the_same_before_the_message():
    rows = lines(None)
    assert "INFO worker.x job=tiny pod=tiny-a-0 begins" in rows[0]
    assert "job=tiny pod=tiny-a-0 epoch=2 rank=5 a defect" in rows[1]
    assert rows[2] == "Traceback (most recent call last):"


def test_lines_of_tasks_say_whose_they_are_by_now_and_those_of_others_do_not():
    def said(text):
        return json.loads(JsonLines().format(logging.LogRecord("x", 20, "", 1, text, (), None)))

    async def child(goes_on, found):
        await goes_on.wait()
        found.append(said("child"))

    async def job(name, found):
        begin_about(namespace="ns", job=name)
        goes_on = asyncio.Event()
        task = asyncio.create_task(child(goes_on, found))
        about(epoch=len(name), phase="Running")
        goes_on.set()
        await task

    async def both():
        found = []
        await asyncio.gather(job("a", found), job("bb", found))
        about(phase="Lost")  # no task began here, so nothing is said
        return *found, said("nobody")

    first, second, nobody = asyncio.run(both())
    assert [first[key] for key in ("namespace", "job", "epoch", "phase")] == [
        "ns",
        "a",
        1,
        "Running",
    ]
    assert (second["job"], second["epoch"]) == ("bb", 2)
    assert nobody.get("phase") is None
    assert nobody.get("namespace") is None


def test_strangers_make_the_libraries_say_only_a_few_lines_a_minute():
    now = 0.0
    few = RateLimitFilter(lambda: now)

    def said(name):
        record = logging.LogRecord(name, logging.ERROR, "", 1, "bad request of %s", ("x",), None)
        return record.getMessage() if few.filter(record) else None

    assert [said("aiohttp.server") for _ in range(100)][MOST_LINES - 1 :] == [
        "bad request of x",
        *[None] * (100 - MOST_LINES),
    ]
    assert said("worker.agent") == "bad request of x", "what is ours is always said"
    now = PERIOD_S + 1
    assert said("asyncio") == f"bad request of x ({100 - MOST_LINES} such lines were left out)"
    assert said("aiohttp.web") == "bad request of x"


def test_what_torch_tells_of_its_cache_at_exit_is_no_line():
    program = (
        "from worker.log_lines import configure\n"
        "configure()\n"
        "import torch._subclasses.fake_tensor as fake\n"
        "fake.dump_cache_stats()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
