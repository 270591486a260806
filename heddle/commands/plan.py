"""`heddle plan`: ask for a plan, compare two, draw one, or hand one to another trainer.

Invariant: equal requests print equal plans, unless a budget in seconds cuts the search short.
"""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from heddle.cli.inputs import (
    read_composition,
    read_current,
    read_max_gpus,
    read_plan_file,
    read_prices,
)
from heddle.cli.interruption import interruption
from heddle.cli.options import (
    A_FILE,
    ABOVE_0,
    AT_LEAST_1,
    MODEL_HELP,
    SHOWN,
    ZERO_STAGE,
    Finite,
    answer_options,
    effort_options,
    gpu_options,
    require_one_reader,
)
from heddle.cli.tables import answer_sentences, plan_table
from planner.api import POLICY_METHODS
from planner.api import answer as answer_of
from planner.cluster.composition import Composition
from planner.cost.money import require_prices, with_prices
from planner.errors import Infeasible, InvalidComposition, InvalidRequest
from planner.model.catalogue import find_model
from planner.model.workload import RECOMPUTATIONS, GpuWire, MemoryRule, Precision, usual_workload
from planner.profiles.generator import find_profile
from planner.profiles.profile import Profile
from planner.program import INTERRUPTED
from planner.request import (
    DEFAULT_MAX_TEMPLATES,
    Method,
    Objective,
    PlanAnswer,
    PlanRequest,
)
from planner.wording import counted, did_you_mean

PLAN_HELP = """Find the best plan for a set of GPUs.

Give the GPUs as text (TYPE=NODESxGPUS) or as a file with one node per row:

    heddle plan --composition demo-fast=1x2+1x3
    heddle plan --model llama3-8b --composition h100=4x8,a100-40=4x4+2x1
    heddle plan --nodes nodes.yaml --min-holders 2 --output json

With --current the answer is never worse than the running plan, and moves few bytes.
docs/planner.md shows all options by example.
"""
SEARCHES: tuple[Method, ...] = ("auto", "search", "columns")  # what a budget ends
METHODS = [name for name in get_args(Method) if name != "random"]  # that one is for measuring
FEW_COLLECTIONS = 100_000  # objects that are made between two of them
USES = {  # of options that some methods make nothing of
    "--rollouts": ("policy",),
    "--policy": POLICY_METHODS,
    "--budget-s": SEARCHES,
    "--budget-evaluations": SEARCHES,
    "--threads": SEARCHES,
}
SETTINGS = (
    "global_batch",
    "sequence_length",
    "precision",
    "zero",
    "recompute",
    "sequence_parallel",
    "memory",
    "wire",
)


@click.command(
    "plan", help=PLAN_HELP.replace("\n    heddle", "\n\b\n    heddle", 1), context_settings=SHOWN
)
@click.option("--model", default="tiny-llama", help=MODEL_HELP)
@gpu_options()
@click.option(
    "--batch",
    "global_batch",
    type=int,
    help="Number of samples in a training step.  [default: 2048; tiny models: 20]",
)
@click.option(
    "--seq-len",
    "sequence_length",
    type=int,
    help="Number of tokens in a sample.  [default: 2048; tiny models: 128]",
)
@click.option(
    "--precision",
    type=click.Choice(get_args(Precision)),
    help="Precision of weights and activations.  [default: fp16; tiny models: fp32]",
)
@click.option(
    "--zero",
    type=ZERO_STAGE,
    default="off",
    help=(
        "ZeRO: stage1 cuts the optimizer's state over the replicas of a template. auto does so "
        "where no plan without it fits in memory. 0 and 1 mean off and stage1."
    ),
)
@click.option(
    "--recompute",
    type=click.Choice(RECOMPUTATIONS),
    help=(
        "Activations that the backward pass recomputes; auto chooses for each stage.  "
        "[default: the model's]"
    ),
)
@click.option("--sequence-parallel", is_flag=True, help="Use Megatron's sequence parallelism.")
@click.option(
    "--memory",
    type=click.Choice(get_args(MemoryRule)),
    default="worker",
    help="Rule that counts memory: what Heddle's worker allocates, as for jobs, or the paper's, as "
    "in its figures.",
)
@click.option(
    "--wire",
    type=click.Choice(get_args(GpuWire)),
    default="nccl",
    help="Wire between GPUs: NCCL, or staged through memory of their hosts where it cannot be had.",
)
@click.option("--no-ep", is_flag=True, help="Do not use expert parallelism.")
@click.option(
    "--objective",
    type=click.Choice(get_args(Objective)),
    default="throughput",
    help="Objective: most samples per second, or least money per sample.",
)
@click.option(
    "--prices", type=A_FILE, help="YAML or JSON file with the money per GPU-hour of each GPU type."
)
@click.option(
    "--min-throughput", type=ABOVE_0, help="Least throughput of the plan, in samples per second."
)
@click.option(
    "--max-price", type=Finite(0), help="Highest cost of the plan's nodes, in money per hour."
)
@click.option(
    "--max-gpus",
    multiple=True,
    metavar="N or TYPE=N",
    help=("Most GPUs of the plan, in total or of a GPU type; may be given several times."),
)
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="auto",
    help="Search method; docs/planner.md describes each.",
)
@effort_options
@click.option(
    "--max-stages",
    type=AT_LEAST_1,
    help="Most stages of a pipeline, up to 32.  [default: min(layers, 24)]",
)
@click.option(
    "--max-templates",
    type=AT_LEAST_1,
    default=DEFAULT_MAX_TEMPLATES,
    help="Most templates of a plan, up to 8.",
)
@click.option(
    "--min-holders",
    type=AT_LEAST_1,
    default=1,
    help=(
        "Number of nodes that hold each piece of the state. A note says where that is impossible."
    ),
)
@click.option(
    "--current", metavar="PLAN.json", help="File with the running plan; `-`: standard input."
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="NODE",
    help="Plan without this node; may be given several times.",
)
@click.option(
    "--marginal",
    "wants_marginal",
    is_flag=True,
    help="Report the throughput that one more node of each type adds.",
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the search.")
@answer_options(picture="the plan's stages, their layers, and their load over time")
@click.option(
    "--export",
    type=click.Choice(["megatron"]),
    help="Print the launch arguments of another trainer instead.",
)
@click.option(
    "--diff",
    type=str,
    nargs=2,
    metavar="A.json B.json",
    help="Compare plan A with plan B, and search nothing.",
)
def plan(
    text: str | None,
    nodes: Path | None,
    exclude: tuple[str, ...],
    profiles: Path | None,
    output: str,
    picture: Path | None,
    export: str | None,
    diff: tuple[str, str] | None,
    **wishes: Any,
) -> int:
    """Search a plan and print it."""
    given = _given()
    if not given:
        click.echo(click.get_current_context().get_help())
        return 0
    if diff is not None:
        _print_diff(diff, output, given)
        return 0
    if export is not None and output == "json":
        raise InvalidRequest(
            "--export prints launch arguments, --output json a plan; give one of them",
            code="Contradiction",
        )
    _require_use(wishes["method"], given)
    inputs = {"--nodes": nodes, "--current": wishes["current"], "--prices": wishes["prices"]}
    require_one_reader(inputs)
    composition = read_composition(text, nodes)
    if composition is None:
        raise InvalidComposition(
            "no GPUs are given; give --composition TYPE=NODESxGPUS or --nodes FILE",
            field="composition",
            code="Missing",
        )
    request = request_of(_without(composition, exclude), wishes)
    profile = find_profile(request.workload, profiles)
    _say_unprofiled(request.composition, profile, has_model="--model" in given)
    from planner.compilation import warm_up  # only now, as numba is slow to import

    warm_up()
    gc.freeze()  # what is imported stays: looking through it takes 50 ms of the search
    gc.set_threshold(FEW_COLLECTIONS)
    with interruption() as interrupted:
        found = answer_of(request, profile, interrupted=interrupted)
    if picture is not None:
        from heddle.cli.pictures import draw_plan

        draw_plan(picture, found.plan, found.cost, profile, request.workload)
    _print_answer(found, request, profile, export or output)
    if not interrupted.is_wanted:
        return 0
    click.echo("The search was interrupted; this is the best plan that it found.", err=True)
    return INTERRUPTED


def _print_answer(found: PlanAnswer, request: PlanRequest, profile: Profile, form: str) -> None:
    """Print a plan as a table, as JSON, or as the arguments of Megatron-LM."""
    if form == "megatron":
        from heddle.cli.megatron import megatron_arguments

        click.echo(megatron_arguments(found.plan, request.workload))
    elif form == "json":
        click.echo(json.dumps(found.to_json(request, profile), indent=2))
    else:
        click.echo(plan_table(found.plan, found.cost))
        click.echo(f"\n{answer_sentences(found, request, profile)}")


def _given() -> set[str]:
    """The options that the user wrote, as `--name`."""
    context = click.get_current_context()
    return {
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in context.params
        and context.get_parameter_source(parameter.name) is not ParameterSource.DEFAULT
    }


def _say_unprofiled(composition: Composition, profile: Profile, *, has_model: bool) -> None:
    """Say before the search, on stderr, which nodes cannot be part of any plan; refuse if none."""
    is_idle = not set(composition.gpu_types) & set(profile.types)
    for name in composition.gpu_types:
        if name in profile.types:
            continue
        near = did_you_mean(name, profile.types)
        lacking = f"GPU type {name!r} has no profile for {profile.model}{near}; "
        if is_idle:
            known = f"profiled are {', '.join(sorted(profile.types))}"
            default = "--model is not given, and the default is tiny-llama: give --model"
            is_usual = has_model or bool(near)
            raise Infeasible(lacking + (known if is_usual else f"{known}; {default}"))
        sizes = [node.gpus for node in composition.nodes if node.gpu_type == name]
        there = f"{counted(len(sizes), 'node')} of it with {counted(sum(sizes), 'GPU')}"
        click.echo(f"Warning: {lacking}{there} will be idle", err=True)


def _require_use(method: Method, given: set[str]) -> None:
    """Refuse options that the method, or another option, makes nothing of."""
    for option, methods in USES.items():
        if option in given and method not in methods:
            raise InvalidRequest(
                f"{option} has no effect with --method {method}; it counts for "
                f"{', '.join(methods)} only: leave it out",
                field=option,
                code="Contradiction",
            )
    if {"--threads", "--budget-evaluations"} <= given:
        raise InvalidRequest(
            "--threads has no effect with --budget-evaluations, which searches on one core to find "
            "the same plan every time; leave one of them out",
            field="--threads",
            code="Contradiction",
        )


def _without(composition: Composition, exclude: tuple[str, ...]) -> Composition:
    """The composition without the nodes that are to be left out; each of them must be there."""
    names = [node.name for node in composition.nodes]
    unknown = sorted(set(exclude) - set(names))
    if unknown:
        raise InvalidComposition(
            f"--exclude {unknown[0]}: there is no such node; the nodes are {', '.join(names)}",
            field="exclude",
            code="Unknown",
        )
    left = composition.without(exclude)
    if exclude and not left.nodes:
        raise InvalidComposition(
            "--exclude leaves no node; leave one of them in", field="exclude", code="OutOfRange"
        )
    return left


def request_of(composition: Composition, wishes: dict[str, Any]) -> PlanRequest:
    """Request of the options for these nodes.

    Raises:
        HeddleError: an option is wrong, or two contradict each other.
    """
    usual = usual_workload(find_model(wishes.pop("model")))
    settings = {name: wishes.pop(name) for name in SETTINGS}
    zero = settings["zero"]
    settings["zero"] = int(zero == "Stage1")
    workload = replace(usual, **{name: one for name, one in settings.items() if one is not None})
    max_gpus = read_max_gpus(wishes.pop("max_gpus"), composition)
    prices, current = wishes.pop("prices"), wishes.pop("current")
    if prices is not None:
        composition = with_prices(composition, read_prices(prices))
        require_prices(composition)
    return PlanRequest(
        workload=workload,
        composition=composition,
        current=None if current is None else read_current(current, workload),
        max_gpus=max_gpus,
        allow_ep=not wishes.pop("no_ep"),
        zero_where_needed=zero == "Auto",
        **wishes,
    )


def _print_diff(paths: tuple[str, str], output: str, given: set[str]) -> None:
    """Print what changes from one plan file to the other; no further option has a meaning."""
    others = sorted(given - {"--diff", "--output"})
    if others:
        raise InvalidRequest(
            f"--diff compares two plans that exist; leave {others[0]} out",
            field=others[0],
            code="Contradiction",
        )
    from heddle.cli.tables import diff_table
    from planner.plans.diff import compare

    found = compare(*(read_plan_file(path) for path in paths))
    if output == "json":
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        click.echo(diff_table(found))
