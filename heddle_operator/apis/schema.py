"""The schema of the resource HeddleJob, as Kubernetes wants it, from the pydantic models.

Invariant: the API server takes whatever the models take, but for what only a rule can say.
Source: Kubernetes, structural schemas (OpenAPI v3 without `$ref` and `anyOf`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from heddle_operator.apis.heddlejob import API_VERSION, HeddleJob
from heddle_operator.apis.spec import JobSpec
from heddle_operator.apis.status import JobStatus

Schema = dict[str, Any]
# In the order of the resource; whatever is not here means nothing to the API server.
_KEPT = (
    *("type", "format", "description", "nullable", "enum", "default", "minLength", "maxLength"),
    *("minItems", "maxItems", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"),
    *(
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-preserve-unknown-fields",
    ),
)


def resource(rules: Mapping[str, Any]) -> Schema:
    """The CustomResourceDefinition.

    Args:
        rules: `columns` of `kubectl get`, and `rules` in CEL by the path of their field.

    Raises:
        KeyError: a rule is of a field that there is not.
    """
    group, version = API_VERSION.split("/")
    schema: Schema = {
        "type": "object",
        "description": _first_paragraph(HeddleJob.__doc__ or ""),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(JobSpec),
            "status": structural(JobStatus),
        },
    }
    for path, row in rules["rules"].items():
        _field(schema, path)["x-kubernetes-validations"] = row
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"heddlejobs.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": "HeddleJob",
                "listKind": "HeddleJobList",
                "plural": "heddlejobs",
                "singular": "heddlejob",
                "shortNames": ["hj"],
            },
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": rules["columns"],
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def structural(model: type[BaseModel]) -> Schema:
    """A model as a structural schema."""
    found = model.model_json_schema(by_alias=True)
    return _structural(found, found.get("$defs", {}))


def _structural(schema: Mapping[str, Any], models: Mapping[str, Any]) -> Schema:
    whole = _merged(schema, models)
    found = {key: whole[key] for key in _KEPT if key in whole}
    if "description" in found:
        found["description"] = _first_paragraph(found["description"])
    if "const" in whole:
        found["enum"] = [whole["const"]]
    if found.get("default") is None or isinstance(found["default"], dict):
        found.pop("default", None)  # a section that is not given stays away
    for limit, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if limit in found:
            found |= {bound: found[limit], limit: True}
    if found.get("type") == "array":
        items = whole.get("items") or _only(whole["prefixItems"])
        found["items"] = _structural(items, models)
    if found.get("type") == "object":
        found |= _members(whole, models)
    return found


def _members(whole: Mapping[str, Any], models: Mapping[str, Any]) -> Schema:
    """Content of an object: fields with names, values of one kind, or anything."""
    if "properties" in whole:
        fields = {name: _structural(field, models) for name, field in whole["properties"].items()}
        required = {"required": whole["required"]} if whole.get("required") else {}
        return required | {"properties": fields}
    values = whole.get("additionalProperties")
    if isinstance(values, Mapping):
        return {"additionalProperties": _structural(values, models)}
    return {"x-kubernetes-preserve-unknown-fields": True}


def _merged(schema: Mapping[str, Any], models: Mapping[str, Any]) -> Schema:
    """A schema with what it refers to; a field's own words hold over those of its kind."""
    own = {key: value for key, value in schema.items() if key not in ("anyOf", "$ref")}
    if "anyOf" in schema:
        real = [kind for kind in schema["anyOf"] if kind.get("type") != "null"]
        return _merged(_only(real), models) | own
    if "$ref" in schema:
        return _merged(models[schema["$ref"].rpartition("/")[2]], models) | own
    return own


def _only(kinds: Sequence[Any]) -> Any:
    """Kind of all of them; a structural schema has one kind at a place."""
    assert all(kind == kinds[0] for kind in kinds), kinds
    return kinds[0]


def _field(schema: Schema, path: str) -> Schema:
    """The field at a path such as `spec.training`; `.` is the whole."""
    for name in path.split(".") if path != "." else ():
        schema = schema["properties"][name]
    return schema


def _first_paragraph(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())
