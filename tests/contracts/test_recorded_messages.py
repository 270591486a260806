"""What earlier versions wrote is understood: directives and reports of a run, as they were sent."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from heddle.main import heddle
from heddle_operator.resources.pods import WorkerDefaults, pod_body
from heddle_operator.state.actions import CreatePod
from tests.fakes.operator import a_job
from worker.agent.admission import read_directive, read_halt
from worker.contract import Directive, Halt, Report
from worker.contract_version import CONTRACT, VARIABLE

FOLDER = Path(__file__).parents[1] / "data" / "contract"
RECORDED = sorted(FOLDER.glob("*/*.json"))


def named(kind: str) -> list[Path]:
    """The recorded messages of a kind, of all versions."""
    return [path for path in RECORDED if path.name.startswith(kind)]


def test_every_version_is_recorded() -> None:
    versions = {path.parent.name for path in RECORDED}
    assert versions == {f"v{number}" for number in range(CONTRACT)}


@pytest.mark.parametrize("path", named("directive"), ids=lambda path: path.stem)
@pytest.mark.parametrize("added", [{}, {"later": {"x": 1}, "contract": CONTRACT + 1}])
def test_an_agent_admits_every_directive(path: Path, added: dict[str, object]) -> None:
    assert isinstance(read_directive(json.loads(path.read_bytes()) | added), Directive)


@pytest.mark.parametrize("section", ["schedule", "loss_scale"])
def test_an_agent_admits_a_field_that_a_newer_operator_adds_to_a_section(section: str) -> None:
    told = json.loads(named("directive")[-1].read_bytes())
    told["training"] |= {"precision": "fp16", section: {"later": 1}}
    told["plan"]["precision"] = "fp16"
    assert isinstance(Directive.read(told), Directive)


@pytest.mark.parametrize("path", named("halt"), ids=lambda path: path.stem)
def test_an_agent_admits_every_halt(path: Path) -> None:
    assert isinstance(read_halt(json.loads(path.read_bytes()) | {"later": 1}), Halt)


@pytest.mark.parametrize("path", named("report"), ids=lambda path: path.stem)
def test_the_operator_reads_every_report_and_what_is_added_to_it(path: Path) -> None:
    data = json.loads(path.read_bytes())
    report = Report.model_validate(data)
    assert report.contract == CONTRACT
    for rank in data["ranks"]:
        rank["later"] = 1
    newer = data | {"later": [], "contract": CONTRACT + 1}
    assert Report.model_validate(newer).ranks == report.ranks


def parsed(arguments: list[str]) -> click.Context:
    """What the program makes of the arguments of a container."""
    context, command = click.Context(heddle), heddle
    while isinstance(command, click.Group):
        name, *arguments = arguments
        found = command.get_command(context, name)
        assert found is not None
        command = found
    return command.make_context(name, arguments)


@pytest.fixture
def token(tmp_path: Path) -> str:
    """A file, which the agent's command looks for."""
    path = tmp_path / "token"
    path.write_text("secret")
    return str(path)


def recorded(kind: str, token: str) -> list[list[str]]:
    """The arguments of a container, of all versions."""
    found = [json.loads(path.read_bytes()) for path in named(f"arguments-{kind}")]
    return [[token if each.endswith("/token") else each for each in row] for row in found]


@pytest.mark.parametrize("kind", ["agent", "data"])
def test_the_arguments_of_every_version_are_understood(kind: str, token: str) -> None:
    for arguments in recorded(kind, token):
        assert parsed(arguments).args == []


@pytest.mark.parametrize(("version", "is_left_out"), [(CONTRACT + 1, True), (CONTRACT, False)])
def test_only_of_a_newer_operator_unknown_options_are_left_out(
    version: int, is_left_out: bool, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(version))
    later = [*recorded("agent", token)[-1], "--later", "1"]
    if is_left_out:
        assert parsed(later).params == parsed(later[:-2]).params
        assert parsed(later).args == ["--later", "1"]
    else:
        with pytest.raises(click.NoSuchOption):
            parsed(later)


def test_pods_get_no_option_that_an_earlier_worker_does_not_know() -> None:
    pod = pod_body(
        a_job(),
        CreatePod("tiny-a-0", "a", 0, 2),
        WorkerDefaults(image="heddle:1", template={}),
        0.0,
    )
    for kind, container in (("agent", "containers"), ("data", "initContainers")):
        (row,) = pod["spec"][container]
        options = {each for each in row["args"] if each.startswith("--")}
        for arguments in recorded(kind, ""):
            assert options <= set(arguments)
    assert {"name": VARIABLE, "value": str(CONTRACT)} in pod["spec"]["containers"][0]["env"]


def test_a_version_stands_in_every_message() -> None:
    for kind in (Directive, Report):
        assert kind.model_fields["contract"].default == CONTRACT
