"""`heddle demo`: the whole system on one machine, no GPU and no cluster needed.

The first line is printed before anything heavy is imported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heddle.cli.live import fits_live, live_options, require_keys
from heddle.cli.options import A_FILE, picture_file
from planner.model.workload import DEMO_MODELS, MOST_COUNT

if TYPE_CHECKING:
    from heddle.demo.run import DemoOptions, DemoRun


@click.command()
@live_options()
@click.option(
    "--nodes",
    type=A_FILE,
    help="YAML file: a list of nodes with name, type, gpus.",
)
@click.option(
    "--script",
    type=A_FILE,
    help="YAML file: a list of events with at_step and one of join, drain, kill.",
)
@click.option(
    "--picture",
    type=A_FILE,
    callback=picture_file,
    help="SVG file to write: plans, throughput and loss over time.",
)
@click.option(
    "--model",
    default=DEMO_MODELS[0],
    type=click.Choice(DEMO_MODELS),
    show_default=True,
    help="Model that is trained; tiny-mixtral and tiny-deepseek are mixtures of experts.",
)
@click.option(
    "--steps",
    type=click.IntRange(1, MOST_COUNT),
    help="Number of steps to train; events of later steps do not come.  [default: 205, or 2,050 "
    "with --interactive]",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=1,
    show_default=True,
    help="Seed of the weights, of the order of the data and of the search.",
)
@click.option("--rank-entry", hidden=True, help="module:function of a rank process, for tests.")
def demo(
    headless: bool,
    output: str,
    interactive: bool,
    nodes: Path | None,
    script: Path | None,
    picture: Path | None,
    model: str,
    steps: int | None,
    seed: int,
    rank_entry: str | None,
) -> None:
    """Show how a training job moves while nodes join, are drained and die.

    A small language model trains on emulated GPUs. Its state moves from rank to rank, and nothing
    restarts. The demo takes two to three minutes. It ends with exit status 1 if the losses differ
    from those of one process that trains the same steps.
    """
    require_keys(interactive)
    click.echo(
        "heddle demo: a real training job on emulated GPUs; Ctrl-C ends it and all its processes.",
        err=output == "json",
    )
    from heddle.demo.summary import is_exact

    options = _options(nodes, script, model, steps, seed, interactive)
    if rank_entry is not None:
        options = replace(options, rank_entry=rank_entry)
    is_live = not (headless or output == "json") and fits_live()
    result, run = _run(options, is_live=is_live, interactive=interactive, is_quiet=output == "json")
    _finish(result, run, output, picture)
    if not is_exact(result) and not run.has_quit:
        sys.exit(1)


def _options(
    nodes: Path | None,
    script: Path | None,
    model: str,
    steps: int | None,
    seed: int,
    interactive: bool,
) -> DemoOptions:
    from heddle.demo.job import STEPS
    from heddle.demo.run import DemoOptions
    from heddle.demo.scenario import COOLDOWNS_S, NODES, SCRIPT
    from heddle.train.script import check_nodes, check_script, load_nodes, load_script
    from planner.profiles.profile import load_profile

    composition = load_nodes(nodes) if nodes else NODES
    events = SCRIPT if nodes is None and not interactive else ()
    if script:
        events = load_script(script, composition)
    check_script(events, composition, str(script or "of the demo"))
    check_nodes(composition, events, load_profile(model))
    wanted = steps or (10 * STEPS if interactive else STEPS)
    return DemoOptions(
        nodes=composition,
        script=events,
        steps=wanted,
        seed=seed,
        is_patient=script is None,
        cooldown_s=COOLDOWNS_S.get(model, 0.0) if events is SCRIPT else 0.0,
        model=model,
    )


def _run(
    options: DemoOptions, *, is_live: bool, interactive: bool, is_quiet: bool
) -> tuple[dict[str, Any], DemoRun]:
    import asyncio

    from heddle.demo.run import DemoRun
    from heddle.local.run_folder import run_folder
    from heddle.train.screen.show import show

    with run_folder("heddle-demo-") as folder:

        def start(say: Callable[[str], None]) -> DemoRun:
            return DemoRun(options, folder, say)

        try:
            run = asyncio.run(
                show(start, is_live=is_live, interactive=interactive, is_quiet=is_quiet)
            )
        except asyncio.CancelledError:  # SIGTERM: everything has been closed
            sys.exit(143)
        return run.result(), run


def _finish(result: dict[str, Any], run: DemoRun, output: str, picture: Path | None) -> None:
    from heddle.demo.summary import TRY_NEXT, summary

    if picture is not None:
        from heddle.demo.picture import draw

        draw(result, run.recorder, picture)
    if output == "json":
        click.echo(json.dumps(result))
        return
    from heddle.cli.stalls import stall_line

    for epoch in result["epochs"]:
        change = epoch["reconfiguration"]
        if change and change["parts"]:
            name = f"epoch {epoch['epoch']} ({epoch['reason']})"
            names = ("stall_s", "parts", "restart_s", "from_kill_s")
            click.echo(stall_line(name, *(change[key] for key in names)))
    click.echo()
    for sentence in summary(result):
        click.echo(sentence)
    if picture is not None:
        click.echo(f"The picture is in {picture}.")
    click.echo("\nTry next:")
    for line in TRY_NEXT:
        click.echo(f"  {line}")
