"""`heddle` imports what is called, and a user's mistake is one sentence with exit code 2."""

from __future__ import annotations

import subprocess
import sys

import pytest

from heddle_operator.cli.main import COMMANDS

RUN = "from heddle_operator.cli.main import main; main()"


def heddle(*arguments, code=RUN):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )


def test_help_lists_every_command_without_importing_one():
    code = (
        "import sys; from heddle_operator.cli.main import heddle\n"
        "heddle(['--help'], standalone_mode=False)\n"
        "print(sorted({'torch', 'aiohttp', 'numpy', 'planner.search.driver'} & set(sys.modules)))"
    )
    done = heddle(code=code)
    assert all(name in done.stdout for name in COMMANDS)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("demo", "--nodes", "none.yaml"), "none.yaml cannot be read"),
        (("demo", "--script", "none.yaml"), "none.yaml cannot be read"),
        (("demo", "--steps", "0"), "--steps"),
        (("dream",), "No such command 'dream'"),
    ],
    ids=["nodes", "script", "steps", "command"],
)
def test_a_mistake_is_a_sentence_and_exit_code_2(arguments, sentence):
    done = heddle(*arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
