"""What earlier versions wrote is understood: directives and reports of a run, as they were sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from worker.agent.admission import read_directive, read_halt
from worker.contract import CONTRACT, Directive, Halt, Report

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


def test_a_version_stands_in_every_message() -> None:
    for kind in (Directive, Report):
        assert kind.model_fields["contract"].default == CONTRACT
