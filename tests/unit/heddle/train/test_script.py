"""Scripts and nodes files are read whole, or refused in one sentence."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from heddle.demo.scenario import NODES, SCRIPT
from heddle.train.script import check_nodes, check_script, check_steps, load_nodes, load_script
from heddle_operator.apis.errors import InvalidScript
from planner.cluster.composition import Composition
from planner.errors import InvalidComposition
from tests.builders import demo_profile
from tests.refusals import refused

EXAMPLES = Path(__file__).parents[4] / "manifests" / "examples" / "demo"


def script(tmp_path, text):
    path = tmp_path / "script.yaml"
    path.write_text(text)
    return load_script(path, NODES)


def test_the_demos_own_script_holds_together():
    check_script(SCRIPT, NODES, "of the demo")
    check_nodes(NODES, SCRIPT, demo_profile())


def test_events_are_sorted_by_step(tmp_path):
    events = script(
        tmp_path,
        "- {at_step: 9, kill: new}\n- {at_step: 3, join: {name: new, type: demo-fast, gpus: 2}}\n",
    )
    assert [(event.at_step, str(event)) for event in events] == [(3, "join new"), (9, "kill new")]


def test_a_drain_waits_unless_the_script_says_for_how_long(tmp_path):
    waits, ends = script(
        tmp_path,
        "- {at_step: 3, drain: fast-1}\n- {at_step: 9, drain: fast-2, notice_s: 30}\n",
    )
    assert (waits.notice_s, ends.notice_s) == (math.inf, 30.0)


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("at_step: 3", ("Malformed", None)),
        ("- 3", ("Malformed", None)),
        ("- {at_step: 3}", ("Malformed", None)),
        ("- {at_step: 3, drain: fast-1, kill: fast-1}", ("Malformed", None)),
        ("- {at_step: 3, kil: fast-1}", ("Malformed", None)),
        ("- {at_step: 3, reboot: fast-1}", ("Malformed", None)),
        ("- {at_step: soon, drain: fast-1}", ("Malformed", "at_step")),
        ("- {at_step: -1, drain: fast-1}", ("OutOfRange", "at_step")),
        ("- {drain: fast-1}", ("Malformed", "at_step")),
        ("- {at_step: 10000000000, drain: fast-1}", ("OutOfRange", "at_step")),
        ("- {at_step: 3, drain: fast-1, notice_s: soon}", ("Malformed", "notice_s")),
        (f"- {{at_step: 3, drain: fast-1, notice_s: {'9' * 400}}}", ("Malformed", "notice_s")),
        ("- {at_step: 3, kill: fast-1, notice_s: 3}", ("Contradiction", "notice_s")),
        ("- {at_step: 3, drain: 7}", ("Malformed", "drain")),
        ("- {at_step: 3, drain: nobody}", ("Contradiction", None)),
        ("- {at_step: 3, join: {name: fast-1, type: demo-fast, gpus: 1}}", ("Contradiction", None)),
        ("- {at_step: 3, join: {name: new, type: demo-fast, gpus: 0}}", ("OutOfRange", "gpus")),
        ("- {at_step: 3, join: {name: new, kind: demo-fast}}", ("Unknown", "kind")),
        ("- {at_step: 3", ("Unreadable", None)),
    ],
)
def test_a_mistake_in_a_script_is_one_sentence(tmp_path, text, mistake):
    with refused(InvalidScript, *mistake):
        script(tmp_path, text)


def test_notice_s_is_said_to_go_with_drain(tmp_path):
    with pytest.raises(InvalidScript, match="has notice_s with kill; notice_s goes with drain"):
        script(tmp_path, "- {at_step: 3, kill: fast-1, notice_s: 3}")


def test_an_event_after_the_last_step_of_the_job_is_refused(tmp_path):
    events = script(tmp_path, "- {at_step: 20, drain: fast-1}\n- {at_step: 500, drain: fast-2}")
    check_steps(events[:1], 20, "s.yaml")
    with refused(InvalidScript, "OutOfRange", "at_step"):
        check_steps(events, 20, "s.yaml")


def test_a_script_that_is_not_there_is_one_sentence(tmp_path):
    with refused(InvalidScript, "Unreadable"):
        load_script(tmp_path / "none.yaml", NODES)


def test_a_mistake_in_a_nodes_file_names_file_and_node(tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text("- {name: a, type: demo-fast, gpus: many}")
    with refused(InvalidComposition, "Malformed", "gpus"):
        load_nodes(path)


def test_a_node_without_profile_is_refused():
    nodes = Composition.from_json([{"name": "a", "type": "h100", "gpus": 1}])
    with refused(InvalidScript, "Unknown", "type"):
        check_nodes(nodes, (), demo_profile())


def test_the_example_files_hold_together():
    nodes = load_nodes(EXAMPLES / "nodes.yaml")
    events = load_script(EXAMPLES / "script.yaml", nodes)
    check_nodes(nodes, events, demo_profile())
    assert [str(event) for event in events] == ["join third", "kill left", "join slow"]


@pytest.mark.parametrize("name", ["../a", "a/b", "a" * 64, "\u00e9", "-a"])
def test_a_node_whose_name_cannot_be_that_of_a_folder_is_refused(name):
    nodes = Composition.from_json([{"name": name, "type": "demo-fast", "gpus": 1}])
    with refused(InvalidScript, "Malformed", "name"):
        check_nodes(nodes, (), demo_profile())


def test_more_ranks_than_a_machine_can_run_or_no_node_at_all_are_refused():
    nodes = Composition.from_json([{"name": "a", "type": "demo-fast", "gpus": 900}])
    with refused(InvalidScript, "OutOfRange", "gpus"):
        check_nodes(nodes, (), demo_profile())
    with refused(InvalidScript, "Missing"):
        check_nodes(Composition(()), (), demo_profile())
