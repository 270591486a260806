"""What is generated is committed; the CRD knows every field that the operator reads and writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from heddle_operator.apis.heddlejob import load_job, mistakes_of
from heddle_operator.apis.spec import MOST_BUDGET_S
from heddle_operator.resources.generate import REFERENCE, VALUES_SCHEMA, crd, main
from planner.model.workload import MOST_SAMPLES, MOST_TOKENS
from tests.builders import heddle_job

ROOT = Path(__file__).parents[4]
SCHEMA = yaml.safe_load(crd())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def test_the_committed_files_are_the_generated_ones():
    assert main(["--check"], ROOT) == 0, "run `make generate`"


def test_a_file_that_differs_is_named(tmp_path, capsys):
    values = tmp_path / VALUES_SCHEMA
    values.parent.mkdir(parents=True)
    values.write_text((ROOT / VALUES_SCHEMA).read_text())
    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    (tmp_path / REFERENCE).write_text("by hand")
    assert main(["--check"], tmp_path) == 1
    assert str(REFERENCE) in capsys.readouterr().err


def limits(schema, path=()):
    """(path, kind of limit, the limit, exclusive) of each number and list of the spec."""
    for name, field in schema.get("properties", {}).items():
        for kind in ("minimum", "maximum"):
            if kind in field:
                exclusive = field.get(f"exclusive{kind.capitalize()}", False)
                yield (*path, name), kind, field[kind], exclusive
        yield from limits(field, (*path, name))


SPEC = SCHEMA["properties"]["spec"]


@pytest.mark.parametrize("limit", tuple(limits(SPEC)), ids=lambda limit: ".".join(limit[0]))
def test_the_operator_refuses_a_number_beyond_a_limit_of_the_resource(limit):
    path, kind, bound, exclusive = limit
    body = heddle_job("limits")
    at = body["spec"]
    for name in path[:-1]:
        at = at.setdefault(name, {})
    at[path[-1]] = bound if exclusive else bound + (1 if kind == "maximum" else -1)
    assert any(f"spec.{'.'.join(path)}" in each.message for each in mistakes_of(body))


def test_a_section_that_is_not_given_gets_no_default():
    for section in ("planner", "elastic", "worker", "output"):
        assert "default" not in SPEC["properties"][section]
    assert load_job(heddle_job("plain")).spec.elastic.min_gpus == 1


def test_every_field_is_described():
    def undescribed(schema, path):
        for name, field in schema.get("properties", {}).items():
            if path and "description" not in field:
                yield f"{path}.{name}"
            yield from undescribed(field, f"{path}.{name}" if path else name)

    parts = {part: SCHEMA["properties"][part] for part in ("spec", "status")}
    assert not [path for part, schema in parts.items() for path in undescribed(schema, part)]


def test_the_resource_takes_no_more_samples_and_tokens_than_the_planner():
    training = SCHEMA["properties"]["spec"]["properties"]["training"]["properties"]
    assert training["globalBatch"]["maximum"] == MOST_SAMPLES
    assert training["sequenceLength"]["maximum"] == MOST_TOKENS


def test_the_resource_takes_no_longer_search_than_the_operator():
    planner = SCHEMA["properties"]["spec"]["properties"]["planner"]["properties"]
    assert planner["budgetSeconds"]["maximum"] == MOST_BUDGET_S


def test_no_description_is_cut_by_a_comma():
    """In a flow mapping of YAML a comma ends the description, and the rest is a key of nothing."""

    def empty(found, path):
        rows = found.items() if isinstance(found, dict) else enumerate(found)
        for key, value in rows:
            if value is None:
                yield f"{path}.{key}"
            elif isinstance(value, dict | list):
                yield from empty(value, f"{path}.{key}")

    assert not list(empty(SCHEMA, "schema"))
