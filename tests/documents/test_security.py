"""docs/security.md says what the chart's roles and the rules for templates say."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from heddle_operator.resources.template_rules import GRANTABLE

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text()
CHART = ROOT / "charts" / "heddle" / "templates"


def rows(title):
    """The cells of the table under a heading, without its head."""
    under = re.split(rf"\n##+ {re.escape(title)}\n", TEXT)[1]
    table = under[under.index("| --- ") :].split("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_everything_that_can_be_allowed_is_explained():
    named = [name for row in rows("What `worker.allow` opens") for name in words(row[0])]
    assert sorted(named) == sorted(GRANTABLE)


def words(cell):
    return re.findall(r"`([\w/]+)`", cell)


def test_the_operators_rights_are_those_of_the_chart():
    given = {}
    for file in ("_helpers.tpl", "rbac.yaml"):
        text = re.sub(r"\{\{.*?\}\}", "", (CHART / file).read_text(), flags=re.DOTALL)
        text = text.split("kind: ClusterRole\nmetadata:\n  name: -view")[0]
        for match in re.finditer(r"resources: (\[.*\])\n(?:.*Names.*\n)?\s+verbs: (\[.*\])", text):
            for resource in yaml.safe_load(match[1]):
                given.setdefault(resource, set()).update(yaml.safe_load(match[2]))
    told = {
        {"status": "heddlejobs/status"}.get(resource, resource): set(verbs.split())
        for names, verbs, _ in rows("What the operator may do")
        for resource in words(names)
    }
    assert told == given
    assert "delete" not in given["secrets"]


def test_links_lead_to_files_that_exist():
    for target in re.findall(r"\]\(([^)#]+)", TEXT):
        assert (ROOT / "docs" / target).exists(), target
