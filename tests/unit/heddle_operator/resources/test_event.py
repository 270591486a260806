"""An Event says one thing once, and bad news as a warning."""

from __future__ import annotations

import pytest

from heddle_operator.resources.event import event_body
from heddle_operator.state.actions import RecordEvent, RelatedObject
from tests.unit.heddle_operator.resources.jobs import a_job


def test_an_event_is_named_after_its_key():
    def event(key, reason="PlanKept"):
        return event_body(a_job(), RecordEvent(key, reason, "m" * 2000), "t")

    assert event("a")["metadata"]["name"] == event("a")["metadata"]["name"]
    assert event("a")["metadata"]["name"] != event("b")["metadata"]["name"]
    assert len(event("a")["note"]) == 1024


def test_a_note_is_cut_by_bytes_and_between_letters():
    note = event_body(a_job(), RecordEvent("k", "PlanKept", "a" + "”" * 1000), "t")["note"]
    assert note == "a" + "”" * 339 + " ..."  # three bytes each


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("PlanKept", "Normal"),
        ("NodeLeaving", "Normal"),
        ("StateLost", "Warning"),
        ("InvalidSpec", "Warning"),
        ("DeadlineExceeded", "Warning"),
        ("DeterministicError", "Warning"),
        ("Diverged", "Warning"),
        ("GPUFailed", "Warning"),
        ("OutputFailed", "Warning"),
        ("SlowRanks", "Warning"),
    ],
)
def test_bad_news_is_a_warning(reason, kind):
    assert event_body(a_job(), RecordEvent("k", reason, "m"), "t")["type"] == kind


def test_an_event_says_which_operator_said_it():
    event = RecordEvent("k", "PlanKept", "m")
    assert event_body(a_job(), event, "t", "pod-1_17")["reportingInstance"] == "pod-1_17"
    assert len(event_body(a_job(), event, "t", "p" * 200)["reportingInstance"]) == 128


@pytest.mark.parametrize(("kind", "namespace"), [("Node", None), ("Pod", "ns")])
def test_the_object_that_an_event_is_about_is_related(kind, namespace):
    event = RecordEvent("k", "NodeSlow", "m", RelatedObject(kind, "x"))
    related = event_body(a_job(), event, "t")["related"]
    assert (related["kind"], related["name"], related.get("namespace")) == (kind, "x", namespace)
    assert "related" not in event_body(a_job(), RecordEvent("k", "PlanKept", "m"), "t")
