"""The operator logs one line a record, as text or as JSON, and of Kopf only what went wrong."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import logging
from heddle_operator.telemetry.log_format import configure_logs
configure_logs({format!r}, {level!r})
logging.getLogger("heddle_operator.x").debug("small")
logging.getLogger("heddle_operator.x").info("job=%s moved", "tiny")
logging.getLogger("kopf.x").info("chatter")
logging.getLogger("kopf.x").warning("trouble")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("heddle_operator.x").exception("a defect")
"""


def lines(log_format, level):
    program = PROGRAM.format(format=log_format, level=level)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout == ""
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    ("level", "says"), [("info", []), ("debug", ["small", "chatter"])], ids=["info", "debug"]
)
def test_json_is_one_object_a_line_whatever_is_in_it(level, says):
    rows = [json.loads(line) for line in lines("json", level)]
    messages = [row["message"] for row in rows]
    assert [words for words in messages if words in ("small", "chatter")] == says
    assert {"job=tiny moved", "trouble", "a defect"} <= set(messages)
    assert rows[-1]["level"] == "error"
    assert rows[-1]["trace"].endswith("ZeroDivisionError: division by zero")


def test_text_is_for_people():
    rows = lines("text", "info")
    assert any("INFO heddle_operator.x job=tiny moved" in row for row in rows)
    assert not any("chatter" in row for row in rows)
