"""Inputs of the planner's commands: compositions, plan files, workloads.

Invariant: a mistake of the user is one sentence, with what was found and what to write instead.
"""

from __future__ import annotations

import json
import reprlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from planner.cluster.composition import Composition
from planner.cluster.gpu_limits import GpuLimits
from planner.cost.money import DEAREST
from planner.errors import InvalidComposition, InvalidPlan, InvalidRequest, InvalidWorkload
from planner.given_text import read_text
from planner.model.catalogue import find_model
from planner.model.workload import Workload, usual_workload
from planner.plans.plan import Plan, faults
from planner.profiles.profile import Profile
from planner.search.candidate import best_placed
from planner.wording import did_you_mean, kind_of, reason_of

# At which link the messages between two stages of a node are counted: the node's, or the network's.
EDGES = ("placement", "nodes")
Prices = Annotated[dict[str, Annotated[float, Field(ge=0, lt=DEAREST)]], Field(min_length=1)]


def read_composition(text: str | None, file: Path | None) -> Composition | None:
    """The composition that the options name, or None if they name none.

    Raises:
        InvalidComposition: both are given, or what is given is wrong.
    """
    if text is not None and file is not None:
        raise InvalidComposition(
            "both --composition and --nodes are given; give one of them", code="Contradiction"
        )
    if text is not None:
        return Composition.from_text(text)
    return None if file is None else Composition.from_json(_read_yaml(file, "nodes"))


def read_prices(file: Path) -> dict[str, float]:
    """Money per GPU-hour by GPU type, from a YAML or JSON file `{gpu_type: number}`.

    Raises:
        InvalidComposition: it cannot be read, or a price is no number of 0 or more.
    """
    data = _read_yaml(file, "prices")
    try:
        return TypeAdapter(Prices).validate_python(data, strict=True)
    except ValidationError as error:
        wrong = error.errors()[0]["input"]
        found = kind_of(wrong) if wrong is None or isinstance(wrong, list) else reprlib.repr(wrong)
    raise InvalidComposition(
        f"prices file {file} has {found}; it maps GPU types to money per GPU-hour, a number of 0 "
        f"or more each, for example `h100: 2.5`",
        field="prices",
        code="Malformed",
    )


def read_max_gpus(texts: tuple[str, ...], composition: Composition) -> GpuLimits:
    """Limits on GPUs, whose types are there.

    Raises:
        InvalidRequest: they cannot be read, or name a type that no node has.
    """
    limits = GpuLimits.from_text(texts)
    for name, _ in limits.by_type:
        if name not in composition.gpu_types:
            near = did_you_mean(name, composition.gpu_types)
            raise InvalidRequest(
                f"--max-gpus limits {name!r}{near}, which no node has; the GPU types are "
                f"{', '.join(composition.gpu_types)}",
                field="max_gpus",
                code="Unknown",
            )
    return limits


def _read_yaml(file: Path, holds: str) -> Any:
    """Content of a YAML or JSON file; the library is loaded only for those who have one."""
    from planner.strict_yaml import read_yaml

    return read_yaml(file, f"{holds} file", InvalidComposition)


def read_current(path: str, workload: Workload) -> Plan:
    """The plan that runs now, from a plan file.

    Raises:
        InvalidPlan: it cannot be read, or is for another model.
    """
    data = read_plan_file(path)
    stated = data.get("workload")
    model = stated.get("model") if isinstance(stated, dict) else None
    name = model.get("name") if isinstance(model, dict) else model
    if name is not None and name != workload.model.name:
        raise InvalidPlan(
            f"the current plan {path} is for model {name!r}, asked was {workload.model.name!r}; "
            f"give a plan of the same model, or leave --current out",
            field="current",
            code="Mismatch",
        )
    plan = Plan.from_json(data)
    if stated is not None:
        trains = Workload.from_json(stated)
    else:
        trains = replace(workload, global_batch=max(1, sum(t.samples for t in plan.templates)))
    if wrong := faults(plan, trains):
        raise InvalidPlan(
            f"the current plan {path} is no plan: {wrong[0]}", field="current", code="Mismatch"
        )
    return plan


def read_plan_file(path: str) -> dict[str, Any]:
    """The JSON object of a plan file, or of standard input for `-`.

    Raises:
        InvalidPlan: it cannot be read, or is no object.
    """
    try:
        data = json.loads(read_text(path))
        if isinstance(data, dict):
            return data
        wrong = f"must hold one JSON object, found {kind_of(data)}"
    except (OSError, ValueError, RecursionError) as error:
        wrong = f"cannot be read: {reason_of(error)}"
    raise InvalidPlan(
        f"plan {path} {wrong}; `heddle plan --output json` prints one", code="Unreadable"
    )


def plan_workload(
    data: dict[str, Any], model: str | None, batch: int | None, seq_len: int | None
) -> Workload:
    """The workload that a plan names; options may change its batch and length, not its model.

    Raises:
        InvalidPlan: the plan is for another model.
        InvalidWorkload: what it names is wrong, or nobody names a model.
    """
    stated = data.get("workload")
    if stated is None:
        if model is None:
            raise InvalidWorkload(
                "the plan does not name its workload; add the key 'workload' with model, "
                "global_batch and sequence_length, or give --model and --batch",
                field="workload",
                code="Missing",
            )
        if batch is None:
            raise InvalidWorkload(
                "the plan does not name its global batch; give --batch",
                field="global_batch",
                code="Missing",
            )
        usual = usual_workload(find_model(model))
        usual = replace(usual, global_batch=batch, recompute="none", memory="worker")
        stated = usual.to_json()
    elif isinstance(stated, dict) and batch is not None:
        stated = {**stated, "global_batch": batch}
    workload = Workload.from_json(stated)
    if model is not None and find_model(model).name != workload.model.name:
        raise InvalidPlan(
            f"the plan is for model {workload.model.name!r}, asked was {model!r}; leave --model "
            f"out, or plan for it with `heddle plan --model {model}`",
            field="model",
            code="Mismatch",
        )
    return workload if seq_len is None else replace(workload, sequence_length=seq_len)


def plan_composition(data: dict[str, Any], text: str | None, nodes: Path | None) -> Composition:
    """The composition of the options, else the one that a plan names.

    Raises:
        InvalidComposition: there is none, or it is wrong.
    """
    composition = read_composition(text, nodes)
    if composition is not None:
        return composition
    if "composition" not in data:
        raise InvalidComposition(
            "the plan does not say on which nodes it runs; give --composition or --nodes",
            field="composition",
            code="Missing",
        )
    return Composition.from_json(data["composition"])


def is_placed(data: dict[str, Any]) -> bool:
    """Whether edges of a plan inside a node take its link; they do unless the plan says otherwise.

    Raises:
        InvalidPlan: `edges` is something else.
    """
    stated = data.get("edges", EDGES[0])
    if stated not in EDGES:
        raise InvalidPlan(
            f"the plan's edges is {reprlib.repr(stated)}; it must be one of {', '.join(EDGES)}",
            field="edges",
            code="Unknown",
        )
    return bool(stated == EDGES[0])


def read_plan(
    data: dict[str, Any], workload: Workload, composition: Composition, profile: Profile
) -> Plan:
    """The plan of a JSON object; one without a placement is placed as the planner would.

    Raises:
        InvalidPlan: a key is wrong, or the templates do not fit on the nodes.
        UnprofiledConfiguration: it has no placement, and the profile no costs for it.
    """
    if "placement" in data:
        return Plan.from_json(data)
    unplaced = Plan.from_json({**data, "placement": []} | {"digest": None})
    asked = replace(workload, zero=unplaced.zero)  # as the plan says, whatever the options say
    placed = best_placed(unplaced.templates, asked, composition, profile)
    if placed is None:
        raise InvalidPlan(
            f"the plan has no placement, and its {unplaced.gpus} GPUs do not fit on the "
            f"{composition.gpus} of the composition; give more nodes, or a placement",
            code="OutOfRange",
        )
    return placed
