"""`heddle data`: make a dataset, and show what is in one."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import click

from heddle.cli.options import A_FILE, NamedPath, format_option
from planner.wording import counted


@click.group()
def data() -> None:
    """Make the data set that a job trains on, or show one."""


@data.command()
@click.option(
    "--input",
    "inputs",
    multiple=True,
    type=A_FILE,
    help="Text, .jsonl or .parquet file, or folder of these; may be given several times.",
)
@click.option(
    "--builtin",
    type=click.Choice(("text",)),
    help="Text that every machine has: the sources of Python's standard library.",
)
@click.option(
    "--output-path",
    required=True,
    type=A_FILE,
    help="Prefix of the files to write, PREFIX.bin and PREFIX.idx; an older pair is replaced.",
)
@click.option(
    "--max-bytes", type=click.IntRange(1), help="Most bytes of text to read.  [default: all]"
)
@click.option(
    "--tokenizer",
    type=A_FILE,
    help="tokenizer.json of the tokenizers library, or a folder with it.  "
    "[default: each byte is a token]",
)
@click.option(
    "--eod",
    metavar="TOKEN",
    help="Token after each document, or `none`.  [default: the tokenizer's]",
)
@click.option(
    "--text-key",
    help="Key of the text in .jsonl and .parquet records.  [default: text]",
)
@click.option(
    "--prompt-key", help="Key of the prompt in records that are pairs. The prompt is not learnt."
)
@click.option("--completion-key", help="Key of the completion in records that are pairs.")
@click.option(
    "--processes",
    type=click.IntRange(1),
    help="Number of reading processes.  [default: one per usable core]",
)
@click.option(
    "--cache",
    type=NamedPath(file_okay=False, path_type=Path),
    help=(
        "Folder of kept data sets. A data set of the same input and settings is "
        "reused; a new one is kept.  [default: none]"
    ),
)
@format_option("text")
def prepare(
    inputs: tuple[Path, ...],
    builtin: str | None,
    output_path: Path,
    max_bytes: int | None,
    tokenizer: Path | None,
    eod: str | None,
    text_key: str | None,
    prompt_key: str | None,
    completion_key: str | None,
    processes: int | None,
    cache: Path | None,
    output: str,
) -> None:
    """Make a Megatron data set, a .bin and an .idx file, from text.

    The same input gives the same bytes for any number of processes. Run a stopped or killed
    command again, and it resumes.
    """
    import sysconfig

    from heddle.cli.progress import progress_bar
    from worker.data.making.prepare import prepare as write
    from worker.data.making.readers import Keys
    from worker.data.making.units import left_out

    _check_text(inputs, builtin, text_key, prompt_key, completion_key)
    if output_path.suffix in (".bin", ".idx"):
        raise click.UsageError(
            f"--output-path {output_path} is a prefix, to which .bin and .idx are added; leave out "
            f"{output_path.suffix}"
        )
    if builtin is not None:
        inputs = (Path(sysconfig.get_paths()["stdlib"]),)
    with progress_bar() as bar:
        task = bar.add_task("bytes", total=None)
        done = write(
            inputs,
            output_path,
            max_bytes,
            tokenizer,
            keys=Keys(text_key or "text", prompt_key, completion_key),
            end=eod,
            processes=processes,
            cache=cache,
            progress=lambda read, total: bar.update(task, completed=read, total=total),
        )
    others = Counter() if builtin is not None else left_out(inputs)
    if output == "json":
        click.echo(json.dumps({**dataclasses.asdict(done), "left_out": others}))
        return
    click.echo(done)
    if others:
        kinds = ", ".join(suffix or "no suffix" for suffix, _ in others.most_common(3))
        note = f"Left out {counted(others.total(), 'file')} of other kinds ({kinds})"
        click.echo(note, err=True)


def _check_text(
    inputs: tuple[Path, ...],
    builtin: str | None,
    text_key: str | None,
    prompt_key: str | None,
    completion_key: str | None,
) -> None:
    """Refuse options that do not say where the text is."""
    if bool(inputs) == (builtin is not None):
        raise click.UsageError("give exactly one of --input and --builtin")
    if text_key == "" or prompt_key == "" or completion_key == "":
        raise click.UsageError("a key of records is empty; name the key of the text")
    if (prompt_key is None) != (completion_key is None):
        raise click.UsageError("give both of --prompt-key and --completion-key, or none")
    if text_key is not None and prompt_key is not None:
        raise click.UsageError("give --text-key, or --prompt-key and --completion-key")


@data.command()
@click.argument("prefix", type=A_FILE)
@click.option(
    "--tokenizer",
    type=A_FILE,
    help="tokenizer.json that decodes the documents, or a folder with it.",
)
@click.option(
    "--documents",
    default=3,
    show_default=True,
    type=click.IntRange(0, 1000),
    help="Number of documents to show the beginning of.",
)
@format_option("text")
def show(prefix: Path, tokenizer: Path | None, documents: int, output: str) -> None:
    """Show the content of the data set PREFIX.bin and PREFIX.idx."""
    from worker.data.show import as_text, contents

    found = contents(str(prefix), tokenizer, documents)
    if output == "json":
        plain = {**dataclasses.asdict(found), "beginnings": [b._asdict() for b in found.beginnings]}
        click.echo(json.dumps(plain, indent=1))
    else:
        click.echo(as_text(found))
