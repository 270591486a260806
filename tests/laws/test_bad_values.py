"""Every field and option with limits refuses what is beyond them, in one short sentence.

The fields are those of the resource's schema and of the operator's settings, the options those of
every command: a new one is checked without a new test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from heddle.main import heddle
from heddle_operator.apis.errors import InvalidJob, InvalidSettings
from heddle_operator.apis.heddlejob import load_job
from heddle_operator.state.settings import settings_of, settings_schema
from tests.builders import heddle_job
from tests.refusals import WORDS

CRD = Path(__file__).parents[2] / "manifests" / "crd" / "heddlejob.yaml"
NEEDED = {"checkpoint": {"path": "/saves"}}  # fields without which a section is not read
NONSENSE = "nonsense"


def spec_schema() -> Mapping[str, Any]:
    versions = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    return versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def leaves(schema: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[Any]:
    """(path, schema) of each field that holds no other."""
    for name, field in schema.get("properties", {}).items():
        if "properties" in field:
            yield from leaves(field, (*path, name))
        else:
            yield (*path, name), field


def bad_values(field: Mapping[str, Any]) -> Iterator[tuple[object, str]]:
    """(value, what the sentence must allow) of a field."""
    kind = field.get("type")
    if "enum" in field:
        yield NONSENSE, str(field["enum"][0])
    elif kind == "boolean":
        yield 3, "true or false"
    elif kind == "string":
        yield 7, "text"
    elif kind in ("integer", "number"):
        yield NONSENSE, "number"
        lowest, highest = field.get("minimum"), field.get("maximum")
        if lowest is not None:
            yield lowest - 1, stated(lowest)
        if highest is not None:
            yield highest + 1, stated(highest)


def stated(limit: float) -> str:
    """A limit as sentences write it."""
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:,.15g}"


SPEC = [
    pytest.param(path, value, allowed, id=f"{'.'.join(path)}={value}")
    for path, field in leaves(spec_schema())
    for value, allowed in bad_values(field)
    if path != ("suspend",)  # its sentence says what to do
]


INTEGERS = {
    ".".join(path): field for path, field in leaves(spec_schema()) if field.get("type") == "integer"
}


def test_every_whole_number_of_a_job_has_both_bounds():
    assert {"steps", "training.seed", "elastic.maxGPUs", "checkpoint.keep.last"} <= set(INTEGERS)
    assert [
        path for path, field in INTEGERS.items() if not {"minimum", "maximum"} <= set(field)
    ] == []


@pytest.mark.parametrize("path", INTEGERS)
def test_a_whole_number_of_thirty_digits_is_refused_with_its_field(path):
    body = heddle_job("tiny")
    at = body["spec"]
    *sections, name = path.split(".")
    for key in sections:
        at = at.setdefault(key, dict(NEEDED.get(key, {})))
    at[name] = 10**30
    with pytest.raises(InvalidJob) as refused:
        load_job(body)
    assert (refused.value.code, refused.value.field) == ("OutOfRange", f"spec.{path}")


@pytest.mark.parametrize("name", ["train", "demo"])
def test_every_whole_number_of_a_command_that_trains_has_both_bounds(name):
    kinds = {one.name: one.type for one in heddle.get_command(None, name).params}
    numbers = {key: kind for key, kind in kinds.items() if kind.name.startswith("integer")}
    assert "seed" in numbers
    for kind in numbers.values():
        assert None not in (kind.min, kind.max)


def one_sentence(text: str) -> None:
    """Check what each answer to bad input must be."""
    assert "\n" not in text.strip()
    assert "Traceback" not in text
    assert len(text.split()) <= WORDS, text


@pytest.mark.parametrize(("path", "value", "allowed"), SPEC)
def test_a_field_of_a_job(path, value, allowed):
    body = heddle_job("tiny")
    at = body["spec"]
    for key in path[:-1]:
        at = at.setdefault(key, dict(NEEDED.get(key, {})))
    at[path[-1]] = value
    with pytest.raises(InvalidJob) as refused:
        load_job(body)
    said = str(refused.value)
    one_sentence(said)
    assert ".".join(("spec", *path)) in said
    is_whole = isinstance(value, float) and value.is_integer()  # JSON writes 61.0 as 61
    assert str(int(value) if is_whole else value) in said.replace(",", "")
    assert allowed in said, said


SETTINGS = [
    pytest.param(key, value, allowed, id=f"{key}={value}")
    for key, field in settings_schema()["properties"].items()
    for value, allowed in bad_values(field)
]


@pytest.mark.parametrize(("key", "value", "allowed"), SETTINGS)
def test_a_setting_of_the_operator(key, value, allowed):
    with pytest.raises(InvalidSettings) as refused:
        settings_of({key: value}, "settings.yaml")
    said = str(refused.value)
    one_sentence(said)
    assert key in said
    assert str(value) in said
    assert allowed in said, said


def sections(schema: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[Any]:
    """(path, names of its fields, those that must be there) of each section."""
    fields = schema.get("properties", {})
    if fields:
        yield path, tuple(fields), schema.get("required", ())
    for name, field in fields.items():
        yield from sections(field, (*path, name))


@pytest.mark.parametrize(
    ("path", "name", "required"),
    [(path, names[-1], required) for path, names, required in sections(spec_schema())],
)
def test_a_field_that_is_misspelt(path, name, required):
    body = heddle_job("tiny")
    at = body["spec"]
    for key in path:
        at = at.setdefault(key, dict(NEEDED.get(key, {})))
    for key in required:
        at.setdefault(key, "x")
    at[f"{name}s"] = 1
    with pytest.raises(InvalidJob) as refused:
        load_job(body)
    said = str(refused.value)
    one_sentence(said)
    assert f"{name}s" in said
    assert f"did you mean {name!r}?" in said


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[Any]:
    """(path, command) of each that runs something."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def bad_options() -> Iterator[Any]:
    """(arguments, option, value, what the sentence must allow)."""
    for path, command in commands(heddle):
        for option in command.params:
            if not isinstance(option, click.Option):
                continue
            kind, name = option.type, option.opts[0]
            if isinstance(kind, click.Choice):
                yield path, name, NONSENSE, str(kind.choices[0])
            elif isinstance(kind, click.IntRange | click.FloatRange):
                yield path, name, NONSENSE, "not a valid"
                if kind.min is not None:
                    yield path, name, str(kind.min - 1), str(kind.min)
                if kind.max is not None:
                    yield path, name, str(kind.max + 1), str(kind.max)
            elif isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
                yield path, name, NONSENSE, "not a valid"


@pytest.mark.parametrize(("path", "option", "value", "allowed"), list(bad_options()))
def test_an_option_of_a_command(path, option, value, allowed):
    done = CliRunner().invoke(heddle, [*path, f"{option}={value}"])
    assert done.exit_code == 2
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    one_sentence(said)
    assert option in said
    assert value in said
    assert allowed in said


def test_there_are_bad_options_of_every_kind():
    """An empty walk would pass."""
    assert len({path for path, *_ in bad_options()}) >= 10
    assert len(SPEC) > 70
