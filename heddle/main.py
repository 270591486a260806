"""The command `heddle`: a table of names; nothing is imported before it is called.

Source: click's lazily loaded groups.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from planner.program import not_installed, run
from planner.wording import did_you_mean


@dataclass(frozen=True)
class Verb:
    """A command of the table.

    Attributes:
        where: its module and name.
        help: one line; it is here so that `--help` imports nothing.
        extra: of the package, which holds all that the command imports.
    """

    where: str
    help: str
    extra: str


COMMANDS: Mapping[str, Verb] = {
    "demo": Verb(
        "heddle.commands.demo:demo", "Show a job that trains while nodes come and go.", "train"
    ),
    "train": Verb("heddle.commands.train:train", "Train a HeddleJob on this machine.", "train"),
    "convert": Verb(
        "heddle.commands.convert:convert",
        "Turn another trainer's arguments into a HeddleJob.",
        "plan",
    ),
    "plan": Verb("heddle.commands.plan:plan", "Find the best plan for a set of GPUs.", "plan"),
    "cost": Verb(
        "heddle.commands.cost:cost", "Predict the step time of a plan, and show its parts.", "plan"
    ),
    "train-policy": Verb(
        "heddle.commands.train_policy:train_policy",
        "Train the policy that plans for a model.",
        "worker",
    ),
    "profile": Verb(
        "heddle.commands.profile:profile", "Measure layers and links of this machine.", "worker"
    ),
    "operator": Verb(
        "heddle_operator.command:operator", "Run the operator of a cluster.", "operator"
    ),
    "model": Verb(
        "heddle.commands.model:model", "Print the config.json of your own model.", "worker"
    ),
    "status": Verb("heddle.commands.status:status", "Show the jobs of a cluster.", "operator"),
    "logs": Verb("heddle.commands.status:logs", "Show the logs of a job's ranks.", "operator"),
    "data": Verb("heddle.commands.data:data", "Make or show a job's data set.", "worker"),
    "weights": Verb(
        "heddle.commands.weights:weights",
        "Export a job's weights, or check weights that a job starts from.",
        "worker",
    ),
    "checkpoint": Verb(
        "heddle.commands.checkpoint:checkpoint",
        "List, show, verify, export and remove checkpoints.",
        "worker",
    ),
    "worker": Verb("worker.command:worker", "Run the processes of a worker pod.", "worker"),
}
OPTIONS = {  # how the commands call the fields of a request
    field: f"--{field.replace('_', '-')}"
    for field in (
        *("budget_evaluations", "budget_s", "max_gpus", "max_price", "max_stages", "max_templates"),
        *("method", "min_holders", "min_throughput", "policy", "prices", "resume", "rollouts"),
        *("seed", "threads", "zero"),
        *("eod", "format", "output_path", "port", "prompt_key", "wire"),  # of other commands
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
        module, _, attribute = COMMANDS[cmd_name].where.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that is called; what it lacks is of its extra."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            verb = COMMANDS.get(str(ctx.invoked_subcommand))
            raise (not_installed(error, verb.extra) if verb else error) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table, without importing anything."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in COMMANDS.items()])


@click.group(cls=Table, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="heddle", message="heddle %(version)s")
def heddle() -> None:
    """Keep a training job on the best parallelism plan for the GPUs that are there now."""


def main() -> None:
    """Run `heddle`."""
    run(heddle, OPTIONS)
