"""Renders the resource from its models, the chart's copy, its schema of settings, the references.

Invariant: the same models give the same bytes; `make generate` leaves no difference behind.
Run as `python -m heddle_operator.resources.generate` in the repository; `--check` writes nothing
and ends with 1 where a committed file differs.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from heddle_operator.apis.schema import resource
from heddle_operator.state.settings import settings_schema

RULES = Path(__file__).parents[1] / "apis" / "crd_rules.yaml"
VALUES_SCHEMA = Path("charts/heddle/values.schema.json")
SETTINGS = Path("docs/reference/settings.md")
CRD = Path("manifests/crd/heddlejob.yaml")
TEMPLATE = Path("charts/heddle/templates/crd.yaml")
REFERENCE = Path("docs/reference/heddlejob.md")
_CRD_HEAD = "# Generated from heddle_operator/apis by `make generate`; do not edit.\n"
_HEAD = """{{- /* Generated from heddle_operator/apis by `make generate`; do not edit. */ -}}
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
        "Generated from the models in `heddle_operator/apis` by `make generate`.",
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
        return " or ".join(f"`{_plain(word)}`" for word in field["enum"])
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


def crd() -> str:
    """The resource as YAML."""
    found = resource(yaml.safe_load(RULES.read_text(encoding="utf-8")))
    return _CRD_HEAD + yaml.dump(found, Dumper=_Plain, sort_keys=False, width=100)


class _Plain(yaml.SafeDumper):
    """Writes an object again where it stands twice: no anchors."""

    def ignore_aliases(self, _data: object) -> bool:
        """See PyYAML."""
        return True


def settings_reference() -> str:
    """The settings as a table of keys."""
    lines = [
        "# Settings of the operator",
        "",
        "Keys of `settings` in the chart's values, and of the YAML file that `heddle operator run "
        "--settings FILE` reads.",
        "An unknown key, another type or a value out of its range ends the operator with exit code "
        "2 and a sentence.",
        "",
        "Generated from `heddle_operator/state/settings.py` by `make generate`.",
        "",
        "| key | type | default | |",
        "| --- | --- | --- | --- |",
    ]
    for key, field in settings_schema()["properties"].items():
        limits = [
            f"{sign} {field[bound]:g}"
            for bound, sign in (("exclusiveMinimum", ">"), ("minimum", ">="), ("maximum", "<="))
            if bound in field
        ]
        default = f"`{field['default']}`".replace(".0`", "`") if "default" in field else ""
        kind = ", ".join([field["type"], *limits])
        lines.append(f"| `{key}` | {kind} | {default} | {field['description']} |")
    return "\n".join(lines) + "\n"


def values_schema(before: str) -> str:
    """The schema of the chart's values with that of `settings`, which stands on a line."""
    fields = {
        key: {
            name: value for name, value in field.items() if name not in ("description", "default")
        }
        for key, field in settings_schema()["properties"].items()
    }
    line = json.dumps(settings_schema() | {"properties": fields})
    return re.sub(
        r'^    "settings": .*(?=,$)', f'    "settings": {line}', before, flags=re.MULTILINE
    )


def rendered(root: Path) -> dict[Path, str]:
    """Everything that is generated, by its path in the repository."""
    text = crd()
    before = (root / VALUES_SCHEMA).read_text(encoding="utf-8")
    return {
        CRD: text,
        TEMPLATE: chart_template(text),
        REFERENCE: reference(text),
        SETTINGS: settings_reference(),
        VALUES_SCHEMA: values_schema(before),
    }


def main(arguments: list[str], root: Path = Path()) -> int:
    """Write everything that is generated, or with --check compare it with what is committed."""
    stale = 0
    for path, content in rendered(root).items():
        file = root / path
        if "--check" not in arguments:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != content:
            sys.stderr.write(f"{path} differs from what the models give; run `make generate`\n")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
