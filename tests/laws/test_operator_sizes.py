"""What a job of 1,000 nodes stores and sends is small, whatever its nodes are called."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re

import pytest

from heddle_operator.resources.epoch_config_map import (
    MOST_BYTES,
    SEAL_NODE_BYTES,
    SEAL_RANK_BYTES,
    check_size,
    record_of_body,
    record_to_body,
)
from heddle_operator.rollout.members import directive_of
from planner.cluster.composition import Composition, Node
from planner.plans.plan import Plan
from tests.large_job import GPUS, training
from worker.columns import compressed_directive
from worker.contract import Member

DIRECTIVE_BYTES = 100_000
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
    nodes = Composition(tuple(Node(name, "demo-fast", GPUS) for name in plan.nodes))
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
