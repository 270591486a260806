"""The JSON of a plan, checked before anything is built from it.

Invariant: what passes has every key with a value of the right type; whether it tiles model, batch
    and
nodes is `planner.plans.plan.faults`' question.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.errors import InvalidPlan

Count = Annotated[int, Field(ge=1)]
Index = Annotated[int, Field(ge=0)]


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class StageRow(_Row):
    """A stage; further keys (prices) are ignored."""

    gpu_type: str
    tp: Count
    layers: int
    recompute: Literal["none", "selective", "full"] = "none"
    ep: Count = 1
    etp: Count | None = None


class TemplateRow(_Row):
    """A filled template."""

    stages: list[StageRow]
    micro_batch: int
    micro_batches: list[int]
    replicas: int | None = None


class PlacedRow(_Row):
    """Where one stage of one replica runs."""

    template: Index
    replica: Index
    stage: Index
    node: str
    gpus: list[Index]


class PlanRow(_Row):
    """A plan; further keys (prices, origin, workload) are ignored."""

    templates: list[TemplateRow]
    placement: list[PlacedRow]
    digest: str | None = None


def read_rows(data: Mapping[str, Any]) -> PlanRow:
    """Check the JSON of a plan.

    Raises:
        InvalidPlan: the first wrong key, with what was found and what was expected.
    """
    try:
        return PlanRow.model_validate(data)
    except ValidationError as error:
        first: Mapping[str, Any] = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the whole"
        if first["type"] == "missing":
            what = f"the key {key!r} is missing"
        else:
            wanted = str(first["msg"]).removeprefix("Input should be ")
            what = f"{key} is {reprlib.repr(first['input'])}, expected {wanted}"
        raise InvalidPlan(
            f"this is not a plan: {what}; `heddle plan --output json` prints one"
        ) from None
