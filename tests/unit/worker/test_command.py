"""worker/command.py: a mistake is one sentence, and torch waits until it is needed."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner

from planner.errors import HeddleError
from worker.command import main, worker

SPEC = {
    "model": "tiny-llama",
    "data": "/nowhere/text",
    "global_batch": 4,
    "sequence_length": 8,
    "steps": 1,
}
AGENT = ("agent", "--job", "tiny", "--pod", "tiny-a-0", "--node", "a", "--gpus", "1")


def refused(*arguments):
    """The one sentence of an error of ours."""
    error = CliRunner().invoke(worker, [str(argument) for argument in arguments]).exception
    assert isinstance(error, HeddleError), repr(error)
    assert "\n" not in str(error)
    return str(error)


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "file"
        path.write_bytes(content)
        return path

    return write


@pytest.fixture
def taken():
    """A port that no agent can have, so that none starts in these tests."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found.getsockname()[1]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty; write the job's token into it"),
        (b" \n", "is empty"),
        (b"\xff\xfe", "cannot be read"),
    ],
    ids=["empty", "blank", "no text"],
)
def test_a_token_that_would_protect_nothing_is_refused(file, taken, content, sentence):
    assert sentence in refused(*AGENT, "--token-file", file(content), "--port", taken)


def test_an_address_that_is_taken_is_refused(file, taken):
    sentence = refused(*AGENT, "--token-file", file(b"secret"), "--port", taken)
    assert sentence.startswith(f"the agent cannot listen on 127.0.0.1:{taken}: ")


@pytest.mark.parametrize("option", ["--peer-timeout-s", "--grace-s"])
def test_a_time_is_a_number_of_seconds(file, taken, option):
    given = (*AGENT, "--token-file", file(b"secret"), "--port", taken)
    assert refused(*given, option, "nan") == f"{option} is not a number; give a number of seconds"
    arguments = [str(argument) for argument in (*given, option, "-1")]
    assert CliRunner().invoke(worker, arguments).exit_code == 2


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"no json", "does not hold a TrainingSpec: the file: Invalid JSON"),
        (b"\xff", "does not hold a TrainingSpec"),
        (b"{}", "does not hold a TrainingSpec: global_batch: Field required"),
        (json.dumps({**SPEC, "steps": 0}).encode(), "does not hold a TrainingSpec: steps: "),
        (json.dumps({**SPEC, "model": "gpt-9"}).encode(), "model 'gpt-9' is unknown"),
    ],
    ids=["no json", "no text", "empty", "no steps", "unknown model"],
)
def test_a_training_that_cannot_be_is_refused(file, content, sentence):
    assert sentence in refused("reference", "--training", file(content), "--steps", 1)


def test_the_command_ends_with_code_2_and_says_error(monkeypatch, capsys, file, taken):
    arguments = [*AGENT, "--token-file", str(file(b"")), "--port", str(taken)]
    monkeypatch.setattr(sys, "argv", ["worker", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("Error: token file ")


@pytest.mark.slow
def test_help_imports_neither_torch_nor_aiohttp():
    code = (
        "import sys; from worker.command import worker\n"
        "worker(['agent', '--help'], standalone_mode=False)\n"
        "print(sorted({'torch', 'aiohttp', 'numpy', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize(
    ("variable", "value"), [("HEDDLE_WIRE", "mpi"), ("GLOO_SOCKET_IFNAME", "nowhere0")]
)
def test_a_wire_or_network_that_is_not_there_is_refused_before_anything_starts(
    file, taken, monkeypatch, variable, value
):
    monkeypatch.setenv(variable, value)
    arguments = [*map(str, (*AGENT, "--token-file", file(b"secret"), "--port", taken))]
    error = CliRunner().invoke(worker, arguments).exception
    assert (error.code, error.field) == ("Unknown", variable)
