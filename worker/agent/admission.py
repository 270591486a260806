"""Whether an agent accepts a directive: the rules behind its 4xx answers.

An epoch only grows, and one epoch has one plan; a phase only goes forward (prepare, switch) or ends
in abort.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from planner.errors import PlanningError
from planner.plans.plan import Plan, check
from planner.plans.ranks import RankMap
from planner.wording import kind_of
from worker.contract import Directive, Halt, Look
from worker.trainable import why_untrainable

_ORDER = {"prepare": 0, "switch": 1, "abort": 2}


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer other than 200: the HTTP status and one sentence."""

    status: int
    sentence: str


def read_directive(body: object) -> Directive | Refused:
    """The directive in a request body, or 400 with what is wrong with it."""
    if not isinstance(body, Mapping):
        return Refused(400, f"a directive is a JSON object, found {kind_of(body)}")
    try:
        directive = Directive.read(body)
    except ValidationError as error:
        return _invalid(error, "GET /v1/report has the state of this agent")
    return _faults(directive) or directive


def read_halt(body: object) -> Halt | Refused:
    """The word of a lost peer in a request body, or 400 with what is wrong with it."""
    if not isinstance(body, Mapping):
        return Refused(400, f"a halt is a JSON object, found {kind_of(body)}")
    try:
        return Halt.model_validate(body)
    except ValidationError as error:
        return _invalid(error, "a halt has an epoch and a reason")


def read_look(body: object) -> Look | Refused:
    """The question after checkpoints in a request body, or 400 with what is wrong with it."""
    if not isinstance(body, Mapping):
        return Refused(400, f"a look is a JSON object, found {kind_of(body)}")
    try:
        asked = Look.model_validate(body)
    except ValidationError as error:
        return _invalid(error, "a look has an epoch and the training")
    if asked.training.checkpoint is None:
        return Refused(400, "training.checkpoint: a look needs the path of the checkpoints")
    return asked


def _invalid(error: ValidationError, advice: str) -> Refused:
    first: Mapping[str, Any] = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "body"
    return Refused(400, f"{where}: {first['msg']}; {advice}")


def _faults(directive: Directive) -> Refused | None:
    spec = directive.training
    try:
        model = spec.model_shape()
        workload = spec.workload(model)
        plan = check(Plan.from_json(directive.plan), workload)
        for layout in directive.layouts.values():
            check(Plan.from_json(layout), workload)
    except PlanningError as error:
        return Refused(400, str(error))
    untrainable = why_untrainable(
        model, spec.sequence_length, masks_documents=spec.data.document_mask
    )
    if untrainable is not None:
        return Refused(400, untrainable)
    if plan.digest != directive.plan_digest:
        return Refused(
            400, f"plan_digest is {directive.plan_digest}, the plan's own is {plan.digest}"
        )
    seats = RankMap.of(plan).seats
    ranks = [member.rank for member in directive.members if member.rank is not None]
    if ranks != list(range(len(seats))):
        return Refused(
            400,
            f"members list ranks {ranks}, the plan has ranks 0 to {len(seats) - 1}, each once "
            f"and in order",
        )
    for seat, member in zip(seats, directive.members, strict=False):
        if (seat.node, seat.gpu) != (member.node, member.gpu):
            return Refused(
                400,
                f"rank {seat.rank} is placed on GPU {seat.gpu} of {seat.node!r}, its member is "
                f"GPU {member.gpu} of "
                f"{member.node!r}",
            )
    missing = {member.holds for member in directive.members if member.holds is not None} - set(
        directive.layouts
    )
    if missing:
        return Refused(
            400, f"members hold layouts of epochs {sorted(missing)}, which `layouts` lacks"
        )
    return None


def admit(current: Directive | None, directive: Directive, job: str) -> Refused | None:
    """None if the directive may follow the current one; else 409 or 400 with the reason."""
    if directive.job != job:
        return Refused(409, f"this pod belongs to job {job!r}, the directive to {directive.job!r}")
    if current is None or directive.epoch > current.epoch:
        return None
    if directive.epoch < current.epoch:
        return Refused(
            409,
            f"epoch {directive.epoch} is older than epoch {current.epoch}, which this agent "
            f"follows",
        )
    if directive.plan_digest != current.plan_digest:
        return Refused(
            409,
            f"epoch {current.epoch} has plan {current.plan_digest}, not "
            f"{directive.plan_digest}; adopt a new epoch",
        )
    if current.phase == "abort" and directive.phase != "abort":
        return Refused(409, f"epoch {current.epoch} was aborted; adopt a new epoch")
    return None


def advances(current: Directive | None, directive: Directive) -> bool:
    """Whether an admitted directive says something new.

    An older phase of the same epoch does not.
    """
    if current is None or directive.epoch > current.epoch:
        return True
    return _ORDER[directive.phase] >= _ORDER[current.phase] and directive != current
