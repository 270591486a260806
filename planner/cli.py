"""`heddle plan`: ask for a plan.

Invariant: equal requests print equal plans, unless a budget in seconds cuts the search short.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, get_args

import click

from planner.command_input import read_composition, read_plan_file, settings_of
from planner.errors import InvalidComposition
from planner.generator import find_profile
from planner.models import find_model
from planner.plan import Plan
from planner.profile import Profile
from planner.request import (
    DEFAULT_EVALUATIONS,
    DEFAULT_MAX_TEMPLATES,
    PlanAnswer,
    PlanRequest,
)
from planner.search import search
from planner.tables import plan_table
from planner.workload import RECOMPUTATIONS, Precision, Recompute, Workload

PLAN_HELP = """Find the best plan for a set of GPUs.

Say what there is, either as text (TYPE=NODESxGPUS) or as a file with one node per row:

    heddle plan --composition demo-fast=1x2+1x3
    heddle plan --nodes nodes.yaml --min-holders 2 --output json

Give the running plan with --current, and the answer is never worse and moves few bytes.
"""
Output = Literal["table", "json"]


@click.command("plan", help=PLAN_HELP.replace("\n    heddle", "\n\b\n    heddle", 1))
@click.option(
    "--model",
    default="tiny-llama",
    show_default=True,
    help="Name of the model, or the path of a Hugging Face config.json.",
)
@click.option("--composition", "text", help="GPUs, for example h100=8x4,a100-40=10x4+12x1.")
@click.option(
    "--nodes",
    type=click.Path(path_type=Path),
    help="YAML file: a list of nodes with name, type, gpus.",
)
@click.option("--batch", default=20, show_default=True, help="Global batch, in samples.")
@click.option("--seq-len", type=int, help="Tokens a sample.  [default: 2048; tiny-llama: 128]")
@click.option(
    "--precision",
    type=click.Choice(get_args(Precision)),
    help="Of weights and activations.  [default: fp16; tiny-llama: fp32]",
)
@click.option("--zero", type=click.Choice(["0", "1"]), default="0", help="ZeRO stage.")
@click.option(
    "--recompute",
    type=click.Choice(RECOMPUTATIONS),
    help="What the backward pass computes again.  [default: the model's]",
)
@click.option("--sequence-parallel", is_flag=True, help="Megatron's sequence parallelism.")
@click.option("--current", help="JSON file of the plan that runs now.")
@click.option("--seed", default=0, show_default=True, help="Of the local search.")
@click.option(
    "--min-holders",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Nodes on which each piece of the state must live.",
)
@click.option("--budget-s", type=click.FloatRange(0), help="Stop after so many seconds.")
@click.option(
    "--budget-evaluations",
    default=DEFAULT_EVALUATIONS,
    show_default=True,
    type=click.IntRange(1),
    help="Stop after so many priced plans.",
)
@click.option("--d-max", type=click.IntRange(1), help="Most stages.  [default: min(layers, 24)]")
@click.option(
    "--max-templates",
    default=DEFAULT_MAX_TEMPLATES,
    show_default=True,
    type=click.IntRange(1),
    help="Most templates of a plan.",
)
@click.option("--exclude", multiple=True, metavar="NODE", help="Plan without this node.")
@click.option("--profile", "profiles", type=click.Path(path_type=Path), help="Folder of profiles.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def plan(
    model: str,
    text: str | None,
    nodes: Path | None,
    batch: int,
    seq_len: int | None,
    precision: Precision | None,
    zero: str,
    recompute: Recompute | None,
    sequence_parallel: bool,
    current: str | None,
    exclude: tuple[str, ...],
    profiles: Path | None,
    output: Output,
    **limits: Any,
) -> None:
    """Search a plan and print it."""
    composition = read_composition(text, nodes)
    if composition is None:
        click.echo(click.get_current_context().get_help())
        return
    unknown = sorted(set(exclude) - {node.name for node in composition.nodes})
    if unknown:
        raise InvalidComposition(
            f"--exclude {unknown[0]}: there is no such node; the nodes are "
            f"{', '.join(node.name for node in composition.nodes)}"
        )
    shape = find_model(model)
    length, usual = settings_of(shape)
    workload = Workload(
        shape,
        batch,
        length if seq_len is None else seq_len,
        precision or usual,  # type: ignore[arg-type]
        int(zero),
        recompute or shape.recompute,  # type: ignore[arg-type]
        sequence_parallel,
    )
    request = PlanRequest(
        workload,
        composition.without(exclude),
        None if current is None else Plan.from_json(read_plan_file(current)),
        **limits,
    )
    profile = find_profile(workload, profiles)
    answer = search(request, profile)
    if output == "json":
        click.echo(json.dumps(answer.to_json(request, profile), indent=2))
    else:
        _print_answer(answer, request, profile)


def _print_answer(answer: PlanAnswer, request: PlanRequest, profile: Profile) -> None:
    click.echo(plan_table(answer.plan, answer.price))
    click.echo(
        f"\n{answer.throughput_samples_s:.1f} samples/s, iteration "
        f"{answer.price.iteration_s * 1e3:.0f} ms (simulated {answer.simulation_s * 1e3:.0f} ms), "
        f"{answer.plan.gpus} of {request.composition.gpus} GPUs, every piece on at least "
        f"{answer.holders_min} node(s), profile {profile.origin}, links {profile.link_origin}"
    )
    if answer.bytes_to_move is not None:
        click.echo(f"{answer.bytes_to_move:,} bytes move from the current plan")
    way = ", ".join(
        f"{stage.name} {stage.throughput_samples_s:.1f} ({stage.evaluations} plans)"
        for stage in answer.stages_of_search
    )
    click.echo(f"found in {answer.planning_s * 1e3:.0f} ms: {way}")
    for note in answer.notes:
        click.echo(f"note: {note}")
