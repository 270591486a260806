"""docs/reference/labels.md has every key that the operator reads or writes on an object."""

import re
from pathlib import Path

import pytest

from heddle_operator.apis import labels
from heddle_operator.inventory.disruptions import DRAINING, notices_of
from heddle_operator.inventory.nodes import LINK_DOMAINS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reference" / "labels.md").read_text()
KINDS = ("taint", "label", "condition", "annotation")


def rows(title):
    """The cells of the table under a heading of the second level."""
    lines = TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "| `" in line]


SIGNS = [
    (key, kind, time)
    for sign, kind, time in rows("Notices on nodes")
    for key in re.findall("`([^`]+)`", sign)[: 1 if ":" in sign else None]
]


@pytest.mark.parametrize(("key", "kind", "time"), SIGNS)
def test_a_sign_that_is_listed_is_a_notice_of_that_time(key, kind, time):
    name, _, value = key.partition("=")
    metadata, spec, conditions = {}, {}, [{"type": "Ready", "status": "True"}]
    match kind:
        case "taint":
            spec = {"taints": [{"key": name, "effect": "NoSchedule"}]}
        case "condition":
            conditions.append({"type": name, "status": value})
        case "label":
            metadata = {"labels": {name: value or "drain-required"}}
        case "annotation":
            metadata = {"annotations": {name: "true"}}
    node = {"metadata": metadata, "spec": spec, "status": {"conditions": conditions}}
    (notice,) = notices_of(node, leave_on_cordon=False)
    seconds = re.match(r"(\d+) s$", time)
    assert notice.lead_s == (float(seconds[1]) if seconds else float("inf"))


def test_every_sign_of_the_code_is_listed():
    source = (ROOT / "heddle_operator" / "inventory" / "disruptions.py").read_text()
    tables = source.partition("_TAINTS = {")[2].partition("@dataclass")[0]
    known = set(re.findall(r'^    "([^"]+)": ', tables, re.MULTILINE))
    listed = {key.partition("=")[0] for key, _, _ in SIGNS}
    assert len(known) > 12
    assert known | {DRAINING} == listed


def test_every_key_of_ours_and_every_link_domain_is_listed():
    keys = {value for name, value in vars(labels).items() if name.endswith(("LABEL", "ANNOTATION"))}
    assert len(keys) >= 6
    assert not [key for key in (*sorted(keys), *LINK_DOMAINS) if f"`{key}`" not in TEXT]
