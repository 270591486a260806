"""Renders what follows from the CRD: the chart's template and the reference for people.

Invariant: the same CRD gives the same bytes; `make generate` leaves no difference behind.
Run as `python -m heddle_operator.apis.generate` in the repository.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

CRD = Path("manifests/crd/heddlejob.yaml")
TEMPLATE = Path("charts/heddle/templates/crd.yaml")
REFERENCE = Path("docs/reference/heddlejob.md")
_HEAD = """{{- /* Generated from manifests/crd by `make generate`; do not edit. */ -}}
{{- if .Values.crds.enabled }}
"""
_ANNOTATIONS = """  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
  labels: {{- include "heddle.labels" . | nindent 4 }}
"""


def chart_template(text: str) -> str:
    """The chart's template of a CRD: kept on uninstall, left out if the user says so."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    at = next(i for i, line in enumerate(lines) if line.startswith("  name: "))
    body = "\n".join(lines[: at + 1]) + "\n" + _ANNOTATIONS + "\n".join(lines[at + 1 :])
    return f"{_HEAD}{body}\n{{{{- end }}}}\n"


def reference(text: str) -> str:
    """The resource as a table of fields."""
    crd = yaml.safe_load(text)
    version = crd["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    kind, group = crd["spec"]["names"]["kind"], crd["spec"]["group"]
    lines = [
        f"# {kind}",
        "",
        f"`{group}/{version['name']}`, short name `{crd['spec']['names']['shortNames'][0]}`. "
        f"{schema['description']}",
        "",
        "Generated from [the CRD](../../manifests/crd/heddlejob.yaml) by `make generate`.",
    ]
    for part in ("spec", "status"):
        held = schema["properties"][part]
        lines += ["", f"## {part}", "", held["description"], "", "| field | type | default | |"]
        lines += ["| --- | --- | --- | --- |", *_rows(held, part)]
    lines += ["", "## Refused at apply", ""]
    lines += [f"- {message}" for message in _messages(schema)]
    return "\n".join(lines) + "\n"


def _rows(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        where = f"{path}.{name}"
        default = f"`{_plain(field['default'])}`" if "default" in field else ""
        default = "required" if name in required else default
        words = " ".join(str(field.get("description", "")).split()).replace("|", "\\|")
        yield f"| `{where}` | {_type_of(field)} | {default} | {words} |"
        yield from _rows(field, where)
        if field.get("type") == "array":
            yield from _rows(field["items"], f"{where}[]")


def _type_of(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        return " or ".join(f"`{_plain(value)}`" for value in field["enum"])
    kind = str(field["type"])
    limits = []
    if "minimum" in field:
        limits.append(f"{'>' if field.get('exclusiveMinimum') else '>='} {field['minimum']}")
    if "maximum" in field:
        limits.append(f"{'<' if field.get('exclusiveMaximum') else '<='} {field['maximum']}")
    if kind == "array":
        kind = f"list of {field['items']['type']}s"
    return ", ".join([kind, *limits])


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _messages(schema: Mapping[str, Any]) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield " ".join(rule["message"].split())
    for field in schema.get("properties", {}).values():
        yield from _messages(field)


def main(root: Path) -> None:
    """Write everything that is generated."""
    text = (root / CRD).read_text(encoding="utf-8")
    for path, content in ((TEMPLATE, chart_template(text)), (REFERENCE, reference(text))):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
