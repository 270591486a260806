"""`heddle` imports what is called, and a user's mistake is one sentence with exit code 2."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from heddle.main import COMMANDS, OPTIONS
from heddle.main import heddle as table

PROJECT = Path(__file__).parents[3] / "pyproject.toml"
RUN = "from heddle.main import main; main()"


def heddle(*arguments, code=RUN, environment=None, folder=None):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=600,  # a kernel that was edited is compiled first
        env={**os.environ, **(environment or {})},
        cwd=folder,
    )


def test_help_lists_every_command_without_importing_one():
    code = (
        "import sys; from heddle.main import heddle\n"
        "heddle(['--help'], standalone_mode=False)\n"
        "print(sorted({'torch', 'aiohttp', 'numpy', 'planner.search.driver'} & set(sys.modules)))"
    )
    done = heddle(code=code)
    assert all(name in done.stdout for name in COMMANDS)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "line",
    [
        "train-policy --model x",
        "train-policy --model tiny-llama --resume --output-path .",
        "profile --gpu-type a/b",
        "profile --gpu-type a/b links",
        "profile --gpu-type a --model x",
    ],
)
def test_a_wrong_option_is_refused_before_slow_libraries_are_loaded(line):
    code = (
        "import sys; from heddle.main import heddle\n"
        "from planner.errors import HeddleError\n"
        "try: heddle(sys.argv[1:], standalone_mode=False)\n"
        "except HeddleError: print(sorted({'torch', 'numba'} & set(sys.modules)))"
    )
    assert heddle(*line.split(), code=code).stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("demo", "--nodes", "none.yaml"), "none.yaml cannot be read"),
        (("demo", "--script", "none.yaml"), "none.yaml cannot be read"),
        (("demo", "--steps", "0"), "--steps"),
        (("pla",), "there is no command 'pla' (did you mean 'plan'?)"),
        (("xyz",), "there is no command 'xyz'\n"),
        (("plan", "--composition", "h100=1x8", "--composition", "a=1x8"), "is given 2 times"),
    ],
    ids=["nodes", "script", "steps", "like a command", "no command", "twice"],
)
def test_a_mistake_is_a_sentence_and_exit_code_2(arguments, sentence):
    done = heddle(*arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


# A call of each verb that comes to what its extra holds; the others need nothing but the planner.
LINES = {
    "demo": "demo",
    "train": "train job.yaml",
    "train-policy": "train-policy --model tiny-llama --output-path new",
    "profile": "profile --gpu-type h100",
    "operator": "operator run",
    "status": "status",
    "logs": "logs job",
    "data": "data prepare --input job.yaml --output-path new --tokenizer job.yaml",
    "weights": "weights check folder",
    "checkpoint": "checkpoint verify folder",
    "worker": "worker reference --training job.yaml --steps 1",
}
BARE = """
import contextlib, io, json, sys
from heddle.main import OPTIONS, heddle
from planner.program import OPTIONAL, run

class Lacks:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OPTIONAL:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Lacks())
said = {}
for verb, line in json.loads(sys.argv[1]).items():
    sys.argv = ["heddle", *line.split()]
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        try:
            run(heddle, OPTIONS)
        except SystemExit as end:
            said[verb] = (end.code, stderr.getvalue())
sys.stdout.write(json.dumps(said))
"""


def held_by(extra):
    """Modules of an extra of the package, those of the extras that it names included."""
    named = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"][extra]
    for one in named:
        if within := re.fullmatch(r"heddle\[(.+)\]", one):
            yield from (module for part in within[1].split(",") for module in held_by(part))
        else:
            yield re.match(r"[\w-]+", one)[0].replace("-", "_")


@pytest.mark.slow
def test_a_verb_whose_extra_is_not_installed_names_its_extra(tmp_path):
    """Not Parquet, which `data` reads by an extra of its own."""
    (tmp_path / "job.yaml").write_text("{}")
    (tmp_path / "folder").mkdir()
    done = heddle(json.dumps(LINES), code=BARE, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for verb, (status, sentence) in json.loads(done.stdout.splitlines()[-1]).items():
        found = re.fullmatch(
            r"(?s).*Error: this command needs (\w+)[\w.]*, which is not installed; in the checkout "
            r"of Heddle run: pip install '\.\[(\w+)\]'\n",
            sentence,
        )
        assert found is not None, (verb, sentence)
        assert (status, found[2]) == (2, COMMANDS[verb].extra), verb
        assert found[1] in held_by(found[2]), verb


def test_a_verb_that_needs_no_extra_is_of_the_planner():
    bare = {verb for verb, command in COMMANDS.items() if command.extra == "plan"}
    assert bare == set(COMMANDS) - set(LINES) - {"model"}  # its code is in a process of its own
    assert set(held_by("plan")) == set()


def test_the_version_is_that_of_the_package():
    assert heddle("--version").stdout == f"heddle {version('heddle')}\n"


@pytest.mark.parametrize(
    "command", ["plan", "cost", "profile links", "status", "logs", "data prepare", "operator run"]
)
def test_help_of_a_command_is_shown_without_what_the_command_needs(command):
    done = heddle(*command.split(), "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout
    assert "\\b" not in done.stdout


def test_data_is_made_by_one_command():
    assert "prepare" not in heddle("worker", "--help").stdout
    assert heddle("worker", "data").returncode == 2
    assert "prepare" in heddle("data", "--help").stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_terminal_of_ascii_gets_ascii_and_files_are_utf_8(tmp_path):
    """Without UTF-8 mode, whatever the locale says."""
    ascii_only = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"}
    nodes, picture = tmp_path / "nodes.yaml", tmp_path / "plan.svg"
    nodes.write_text("# für alle\n- {name: node, type: demo-fast, gpus: 2}\n", encoding="utf-8")
    planned = heddle(
        "plan",
        "--nodes",
        str(nodes),
        "--recompute",
        "full",
        "--budget-evaluations",
        "50",
        "--picture",
        str(picture),
        environment=ascii_only,
    )
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.isascii()
    assert "●" in picture.read_text(encoding="utf-8")


def commands(group, path=()):
    """(words, command) of each command that is shown, those of groups within groups included."""
    context = click.Context(group, info_name="heddle")
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command.hidden:
            continue
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def test_every_option_of_every_command_is_explained():
    options = [
        ((*words, option.name), option.help or "")
        for words, command in commands(table)
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden
    ]
    assert len(options) > 100
    assert [words for words, told in options if not re.fullmatch(r"[^[].+[.\]]", told)] == []
    halves = ("Of ", "To ", "For ", "By ")
    assert [words for words, told in options if told.startswith(halves)] == []
    assert [words for words, told in options if len(told.split()) < 3] == []


def test_a_field_of_an_error_is_called_by_an_option_that_a_command_has():
    known = {word for _, command in commands(table) for one in command.params for word in one.opts}
    assert set(OPTIONS.values()) <= known


def test_a_folder_that_cannot_be_made_is_named_with_its_option(tmp_path):
    (tmp_path / "file").touch()
    line = ("profile", "--gpu-type", "a", "--output-path", str(tmp_path / "file" / "new"))
    done = heddle(*line, "--device", "cpu")
    assert done.returncode == 2
    assert done.stderr.endswith("; name another folder as --output-path\n")


def test_the_line_about_a_command_in_the_help_of_its_group_is_whole():
    for words, command in commands(table):
        if len(words) > 1:
            assert not command.get_short_help_str(limit=68).endswith("..."), words
