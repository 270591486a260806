"""What is generated is committed; the CRD knows every field that the operator reads and writes."""

from __future__ import annotations

from pathlib import Path

import yaml

from heddle_operator.apis.generate import CRD, REFERENCE, TEMPLATE, chart_template, reference
from heddle_operator.apis.heddlejob import MOST_BUDGET_S, JobSpec
from planner.model.workload import MOST_SAMPLES, MOST_TOKENS

ROOT = Path(__file__).parents[4]
TEXT = (ROOT / CRD).read_text()
SCHEMA = yaml.safe_load(TEXT)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def test_the_committed_files_are_the_generated_ones():
    assert (ROOT / TEMPLATE).read_text() == chart_template(TEXT), "run `make generate`"
    assert (ROOT / REFERENCE).read_text() == reference(TEXT), "run `make generate`"


def fields(model):
    """{alias: field type} of a pydantic model."""
    return {field.alias: field.annotation for field in model.model_fields.values()}


def same_fields(model, schema, path="spec"):
    known = fields(model)
    assert set(known) == set(schema["properties"]), path
    for alias, kind in known.items():
        nested = kind if isinstance(kind, type) and hasattr(kind, "model_fields") else None
        if nested is not None:
            same_fields(nested, schema["properties"][alias], f"{path}.{alias}")


def test_the_resource_and_what_the_operator_reads_have_the_same_fields():
    same_fields(JobSpec, SCHEMA["properties"]["spec"])


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
