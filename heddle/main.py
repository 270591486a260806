"""The command `heddle`: a table of names; nothing is imported before it is called.

Source: click's lazily loaded groups.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import click

from planner.program import run
from planner.wording import did_you_mean

# name: (where its command is, one line of help); the help is here so that `--help` imports nothing.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("heddle.commands.demo:demo", "Show a job that trains while nodes come and go."),
    "train": ("heddle.commands.train:train", "Train a HeddleJob on this machine."),
    "convert": (
        "heddle.commands.convert:convert",
        "Turn another trainer's arguments into a HeddleJob.",
    ),
    "plan": ("heddle.commands.plan:plan", "Find the best plan for a set of GPUs."),
    "cost": ("heddle.commands.cost:cost", "Predict the step time of a plan, and show its parts."),
    "train-policy": (
        "heddle.commands.train_policy:train_policy",
        "Train the policy that plans for a model.",
    ),
    "profile": ("heddle.commands.profile:profile", "Measure layers and links of this machine."),
    "operator": ("heddle_operator.command:operator", "Run the operator of a cluster."),
    "model": ("heddle.commands.model:model", "Print the config.json of your own model."),
    "status": ("heddle.commands.status:status", "Show the jobs of a cluster."),
    "logs": ("heddle.commands.status:logs", "Show the logs of a job's ranks."),
    "data": ("heddle.commands.data:data", "Make or show a job's data set."),
    "weights": (
        "heddle.commands.weights:weights",
        "Export a job's weights, or check weights that a job starts from.",
    ),
    "checkpoint": (
        "heddle.commands.checkpoint:checkpoint",
        "List, show, verify, export and remove checkpoints.",
    ),
    "worker": ("worker.command:worker", "Run the processes of a worker pod."),
}
OPTIONS = {  # how the commands call the fields of a request
    field: f"--{field.replace('_', '-')}"
    for field in (
        *("budget_evaluations", "budget_s", "max_gpus", "max_price", "max_stages", "max_templates"),
        *("method", "min_holders", "min_throughput", "policy", "prices", "resume", "rollouts"),
        *("seed", "threads", "zero"),
    )
}


class Table(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the table's order."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command of that name."""
        if cmd_name not in COMMANDS:
            if not cmd_name.startswith("-") and not ctx.resilient_parsing:
                near = did_you_mean(cmd_name, COMMANDS)
                raise click.UsageError(f"there is no command {cmd_name!r}{near}", ctx)
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table, without importing anything."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in COMMANDS])


@click.group(cls=Table, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="heddle", message="heddle %(version)s")
def heddle() -> None:
    """Keep a training job on the best parallelism plan for the GPUs that are there now."""


def main() -> None:
    """Run `heddle`."""
    run(heddle, OPTIONS)
