"""Two plans side by side: what becomes of the templates, and which bytes go where."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import InvalidPlan
from planner.plans.diff import compare, moves, template_changes
from planner.plans.movement import bytes_to_move, held_numel, missing_bytes
from planner.plans.plan import FilledTemplate, PlacedStage, Plan
from planner.plans.ranks import RankMap
from tests.builders import MODEL, compositions, on_one_node, plans_on, template, workload
from tests.refusals import refused


def at(filled: FilledTemplate, *names: str) -> Plan:
    """One stage of one GPU on each of these nodes, replica by replica."""
    depth = len(filled.stages)
    where = tuple(PlacedStage(0, i // depth, i % depth, name, (0,)) for i, name in enumerate(names))
    return Plan((filled,), where)


def file_of(plan: Plan, batch: int = 12, **more) -> dict:
    return {"workload": workload(batch).to_json(), **plan.to_json(), **more}


def test_templates_are_lost_gained_changed_or_kept():
    before = on_one_node(template("1x6", 2, (3,)), template("1x3 1x3"), template("2x6"))
    after = on_one_node(template("1x6", 2, (3,)), template("1x2 1x4"), template("1x2 1x2 1x2"))
    fates = Counter(row.fate for row in template_changes(before, after))
    assert fates == {"kept": 1, "changed": 1, "lost": 1, "gained": 1}
    changed = next(row for row in template_changes(before, after) if row.fate == "changed")
    assert [s.layers for s in changed.before.stages] == [3, 3]
    assert [s.layers for s in changed.after.stages] == [2, 4]


def test_another_share_of_the_batch_is_a_change():
    before = on_one_node(template("1x6", 2, (3,)))
    after = on_one_node(template("1x6", 2, (3, 3)))
    assert [row.fate for row in template_changes(before, after)] == ["changed"]


def test_a_new_replica_fetches_each_stage_from_the_node_that_holds_it():
    one = template("1x3 1x3", 1, (1,))
    two = template("1x3 1x3", 1, (1, 1))
    found = moves(MODEL, at(one, "a", "b"), at(two, "a", "b", "c", "c2"))
    first, last = (seat for seat in RankMap.of(at(one, "a", "b")).seats)
    assert found == {
        ("a", "c"): 12 * held_numel(MODEL, first),
        ("b", "c2"): 12 * held_numel(MODEL, last),
    }


def test_a_holder_on_the_same_node_is_asked_first():
    one, two = template("1x6"), template("1x6", 1, (1, 1))
    grown = Plan((two,), (PlacedStage(0, 0, 0, "a", (0,)), PlacedStage(0, 1, 0, "a", (1,))))
    assert set(moves(MODEL, at(one, "a"), grown)) == {("a", "a")}


def test_holders_share_the_sending():
    two, four = template("1x6", 1, (1, 1)), template("1x6", 1, (1, 1, 1, 1))
    found = moves(MODEL, at(two, "a", "b"), at(four, "a", "b", "c", "d"))
    sent = Counter(
        {name: sum(n for (source, _), n in found.items() if source == name) for name in "ab"}
    )
    assert abs(sent["a"] - sent["b"]) < 0.2 * sum(sent.values())


@given(st.data())
def test_each_node_receives_what_its_gpus_did_not_hold(data):
    composition = data.draw(compositions())
    before, after = data.draw(plans_on(composition)), data.draw(plans_on(composition))
    found = moves(MODEL, before, after)
    received: Counter[str] = Counter()
    for (_, target), size in found.items():
        received[target] += size
    wanted: Counter[str] = Counter()
    for (node, _), size in missing_bytes(MODEL, before, after).items():
        wanted[node] += size
    assert +received == +wanted
    assert sum(found.values()) == bytes_to_move(MODEL, before, after)


def test_a_comparison_is_plain_data():
    before, after = on_one_node(template("1x6", 2, (6,))), on_one_node(template("1x3 1x3", 2, (6,)))
    found = compare(
        file_of(before, throughput_samples_s=10.0), file_of(after, throughput_samples_s=15)
    )
    data = json.loads(json.dumps(found.to_json()))
    assert data["from"] == {"digest": before.digest, "throughput_samples_s": 10.0}
    assert data["to"]["throughput_samples_s"] == 15.0
    assert {row["change"] for row in data["templates"]} == {"lost", "gained"}
    assert data["bytes_to_move"] == sum(move["bytes"] for move in data["moves"])
    assert found.bytes_to_move == bytes_to_move(MODEL, before, after) > 0
    same = compare(file_of(before), file_of(before)).to_json()
    assert (same["bytes_to_move"], same["moves"]) == (0, [])


def test_files_that_cannot_be_compared_are_one_sentence():
    plan = on_one_node(template("1x6", 2, (6,)))
    other = file_of(plan)
    other["workload"]["model"] = "llama3-8b"
    short = file_of(on_one_node(template("1x5", 2, (6,))))
    nowhere, alone = file_of(plan) | {"placement": []}, file_of(plan)
    alone["placement"][0]["gpus"] = []
    del nowhere["digest"], alone["digest"]
    for one, two, code in (
        (plan.to_json(), file_of(plan), "Missing"),
        (file_of(plan), other, "Mismatch"),
        (file_of(plan), short, "Mismatch"),
        (file_of(plan), nowhere, "Mismatch"),
        (alone, file_of(plan), "Mismatch"),
    ):
        with refused(InvalidPlan, code):
            compare(one, two)


@pytest.mark.parametrize("speed", [0, -1, True, 10**400, float("nan"), "fast", None])
def test_a_throughput_that_is_none_is_left_out(speed):
    plan = on_one_node(template("1x6", 2, (6,)))
    found = compare(file_of(plan, throughput_samples_s=speed), file_of(plan))
    assert found.throughputs is None
