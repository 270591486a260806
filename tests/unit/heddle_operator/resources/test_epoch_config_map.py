"""A record that is written as a ConfigMap is read back equal, by whatever clock."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
import math

import pytest

from heddle_operator.apis.errors import NewerRecord, RecordTooLarge
from heddle_operator.resources.epoch_config_map import (
    FORMAT,
    check_size,
    epoch_name,
    record_of_body,
    record_to_body,
)
from heddle_operator.state.epoch_record import EpochRecord, Failure, Seal, StartFailure
from planner.cluster.composition import Composition, Node
from tests.fakes.operator import a_job
from tests.fakes.planner import fake_plan
from worker.contract import Member, Restore, Resume
from worker.training_settings import Checkpointing

NODES = Composition(
    (
        Node(name="a", gpu_type="demo-fast", gpus=1, link_domain="rack-1", speed_factor=0.8),
        Node(name="b", gpu_type="demo-fast", gpus=2),
    )
)
JOB = a_job()
OPEN = EpochRecord(
    epoch=7, plan=fake_plan(NODES, JOB.workload), reason="loss", composition=NODES, adopted_s=10.25
)
SEAL = Seal(
    members=(Member(pod="p", slot=0, node="a", gpu=0, rank=None, holds=6, also_holds=5),),
    store="10.0.0.1:77",
    resume=Resume(step=4, gradient_norm=0.1 + 0.2),
    sealed_s=11.5,
    known_exits=(("p", 12),),
)
RESTORED = dataclasses.replace(
    SEAL,
    resume=None,
    restore=Restore(path="/saves/tiny", epoch=3, step=40, manifest="ab12"),
    checkpoint=Checkpointing(path="/saves/tiny", every_steps=10),
)
RECORDS = {
    "open": OPEN,
    "sealed": dataclasses.replace(OPEN, seal=SEAL),
    "restored": dataclasses.replace(OPEN, seal=RESTORED),
    "left": dataclasses.replace(OPEN, seal=SEAL, outcome="lost", closed_s=12.75, step=41),
    "suspended": dataclasses.replace(OPEN, by_suspension=True, suspended_s=0.1 + 0.2),
    "emergency": dataclasses.replace(OPEN, steps=9, is_emergency=True),
    "closed": dataclasses.replace(
        OPEN, seal=SEAL, outcome="aborted", closed_s=12.75, message="because"
    ),
    "lost": dataclasses.replace(OPEN, outcome="failed", message="gone", failed="StateLost"),
    "failed": dataclasses.replace(
        OPEN,
        outcome="aborted",
        closed_s=12.75,
        step_s=0.1 + 0.2,
        group_bytes=(("demo-fast", 7), ("demo-slow", 8)),
        cause=(
            Failure(
                kind="other",
                sentence="ValueError: no",
                epoch=6,
                step=3,
                gpus=(("a", 0), ("b", 1)),
                site="ValueError in worker.x",
            ),
        ),
        failures=(
            Failure(kind="device", sentence="out of memory", epoch=7, step=4, gpus=(("a", 0),)),
        ),
        start_failures=(StartFailure("a", "image", "ErrImagePull: no such image", 3, 4),),
    ),
}


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_record_is_read_back_equal(record):
    assert record_of_body(record_to_body(JOB, record, 0.0), 0.0) == record


def test_times_mean_the_same_to_operators_with_other_clocks():
    body = record_to_body(JOB, RECORDS["closed"], 1000.0)
    read = record_of_body(body, 900.0)
    assert (read.adopted_s, read.seal.sealed_s, read.closed_s) == (110.25, 111.5, 112.75)


def test_the_name_is_the_jobs_and_the_epochs():
    assert epoch_name(JOB, 7) == "tiny-epoch-7"
    assert record_to_body(JOB, OPEN, 0.0)["data"]["digest"] == OPEN.plan.digest


def test_a_norm_that_is_not_finite_is_read_back():
    seal = dataclasses.replace(SEAL, resume=Resume(step=4, gradient_norm=float("nan")))
    read = record_of_body(record_to_body(JOB, dataclasses.replace(OPEN, seal=seal), 0.0), 0.0)
    assert math.isnan(read.seal.resume.gradient_norm)


def in_format_1(record):
    """The record as the first format had it: all of it text, rows by row."""
    body = record_to_body(JOB, record, 0.0)
    del body["binaryData"], body["data"]["format"]
    body["data"] |= {
        "plan": json.dumps(record.plan.to_json()),
        "composition": json.dumps(record.composition.to_json()),
    }
    if record.seal is not None:
        seal = record.seal
        rows = [member.model_dump() for member in seal.members]
        resume = seal.resume.model_dump(mode="json")
        exits = [list(each) for each in seal.known_exits]
        body["data"]["seal"] = json.dumps(
            {"members": rows, "store": seal.store, "resume": resume, "known_exits": exits}
        )
    return body


@pytest.mark.parametrize("name", sorted(RECORDS.keys() - {"restored"}))
def test_a_record_of_the_first_format_is_read(name):
    assert record_of_body(in_format_1(RECORDS[name]), 0.0) == RECORDS[name]


def test_a_record_of_a_newer_format_is_named():
    body = record_to_body(JOB, OPEN, 0.0)
    body["data"]["format"] = str(FORMAT + 1)
    with pytest.raises(NewerRecord):
        record_of_body(body, 0.0)


def test_a_record_that_could_not_be_sealed_is_too_large():
    body = record_to_body(JOB, OPEN, 0.0)
    check_size(body, 8_000, 1_000)
    with pytest.raises(RecordTooLarge):
        check_size(body, 200_000, 20)


BOMB = base64.b64encode(gzip.compress(b" " * (64 << 20))).decode()


@pytest.mark.parametrize("value", ["AAAA", "?", BOMB], ids=["no gzip", "nothing", "a bomb"])
def test_a_forged_value_is_unreadable(value):
    body = record_to_body(JOB, OPEN, 0.0)
    body["binaryData"]["plan"] = value
    with pytest.raises(ValueError, match=r"no gzip|Expecting value|16 MiB"):
        record_of_body(body, 0.0)
