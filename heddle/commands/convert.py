"""`heddle convert megatron`: a HeddleJob from the arguments of another trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from heddle.cli.options import NamedPath

HELP = """Print the HeddleJob of a run of Megatron-LM or Megatron-DeepSpeed.

\b
    heddle convert megatron --args-file pretrain.sh --deepspeed ds_config.json > job.yaml
    heddle convert megatron -- --num-layers 24 --hidden-size 2048 ...

Arguments without a counterpart are listed on standard error, with the reason.
"""


@click.group()
def convert() -> None:
    """Turn another trainer's arguments into a HeddleJob."""


@convert.command(
    help=HELP,
    short_help="Print the HeddleJob of a run of Megatron.",
    context_settings={"ignore_unknown_options": True},
)
@click.option(
    "--args-file",
    type=NamedPath(exists=True, dir_okay=False, path_type=Path),
    help="Launch script, or a file with the arguments.",
)
@click.option(
    "--deepspeed",
    "ds_config",
    type=NamedPath(exists=True, dir_okay=False, path_type=Path),
    help="DeepSpeed's configuration, ds_config.json.",
)
@click.option("--name", default="converted", show_default=True, help="Name of the job.")
@click.option(
    "--model-folder",
    type=NamedPath(file_okay=False, path_type=Path),
    help=(
        "Folder for the model's config.json, if Heddle has no model of that shape.  "
        "[default: NAME-model]"
    ),
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def megatron(
    args_file: Path | None,
    ds_config: Path | None,
    name: str,
    model_folder: Path | None,
    arguments: tuple[str, ...],
) -> None:
    """Print the HeddleJob of a run of Megatron."""
    import yaml

    from heddle.convert.megatron import convert as turn
    from heddle.convert.script import read_script
    from heddle.convert.words import read_words
    from heddle_operator.apis.errors import InvalidArguments
    from heddle_operator.apis.heddlejob import load_job

    script = read_script(_text(args_file)) if args_file else None
    given = script.words if script else ()
    words = read_words([*given, *arguments], script.reasons if script else {})
    if words.unknown and not words.values:
        raise InvalidArguments(
            f"Heddle knows no argument {words.unknown[0]} of Megatron; "
            "docs/megatron.md lists all that it reads",
            field=words.unknown[0].split()[0],
            code="Unknown",
        )
    if not words.values:
        raise InvalidArguments(_nothing_given(args_file, arguments), code="Missing")
    folder = model_folder or Path(f"{name}-model")
    found = turn(words, _read(ds_config) if ds_config else {}, name, str(folder.resolve()))
    load_job(found.job, found.config)
    if found.config is not None:
        _write(folder, json.dumps(found.config, indent=2) + "\n")
        click.echo(f"The model is described in {folder / 'config.json'}.", err=True)
        click.echo("On Kubernetes spec.model.configRef names a ConfigMap of it.", err=True)
    for note in found.notes:
        said = note if note.startswith("training.") else f"left out: {note}"
        click.echo(said, err=True)
    click.echo(yaml.safe_dump(found.job, sort_keys=False), nl=False)


def _nothing_given(args_file: Path | None, arguments: tuple[str, ...]) -> str:
    if args_file is not None:
        return f"{args_file} holds no arguments of Megatron; name its launch script"
    bare = next((word for word in arguments if not word.startswith("-")), None)
    if bare is not None:
        return f"{bare} is no argument of Megatron; a launch script is given by --args-file {bare}"
    return "no arguments of Megatron were given; give them, or --args-file"


def _write(folder: Path, config: str) -> None:
    from heddle_operator.apis.errors import InvalidArguments
    from planner.wording import reason_of

    path = folder / "config.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.read_text(encoding="utf-8") != config:
            raise InvalidArguments(
                f"{path} describes another model; name another folder with --model-folder",
                code="Taken",
            )
        path.write_text(config, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArguments(
            f"the model cannot be described in {folder}: {reason_of(error)}; name another folder "
            "with --model-folder",
            code="Unwritable",
        ) from None


def _text(path: Path) -> str:
    from heddle_operator.apis.errors import InvalidArguments
    from planner.wording import reason_of

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidArguments(
            f"{path} cannot be read: {reason_of(error)}", code="Unreadable"
        ) from None


def _read(path: Path) -> dict[str, Any]:
    from heddle_operator.apis.errors import InvalidArguments
    from planner.wording import kind_of, reason_of

    try:
        content = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(
            f"{path} cannot be read: {reason_of(error)}", code="Unreadable"
        ) from None
    if not isinstance(content, dict):
        raise InvalidArguments(
            f"{path} holds {kind_of(content)}; it must be an object", code="Malformed"
        )
    return content
