"""`heddle plan` and `heddle price`: ask for a plan, or what a plan costs.

Invariant: `heddle plan --output json | heddle price -` prints the same seconds bit for bit, because
both go through `planner.cost.price` and the JSON carries composition and workload.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

import click
import yaml

from planner import cost
from planner.composition import Composition
from planner.cost import Price
from planner.errors import InvalidComposition, InvalidPlan, InvalidWorkload
from planner.plan import Plan, check
from planner.profile import Profile, load_profile
from planner.request import (
    DEFAULT_EVALUATIONS,
    DEFAULT_MAX_TEMPLATES,
    PlanAnswer,
    PlanRequest,
)
from planner.search import search
from planner.simulation import simulate_price
from planner.tables import plan_table, price_table
from planner.workload import Workload, find_model

PLAN_HELP = """Find the best plan for a set of GPUs.

Say what there is, either as text (TYPE=NODESxGPUS) or as a file with one node per row:

    heddle plan --composition demo-fast=1x2+1x3
    heddle plan --nodes nodes.yaml --min-holders 2 --output json

Give the running plan with --current, and the answer is never worse and moves few bytes.
"""
Output = Literal["table", "json"]


def _composition(text: str | None, file: Path | None) -> Composition | None:
    """The composition that the options name, or None if they name none."""
    if text is not None and file is not None:
        raise InvalidComposition("both --composition and --nodes are given; give one of them")
    if text is not None:
        return Composition.from_text(text)
    if file is None:
        return None
    try:
        return Composition.from_json(yaml.safe_load(file.read_text()))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InvalidComposition(f"nodes file {file} cannot be read: {reason}") from None


def _read_plan(path: str) -> dict[str, Any]:
    """The JSON object of a plan file, or of standard input for `-`."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text()
        data = json.loads(text)
    except (OSError, ValueError) as error:
        raise InvalidPlan(
            f"plan {path} cannot be read: {error}; `heddle plan --output json` prints one"
        ) from None
    if not isinstance(data, dict):
        raise InvalidPlan(f"plan {path} must hold one JSON object, found {type(data).__name__}")
    return data


@click.command("plan", help=PLAN_HELP.replace("\n    heddle", "\n\b\n    heddle", 1))
@click.option("--model", default="tiny-llama", show_default=True, help="Name of the model.")
@click.option("--composition", "text", help="GPUs, for example h100=8x4,a100-40=10x4+12x1.")
@click.option(
    "--nodes",
    type=click.Path(path_type=Path),
    help="YAML file: a list of nodes with name, type, gpus.",
)
@click.option("--batch", default=32, show_default=True, help="Global batch, in samples.")
@click.option("--seq-len", default=128, show_default=True, help="Tokens a sample.")
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
    seq_len: int,
    current: str | None,
    exclude: tuple[str, ...],
    profiles: Path | None,
    output: Output,
    **limits: Any,
) -> None:
    """Search a plan and print it."""
    composition = _composition(text, nodes)
    if composition is None:
        click.echo(click.get_current_context().get_help())
        return
    unknown = sorted(set(exclude) - {node.name for node in composition.nodes})
    if unknown:
        raise InvalidComposition(
            f"--exclude {unknown[0]}: there is no such node; the nodes are "
            f"{', '.join(node.name for node in composition.nodes)}"
        )
    request = PlanRequest(
        Workload(find_model(model), batch, seq_len),
        composition.without(exclude),
        None if current is None else Plan.from_json(_read_plan(current)),
        **limits,
    )
    profile = load_profile(model, profiles)
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
        f"{answer.holders_min} node(s), profile {profile.origin}"
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


@click.command("price")
@click.argument("path", metavar="PLAN.json")
@click.option("--composition", "text", help="GPUs; the plan's own if not given.")
@click.option("--nodes", type=click.Path(path_type=Path), help="YAML file: a list of nodes.")
@click.option("--model", help="Name of the model; the plan's own if not given.")
@click.option("--batch", type=int, help="Global batch; the plan's own if not given.")
@click.option("--seq-len", type=int, help="Tokens a sample; the plan's own if not given.")
@click.option("--profile", "profiles", type=click.Path(path_type=Path), help="Folder of profiles.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def price(
    path: str,
    text: str | None,
    nodes: Path | None,
    model: str | None,
    batch: int | None,
    seq_len: int | None,
    profiles: Path | None,
    output: Output,
) -> None:
    """Price a plan by formula and by simulation, stage by stage.

    PLAN.json is what `heddle plan --output json` prints; `-` reads it from standard input.
    """
    data = _read_plan(path)
    workload = _workload(data.get("workload"), model, batch, seq_len)
    composition = _composition(text, nodes)
    if composition is None:
        if "composition" not in data:
            raise InvalidComposition(
                "the plan does not say on which nodes it runs; give --composition or --nodes"
            )
        composition = Composition.from_json(data["composition"])
    chosen = check(Plan.from_json(data), workload, composition)
    profile = load_profile(workload.model.name, profiles)
    priced = cost.price(chosen, workload, composition, profile)
    simulated_s = simulate_price(priced).step_s
    if output == "json":
        click.echo(json.dumps(_price_json(chosen, priced, simulated_s, profile), indent=2))
        return
    click.echo(price_table(chosen, priced, profile))
    click.echo(
        f"\nformula {priced.iteration_s * 1e3:.1f} ms, simulated {simulated_s * 1e3:.1f} ms; "
        f"{priced.throughput_samples_s:.1f} samples/s; gradient sum {priced.sync_s * 1e3:.1f} ms, "
        f"optimizer {priced.optimizer_s * 1e3:.1f} ms, bubble {priced.bubble:.0%}; "
        f"profile {profile.origin}"
    )


def _workload(stated: Any, model: str | None, batch: int | None, seq_len: int | None) -> Workload:
    """The workload of the options, and of the plan's JSON where they say nothing."""
    stated = stated if isinstance(stated, dict) else {}
    shape = stated.get("model")
    name = model or (shape.get("name") if isinstance(shape, dict) else None) or "tiny-llama"
    samples = batch if batch is not None else stated.get("global_batch", 32)
    tokens = seq_len if seq_len is not None else stated.get("sequence_length", 128)
    if not isinstance(name, str) or not isinstance(samples, int) or not isinstance(tokens, int):
        raise InvalidWorkload(
            "the plan's workload must hold model.name, global_batch and sequence_length; "
            "or give --model, --batch and --seq-len"
        )
    return Workload(find_model(name), samples, tokens)


def _price_json(
    chosen: Plan, priced: Price, simulated_s: float, profile: Profile
) -> dict[str, Any]:
    return {
        "digest": chosen.digest,
        "profile_digest": profile.digest,
        "profile_origin": profile.origin,
        "iteration_s": priced.iteration_s,
        "simulated_s": simulated_s,
        "throughput_samples_s": priced.throughput_samples_s,
        "sync_s": priced.sync_s,
        "optimizer_s": priced.optimizer_s,
        "bubble": priced.bubble,
        "peak_memory_bytes": priced.peak_memory_bytes,
        "replicas": [
            {
                "template": replica.template,
                "replica": replica.replica,
                "micro_batches": replica.micro_batches,
                "pipeline_s": replica.pipeline_s,
                "stages": [
                    {
                        "stage_s": stage.time_s,
                        "forward_s": stage.forward_s,
                        "backward_s": stage.backward_s,
                        "p2p_s": stage.p2p_s,
                        "peak_memory_bytes": stage.peak_memory_bytes,
                    }
                    for stage in replica.stages
                ],
            }
            for replica in priced.replicas
        ],
    }
