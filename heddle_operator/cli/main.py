"""The command `heddle`: a table of names; nothing is imported before it is called.

Source: click's lazily loaded groups.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import click

from planner.cli.command import run

# name: (where its command is, one line of help); the help is here so that `--help` imports nothing.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("heddle_operator.demo.cli:demo", "Watch a job move while nodes join, leave and die."),
    "plan": ("planner.cli.plan:plan", "Search the best plan for a set of GPUs."),
    "price": ("planner.cli.price:price", "Price a plan: seconds, memory, bubble."),
    "train-policy": ("planner.cli.train:train_policy", "Train the learned planner of a model."),
    "evaluate": (
        "planner.cli.evaluate:evaluate_command",
        "Measure the planner's methods on compositions.",
    ),
    "profile": ("worker.profile.cli:profile", "Measure layers and links of this machine."),
    "validate-cost": (
        "planner.cli.validate:validate_cost",
        "Price measured plans; say the errors.",
    ),
    "operator": ("heddle_operator.cli.operator:operator", "What runs in a cluster once."),
    "status": ("heddle_operator.cli.status:status", "Show the jobs of a cluster."),
    "logs": ("heddle_operator.cli.status:logs", "Show the logs of a job's ranks."),
    "data": ("worker.cli:data", "Make datasets."),
    "worker": ("worker.cli:worker", "What runs in a worker pod."),
}


class Table(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the table's order."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command of that name."""
        del ctx
        if cmd_name not in COMMANDS:
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
def heddle() -> None:
    """Keep a training job on the best parallelism plan for the GPUs that are there now."""


def main() -> None:
    """Run `heddle`."""
    run(heddle)
