"""The reference names the words that the code says to users, all of them and no others."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import get_args

import pytest
import yaml

from heddle_operator.report.conditions import ConditionReason, ConditionType
from heddle_operator.state.actions import EventReason
from heddle_operator.state.decision import Phase
from heddle_operator.state.reasons import MoveKind
from heddle_operator.telemetry.metrics import OperatorMetrics
from worker.agent.agent import Agent, AgentSettings
from worker.agent.http import _metrics

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reference" / "conditions.md").read_text()
GUIDES = "".join(
    (ROOT / "docs" / name).read_text() for name in ("kubernetes.md", "operate.md", "nodes.md")
)


def section(title):
    """The text under a heading of the second level."""
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def cells(title, column):
    """The words in backticks of a column of a section's tables."""
    rows = [line.split("|") for line in section(title).splitlines() if line.startswith("| ")]
    return {word for row in rows for word in re.findall(r"`([\w./-]+)`", row[column])}


def words(literal):
    """The words of a Literal, or of a union of them."""
    found = get_args(literal)
    return {w for part in found for w in ({part} if isinstance(part, str) else get_args(part))}


def test_every_event_reason_is_explained_and_no_other():
    assert cells("Events", 1) == words(EventReason)


def test_every_condition_and_its_reasons_are_explained():
    assert cells("Conditions", 1) == words(ConditionType)
    explained = cells("Conditions", 2) | cells("Conditions", 3)
    assert words(ConditionReason) - explained == set()
    assert cells("Conditions", 2) - words(ConditionReason) == set()


def test_every_phase_and_every_cause_of_a_move_is_explained_and_no_other():
    assert cells("Phases", 1) == words(Phase) | {"Invalid", "Terminating"}
    assert cells("Causes of a forced move", 1) == words(MoveKind)


def test_the_resource_names_every_condition():
    crd = yaml.safe_load((ROOT / "manifests" / "crd" / "heddlejob.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    told = schema["properties"]["status"]["properties"]["conditions"]["description"]
    assert set(re.findall(r"[A-Z]\w+", told)) - {"Conditions"} == words(ConditionType)


@pytest.mark.parametrize("title", ["Conditions", "Events"])
def test_every_row_says_what_it_means(title):
    rows = [
        line.split("|") for line in section(title).splitlines() if line.startswith(("| `", "| |"))
    ]
    assert len({len(row) for row in rows}) == 1
    assert not [row for row in rows if len(row[3 if title == "Conditions" else 2].strip()) < 5]


def test_every_series_is_explained():
    metrics = OperatorMetrics()
    series = {name.removesuffix("_total") for name in cells("Metrics", 1)}
    told = (*metrics.registry.collect(), *metrics.jobs.collect())
    assert series == {family.name for family in told}

    async def of_an_agent():
        return _metrics(
            Agent(
                AgentSettings(
                    job="tiny", pod="p", node="n", gpus=1, host="127.0.0.1", token="secret"
                )
            )
        )

    shown = set(re.findall(rb"# TYPE (\w+)", asyncio.run(of_an_agent())))
    named = set(re.findall(r"`(heddle_worker_\w+)`", section("Metrics")))
    assert shown
    assert {name.decode() for name in shown} <= named


def test_every_field_and_value_that_is_named_exists():
    crd = (ROOT / "manifests" / "crd" / "heddlejob.yaml").read_text()
    for field in (
        "leaveOnCordon",
        "yieldToAutoscaler",
        "minGPUs",
        "minHolders",
        "minGainPercent",
        "peerTimeoutSeconds",
        "planRef",
    ):
        assert f"`{field}" in GUIDES or f".{field}`" in GUIDES
        assert f"{field}:" in crd
    values = yaml.safe_load((ROOT / "charts" / "heddle" / "values.yaml").read_text())
    assert {"watchNamespaces", "crds", "image", "metrics"} <= set(values)


def test_links_lead_to_files_that_exist():
    for target in re.findall(r"\]\(([^)#]+)", GUIDES):
        assert (ROOT / "docs" / target).exists(), target
