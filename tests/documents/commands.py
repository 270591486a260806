"""Renders docs/reference/commands.md from the commands themselves; `make generate` runs it.

Invariant: the same commands give the same page, on every machine.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from heddle.main import heddle

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
HEAD = """# Commands

Every command of `heddle` with its options, as `heddle COMMAND --help` prints them.
`heddle --version` prints the version. [errors.md](errors.md) lists the exit codes.

Generated from the commands by `make generate`.
"""


def commands(context: click.Context) -> Iterator[click.Context]:
    """A command and all below it that people may call, each in a context of its own."""
    command = context.command
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                below_it = click.Context(
                    below, parent=context, info_name=name, **below.context_settings
                )
                yield from commands(below_it)


def section(context: click.Context) -> Iterator[str]:
    """The lines about one command: usage, purpose and a table of its options."""
    command = context.command
    usage = " ".join(command.collect_usage_pieces(context))
    yield from ("", f"## {context.command_path}", "", f"`{context.command_path} {usage}`", "")
    for paragraph in re.split(r"\n\s*\n", (command.help or "").strip()):
        text = inspect.cleandoc(paragraph.replace("\b", ""))
        if "\b" in paragraph:  # click leaves the lines of such a paragraph as they are
            yield from ("```text", text, "```", "")
        else:
            yield from (*textwrap.wrap(text, 120, break_on_hyphens=False), "")
    rows = [
        record
        for option in command.params
        if isinstance(option, click.Option) and (record := option.get_help_record(context))
    ]
    if rows:
        yield from ("| option | meaning |", "| --- | --- |")
        yield from (f"| `{cell(names)}` | {cell(told)} |" for names, told in rows)


def cell(text: str) -> str:
    """A text in one cell of a table."""
    return " ".join(text.replace(" RANGE", "").split()).replace("|", "\\|")


def page() -> str:
    """The whole document."""
    top = click.Context(heddle, info_name="heddle")
    lines = [line for context in commands(top) for line in section(context)]
    return HEAD + "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
