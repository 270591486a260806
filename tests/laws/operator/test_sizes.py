"""What a job of 1,000 nodes stores and sends is small, whatever its nodes are called."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re

import pytest

from heddle_operator.epochs.decide import decide
from heddle_operator.epochs.members import directive_of
from heddle_operator.report.conditions import HolderCount
from heddle_operator.report.status import refused_status, status_of
from heddle_operator.resources.epoch_config_map import (
    MOST_BYTES,
    SEAL_NODE_BYTES,
    SEAL_RANK_BYTES,
    check_size,
    record_of_body,
    record_to_body,
)
from heddle_operator.rules.drain import Drain, drain_of
from heddle_operator.state.decision import Decision
from planner.cluster.composition import Composition, Node
from planner.plans.plan import Plan
from tests.large_job import GPUS, looks, training
from worker.columns import compressed_directive
from worker.contract import Member

DIRECTIVE_BYTES = 100_000
STATUS_BYTES = 8192
NOW_TEXT = "2026-11-27T00:00:00Z"
NAME = re.compile(r"pool-a-node-\d{5}")


def unlike(text: str) -> str:
    """The text with names of nodes that have nothing in common."""
    return NAME.sub(lambda found: "n" + hashlib.sha256(found[0].encode()).hexdigest()[:23], text)


def renamed(record):
    """The record with such names, in its seal too."""
    rows = record.plan.to_json() | {"digest": None}
    plan = Plan.from_json(json.loads(unlike(json.dumps(rows))))
    members = tuple(
        Member.model_validate_json(unlike(member.model_dump_json()))
        for member in record.seal.members
    )
    nodes = Composition(
        tuple(Node(name=name, gpu_type="demo-fast", gpus=GPUS) for name in plan.nodes)
    )
    seal = dataclasses.replace(record.seal, members=members)
    return dataclasses.replace(record, plan=plan, composition=nodes, seal=seal)


@pytest.fixture(scope="module")
def look():
    return training(1000)


@pytest.fixture(scope="module")
def record(look):
    return renamed(look.record)


def test_a_directive_for_an_agent_is_within_its_bound(look):
    told = directive_of(look.job, look.record, "prepare", look.observed).model_dump(mode="json")
    for text in (json.dumps(told), unlike(json.dumps(told))):
        assert len(compressed_directive(json.loads(text))) <= DIRECTIVE_BYTES


def test_a_record_is_a_tenth_of_what_a_config_map_holds(look, record):
    body = record_to_body(look.job, record, 0.0)
    binary = sum(len(base64.b64decode(text)) for text in body["binaryData"].values())
    assert sum(map(len, body["data"].values())) + binary <= MOST_BYTES / 10
    assert record_of_body(body, 0.0) == record


def test_a_seal_is_within_what_is_counted_for_it(look, record):
    body = record_to_body(look.job, record, 0.0)
    sealed = len(base64.b64decode(body["binaryData"]["seal"]))
    ranks, nodes = len(record.seal.members), len(record.plan.nodes)
    assert sealed <= SEAL_RANK_BYTES * ranks + SEAL_NODE_BYTES * nodes


def test_a_move_between_two_plans_of_1000_nodes_can_be_sealed(look, record):
    bare = record_to_body(look.job, dataclasses.replace(record, seal=None), 0.0)
    check_size(bare, 2 * record.plan.gpus, 2 * len(record.plan.nodes))


def test_a_status_is_small_in_every_state_of_a_job_whose_nodes_have_long_names():
    for name, look in looks(1000, letters=63):
        decision = decide(look.view)
        drain = drain_of(look.view)
        holders = HolderCount(1, 1)
        found = status_of(look.view, decision, holders, drain, {}, NOW_TEXT, "")
        assert len(json.dumps(found)) <= STATUS_BYTES, name
        if name != "pods are to be created":
            assert found["nodes"] == list(look.record.plan.nodes[: len(found["nodes"])])
            assert (len(found["nodes"]), found["nodeCount"]) == (30, len(look.record.plan.nodes))


@pytest.mark.parametrize("letters", [1000, 100_000])
def test_a_status_is_small_whatever_its_sentences_say(letters):
    look = training(1000, letters=63)
    long = "wö" * (letters // 2)
    decision = Decision(actions=(), phase="Recovering", message=long)
    observed = dataclasses.replace(look.observed, template_problem=long)
    view = dataclasses.replace(look.view, observed=observed)
    found = status_of(view, decision, HolderCount(1, 1), Drain(blocked=long), {}, NOW_TEXT, long)
    stored = json.dumps(found, ensure_ascii=False).encode()
    assert len(stored) <= STATUS_BYTES
    assert sum(row["message"].endswith(" ...") for row in found["conditions"]) == 5
    again = refused_status(2, long, found, NOW_TEXT)
    assert len(json.dumps(found | again, ensure_ascii=False).encode()) <= STATUS_BYTES
