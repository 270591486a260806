"""A plan that a user gives to a run on this machine: read, checked, laid on the nodes of the run.

Invariant: a run with a given plan starts with that plan, or is refused before it starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from heddle_operator.apis.errors import InvalidJob
from planner.cluster.composition import Composition
from planner.errors import HeddleError
from planner.model.shape import ModelShape
from planner.model.workload import Workload
from planner.plans.plan import Plan, faults
from planner.wording import counted, joined

FREE = ("name", "recompute", "dropout", "arithmetic")  # of a model: no plan depends on them


def given_plan(file: Path, workload: Workload, nodes: Composition, is_measured: bool) -> Plan:
    """The plan of a file, on nodes of the run.

    Args:
        file: what `heddle plan --output json` prints.
        workload: of the job.
        nodes: of the run.
        is_measured: the nodes are ranks of this machine: GPUs of the plan, whatever their type and
            node, are its ranks in their order.

    Raises:
        InvalidJob: it cannot be read, or is no plan of this workload on these nodes.
    """
    from heddle.cli.inputs import read_plan_file  # which loads the search for plans

    try:
        data = read_plan_file(str(file))
        _check_workload(data, workload)
        plan = Plan.from_json(data)
    except HeddleError as error:
        raise InvalidJob(f"--plan {file}: {error}", field=error.field, code=error.code) from None
    if plan.gpus > nodes.gpus:
        raise InvalidJob(
            f"--plan {file}: the plan uses {counted(plan.gpus, 'GPU')}, and "
            f"{counted(nodes.gpus, 'rank')} {'is' if nodes.gpus == 1 else 'are'} there; say "
            f"--ranks {plan.gpus}, or give a smaller plan",
            code="OutOfRange",
        )
    if is_measured:
        plan = _laid(plan, nodes)
        tp = max(stage.tp for template in plan.templates for stage in template.stages)
        if tp > 1:
            raise InvalidJob(
                f"--plan {file}: a stage has TP {tp}, and this machine is measured for TP 1; give "
                "a plan of TP 1, or emulated nodes with --nodes",
                code="Unsupported",
            )
    wrong = faults(plan, workload, nodes)
    if wrong:
        raise InvalidJob(f"--plan {file}: the plan cannot run: {joined(wrong)}", code="Unsupported")
    return plan


def _check_workload(data: Mapping[str, Any], workload: Workload) -> None:
    if data.get("workload") is None:
        return
    stated = Workload.from_json(data["workload"])
    if _shape(stated.model) != _shape(workload.model):
        raise InvalidJob(
            f"the plan is for model {stated.model.name!r}, the job trains "
            f"{workload.model.name!r}; give a plan of that model",
            code="Mismatch",
        )
    if stated.global_batch != workload.global_batch:
        raise InvalidJob(
            f"the plan is for a global batch of {stated.global_batch}, the job has "
            f"{workload.global_batch}; give a plan with `--batch {workload.global_batch}`",
            code="Mismatch",
        )


def _shape(model: ModelShape) -> dict[str, Any]:
    """Sizes of a model that a plan depends on; a width of 0 stands for the usual one."""
    known = {**model.to_json(), "head_width": model.head_dim}
    return {key: value for key, value in known.items() if key not in FREE}


def _laid(plan: Plan, nodes: Composition) -> Plan:
    """The plan on the ranks of this machine, in their order."""
    free = iter([(node, gpu) for node in nodes.nodes for gpu in range(node.gpus)])
    gpu_type = nodes.nodes[0].gpu_type
    templates = tuple(
        replace(
            template, stages=tuple(replace(stage, gpu_type=gpu_type) for stage in template.stages)
        )
        for template in plan.templates
    )
    placement = []
    for placed in plan.placement:
        seats = [next(free) for _ in placed.gpus]
        gpus = tuple(gpu for _, gpu in seats)
        placement.append(replace(placed, node=seats[0][0].name, gpus=gpus))
    return replace(plan, templates=templates, placement=tuple(placement))
