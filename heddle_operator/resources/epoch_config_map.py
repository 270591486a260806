"""An epoch record as a ConfigMap: created once, sealed once, closed once.

Plan, composition and seal grow with the ranks, so they are compressed in `binaryData`, members and
placements by column:
    kubectl get configmap NAME -o jsonpath='{.binaryData.plan}' | base64 -d | zcat
Invariant: what was written is read back equal, in format 1 too, where all was text of `data`; times
are of the wall clock there, so that they mean the same to every operator, and of the reader's own
clock in its records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, get_args

from heddle_operator.apis.errors import NewerRecord, RecordTooLarge
from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.labels import EPOCH_LABEL
from heddle_operator.resources.compressed import of_binary, to_binary
from heddle_operator.resources.metadata import Body, metadata
from heddle_operator.state.epoch_record import EpochRecord, Failure, Outcome, Seal, StartFailure
from heddle_operator.state.reasons import FailedReason, MoveKind, StartCause
from planner.cluster.composition import Composition
from planner.plans.plan import Plan
from worker.columns import by_column, by_row, plan_by_column, plan_by_row
from worker.contract import Member, Reason, Restore, Resume
from worker.training_settings import Checkpointing

FORMAT = 2  # of the records that are written
MOST_BYTES = 1 << 20  # of the values of a ConfigMap
# What a seal has at most for each rank and for each node, whose names compress badly.
SEAL_RANK_BYTES, SEAL_NODE_BYTES = 8, 192


def epoch_name(job: HeddleJob, epoch: int) -> str:
    """Name of the ConfigMap of an epoch."""
    return f"{job.name}-epoch-{epoch}"


def record_to_body(job: HeddleJob, record: EpochRecord, clock_offset_s: float) -> Body:
    """The ConfigMap of a record.

    Args:
        job: that owns it.
        record: with times of the loop's clock.
        clock_offset_s: wall clock less the loop's clock.
    """
    data = {
        "format": str(FORMAT),
        "digest": record.plan.digest,
        "reason": record.reason,
        "adoptedAt": _wall(record.adopted_s, clock_offset_s),
        "outcome": record.outcome,
    }
    binary = {
        "plan": to_binary(plan_by_column(record.plan.to_json())),
        "composition": to_binary(record.composition.to_json()),
    }
    if record.seal is not None:
        binary["seal"] = to_binary(_seal_to_json(record.seal))
        data["sealedAt"] = _wall(record.seal.sealed_s, clock_offset_s)
    if record.closed_s is not None:
        data["closedAt"] = _wall(record.closed_s, clock_offset_s)
    if record.step_s is not None:
        data["stepSeconds"] = repr(record.step_s)
    if record.group_bytes:
        data["groupBytes"] = json.dumps(dict(record.group_bytes))
    failed: dict[str, tuple[Failure | StartFailure, ...]] = {
        "cause": record.cause,
        "failures": record.failures,
        "startFailures": record.start_failures,
    }
    for key, failures in failed.items():
        if failures:
            data[key] = json.dumps([asdict(failure) for failure in failures])
    numbers = {"steps": record.steps, "maxGPUs": record.max_gpus, "step": record.step}
    data |= {key: str(number) for key, number in numbers.items() if number is not None}
    words = {"message": record.message, "failed": record.failed, "movedBy": record.moved_by}
    data |= {key: word for key, word in words.items() if word}
    if record.is_emergency:
        data["inHaste"] = "true"
    if record.by_suspension:
        data["bySuspension"] = "true"
    if record.suspended_s is not None:
        data["suspendedSeconds"] = repr(record.suspended_s)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(
            job, epoch_name(job, record.epoch), **{EPOCH_LABEL: str(record.epoch)}
        ),
        "data": data,
        "binaryData": binary,
    }


def check_size(body: Body, ranks: int, nodes: int) -> None:
    """Check that a record fits into a ConfigMap, with its seal.

    Args:
        body: the ConfigMap of the record, before it is sealed.
        ranks: of the plan and of the one before: members of the seal.
        nodes: of the same plans.

    Raises:
        RecordTooLarge: it does not fit.
    """
    found = sum(map(len, body["data"].values()))
    found += sum(len(text) * 3 // 4 for text in body["binaryData"].values())
    found += SEAL_RANK_BYTES * ranks + SEAL_NODE_BYTES * nodes
    if found > MOST_BYTES:
        raise RecordTooLarge(
            f"the record of an epoch with {ranks} ranks on {nodes} nodes has up to {found} bytes, "
            f"and a ConfigMap holds {MOST_BYTES}; lower spec.elastic.maxGPUs"
        )


def check_format(body: Mapping[str, Any]) -> None:
    """Check that this operator can read a record.

    Raises:
        NewerRecord: a newer operator wrote it.
    """
    stated = str((body.get("data") or {}).get("format", "1"))
    if stated.isdecimal() and int(stated) > FORMAT:
        raise NewerRecord(
            f"ConfigMap {body['metadata']['name']} has format {stated}, and this operator reads "
            f"formats 1 to {FORMAT}; run the newer operator again"
        )


def record_of_body(body: Mapping[str, Any], clock_offset_s: float) -> EpochRecord:
    """The record in a ConfigMap, with times of the loop's clock.

    Raises:
        NewerRecord: a newer operator wrote it.
        ValueError: it has a word or a plan that no record has; likewise what reading raises where
            a field is missing or of another form: anybody may have written it.
    """
    check_format(body)
    data = body["data"]
    plan, composition, seal = (_large(body, key) for key in ("plan", "composition", "seal"))
    for key, words in (("reason", get_args(Reason)), ("outcome", get_args(Outcome))):
        if data[key] not in words:
            raise ValueError(f"{key} is {data[key]!r}, not one of {', '.join(words)}")
    closed = data.get("closedAt")
    return EpochRecord(
        epoch=int(body["metadata"]["labels"][EPOCH_LABEL]),
        plan=Plan.from_json(plan_by_row(plan)),
        reason=data["reason"],
        composition=Composition.from_json(composition),
        adopted_s=float(data["adoptedAt"]) - clock_offset_s,
        seal=_seal_of(seal, float(data["sealedAt"]) - clock_offset_s) if seal is not None else None,
        outcome=data["outcome"],
        closed_s=float(closed) - clock_offset_s if closed else None,
        message=data.get("message", ""),
        step_s=float(data["stepSeconds"]) if "stepSeconds" in data else None,
        group_bytes=_group_bytes_of(data),
        cause=_failures_of(data, "cause"),
        failures=_failures_of(data, "failures"),
        start_failures=_start_failures_of(data),
        steps=int(data["steps"]) if "steps" in data else None,
        is_emergency=data.get("inHaste") == "true",
        max_gpus=int(data["maxGPUs"]) if "maxGPUs" in data else None,
        step=int(data["step"]) if "step" in data else None,
        by_suspension=data.get("bySuspension") == "true",
        suspended_s=float(data["suspendedSeconds"]) if "suspendedSeconds" in data else None,
        # A newer operator may know more words.
        moved_by=next((kind for kind in get_args(MoveKind) if kind == data.get("movedBy")), None),
        failed=next((word for word in get_args(FailedReason) if word == data.get("failed")), None),
    )


def _group_bytes_of(data: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    found = json.loads(data.get("groupBytes", "{}"))
    return tuple((str(name), int(held_bytes)) for name, held_bytes in found.items())


def _large(body: Mapping[str, Any], key: str) -> Any:
    """Fields that grow with the ranks, in either format; None where absent."""
    binary, data = body.get("binaryData") or {}, body["data"]
    if key in binary:
        return of_binary(binary[key])
    return json.loads(data[key]) if key in data else None


def _failures_of(data: Mapping[str, str], key: str) -> tuple[Failure, ...]:
    return tuple(
        Failure(**{**row, "gpus": tuple((node, gpu) for node, gpu in row["gpus"])})
        for row in json.loads(data.get(key, "[]"))
    )


def _start_failures_of(data: Mapping[str, str]) -> tuple[StartFailure, ...]:
    rows = json.loads(data.get("startFailures", "[]"))
    for row in rows:
        if row["cause"] not in get_args(StartCause):
            raise ValueError(f"the cause of a start failure is {row['cause']!r}")
    return tuple(
        StartFailure(
            str(r["node"]),
            r["cause"],
            str(r["sentence"]),
            int(r["generation"]),
            int(r.get("gpus", 0)),
        )
        for r in rows
    )


def _wall(time_s: float, clock_offset_s: float) -> str:
    return f"{time_s + clock_offset_s:.3f}"


def _seal_to_json(seal: Seal) -> dict[str, Any]:
    return {
        "members": by_column(member.model_dump() for member in seal.members),
        "store": seal.store,
        "resume": seal.resume.model_dump(mode="json") if seal.resume else None,
        "known_exits": [list(exit_) for exit_ in seal.known_exits],
        "restore": seal.restore.model_dump(mode="json") if seal.restore else None,
        "checkpoint": seal.checkpoint.model_dump(mode="json") if seal.checkpoint else None,
    }


def _seal_of(seal: Mapping[str, Any], sealed_s: float) -> Seal:
    members = seal["members"]
    rows = by_row(members) if isinstance(members, Mapping) else members
    restore, checkpoint = seal.get("restore"), seal.get("checkpoint")  # absent in older records
    return Seal(
        members=tuple(Member.model_validate(row) for row in rows),
        store=seal["store"],
        resume=Resume.model_validate(seal["resume"]) if seal["resume"] else None,
        sealed_s=sealed_s,
        known_exits=tuple((pod, pid) for pod, pid in seal["known_exits"]),
        restore=Restore.model_validate(restore) if restore else None,
        checkpoint=Checkpointing.model_validate(checkpoint) if checkpoint else None,
    )
