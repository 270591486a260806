"""`heddle cost`: the seconds of a plan's step, stage by stage.

Invariant: `heddle plan --output json | heddle cost -` prints the same seconds bit for bit, because
both go through `planner.cost.evaluate.cost_of`, and the JSON carries composition, workload and
how its edges were evaluated.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from heddle.cli.inputs import is_placed, plan_composition, plan_workload, read_plan, read_plan_file
from heddle.cli.measured import mean_error, measured_costs
from heddle.cli.options import SHOWN, answer_options, gpu_options, require_one_reader
from heddle.cli.tables import (
    cost_sentence,
    cost_table,
    measured_table,
    memory_table,
    network_sentence,
)
from planner.cost.evaluate import PlanCost, StageCost, cost_of
from planner.cost.memory import usable_bytes
from planner.cost.simulation import simulated_seconds
from planner.errors import InvalidRequest
from planner.model.workload import Workload
from planner.plans.plan import Plan, check
from planner.profiles.generator import find_profile
from planner.profiles.profile import Profile
from planner.wording import counted


@click.command("cost", context_settings=SHOWN)
@click.argument("path", metavar="PLAN.json", required=False)
@gpu_options(otherwise="the plan's own")
@click.option(
    "--model",
    help="Name of the model, or the path of a Hugging Face model.  [default: the plan's own]",
)
@click.option(
    "--batch", type=int, help="Number of samples in a training step.  [default: the plan's own]"
)
@click.option(
    "--seq-len", type=int, help="Number of tokens in a sample.  [default: the plan's own]"
)
@click.option(
    "--placement/--no-placement",
    "placed",
    default=None,
    help=(
        "Count edges inside a node at the node's link, or as edges between nodes.  "
        "[default: the node's link, unless the plan says otherwise]"
    ),
)
@click.option(
    "--measured",
    metavar="FILE",
    help=(
        "File of measured plans to compare with: a JSON list, or one plan per line, "
        "each with `measured_s`; `-`: standard input."
    ),
)
@answer_options(picture="the plan's stages, their layers, and their load over time")
def cost(
    path: str | None,
    text: str | None,
    nodes: Path | None,
    model: str | None,
    batch: int | None,
    seq_len: int | None,
    placed: bool | None,
    measured: str | None,
    picture: Path | None,
    profiles: Path | None,
    output: str,
) -> None:
    """Evaluate a plan by formula and by simulation, stage by stage.

    PLAN.json comes from `heddle plan --output json`, or is written by hand; `-` is standard input.
    The planner places a plan without `placement`. Edges between stages on one node take the node's
    link, as in `heddle plan`. --no-placement or `"edges": "nodes"` in the plan changes that. With
    --measured the error of each plan is printed, and their mean.
    """
    if measured is not None:
        _print_measured(measured, profiles, output)
        return
    if path is None:
        raise InvalidRequest("no plan is given; give PLAN.json, or --measured FILE", code="Missing")
    require_one_reader({"PLAN.json": path, "--nodes": nodes})
    data = read_plan_file(path)
    workload = plan_workload(data, model, batch, seq_len)
    composition = plan_composition(data, text, nodes)
    profile = find_profile(workload, profiles, off_grid=True)
    chosen = check(read_plan(data, workload, composition, profile), workload, composition)
    stated = is_placed(data)
    placed = stated if placed is None else placed
    priced = cost_of(chosen, workload, composition, profile, placed=placed)
    simulated_s = simulated_seconds(priced)
    if picture is not None:
        from heddle.cli.pictures import draw_plan

        draw_plan(picture, chosen, priced, profile, workload)
    if output == "json":
        click.echo(
            json.dumps(_json(chosen, priced, simulated_s, profile, workload, placed), indent=2)
        )
        return
    click.echo(cost_table(chosen, priced))
    click.echo(f"\n{memory_table(chosen, priced, profile, workload)}")
    click.echo(f"\n{cost_sentence(priced, simulated_s, profile, placed=placed)}")
    click.echo(network_sentence(composition, profile))


def _print_measured(path: str, profiles: Path | None, output: str) -> None:
    """Print each measured plan beside its cost; no option that changes one plan counts."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = str(parameter.name)
        is_given = context.get_parameter_source(name) is not ParameterSource.DEFAULT
        if is_given and name not in ("measured", "profiles", "output"):
            raise InvalidRequest(
                f"--measured takes each plan as its file says; leave {_called(parameter)} out",
                code="Contradiction",
            )
    rows = measured_costs(path, profiles)
    if output == "json":
        data = {
            "mean_error_percent": 100 * mean_error(rows),
            "plans": [row.to_json() for row in rows],
        }
        click.echo(json.dumps(data, indent=2))
        return
    click.echo(measured_table(rows))
    click.echo(f"\nmean error {100 * mean_error(rows):.1f} % of {counted(len(rows), 'plan')}")


def _called(parameter: click.Parameter) -> str:
    """The parameter as the help calls it."""
    return (
        parameter.human_readable_name
        if isinstance(parameter, click.Argument)
        else parameter.opts[0]
    )


def _json(
    chosen: Plan,
    priced: PlanCost,
    simulated_s: float,
    profile: Profile,
    workload: Workload,
    placed: bool,
) -> dict[str, Any]:
    usable = {name: usable_bytes(workload, kind) for name, kind in profile.types.items()}
    replicas: list[dict[str, Any]] = [
        {
            "template": replica.template,
            "replica": replica.replica,
            "micro_batches": replica.micro_batches,
            "pipeline_s": replica.pipeline_s,
            "stages": [
                _stage_json(stage, usable[kind.gpu_type])
                for stage, kind in zip(
                    replica.stages, chosen.templates[replica.template].stages, strict=True
                )
            ],
        }
        for replica in priced.replicas
    ]
    return {
        "digest": chosen.digest,
        "profile_digest": profile.digest,
        "profile_origin": profile.origin,
        "link_origin": profile.link_origin,
        "edges": "placement" if placed else "nodes",
        "iteration_s": priced.iteration_s,
        "simulated_s": simulated_s,
        "throughput_samples_s": priced.throughput_samples_s,
        "sync_s": priced.sync_s,
        "optimizer_s": priced.optimizer_s,
        "broadcast_s": priced.broadcast_s,
        "bubble": priced.bubble,
        "peak_memory_bytes": priced.peak_memory_bytes,
        "fits": all(stage["fits"] for replica in replicas for stage in replica["stages"]),
        "replicas": replicas,
    }


def _stage_json(stage: StageCost, usable_bytes: int) -> dict[str, Any]:
    return {
        "stage_s": stage.time_s,
        "forward_s": stage.forward_s,
        "backward_s": stage.backward_s,
        "p2p_s": stage.p2p_s,
        "compute_s": stage.work.forward_s + stage.work.backward_s,
        "tp_communication_s": stage.work.communication_s,
        "recompute_s": stage.work.recompute_s,
        "peak_memory_bytes": stage.peak_memory_bytes,
        "usable_bytes": usable_bytes,
        "fits": stage.peak_memory_bytes <= usable_bytes,
        "memory_bytes": asdict(stage.memory),
    }
