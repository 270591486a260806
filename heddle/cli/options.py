"""Options that several commands take.

Invariant: each is written once, so that it means the same to all of them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

import click

from planner.cluster.gpu_types import HARDWARE
from planner.errors import InvalidRequest
from planner.given_text import STANDARD_INPUT
from planner.model.catalogue import MODELS
from planner.model.workload import Zero
from planner.request import DEFAULT_ROLLOUTS, MOST_THREADS

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]


class NamedPath(click.Path):
    """A path; an empty one, as of a variable that is not set, is not the working folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path.

        Raises:
            InvalidRequest: it is empty.
        """
        if value == "":
            name = "a path" if param is None else param.human_readable_name
            if isinstance(param, click.Option):
                name = param.opts[0]
            raise InvalidRequest(f"{name} is empty; give a path", field=name, code="Missing")
        return super().convert(value, param, ctx)


A_FILE = NamedPath(path_type=Path)


class Finite(click.FloatRange):
    """A range of numbers without NaN, which every range lets in, and without infinity."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number.

        Raises:
            InvalidRequest: it is not finite.
        """
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            option = param.opts[0] if param else "the value"
            raise InvalidRequest(
                f"{option} is {number}; give a number that is finite",
                field=option,
                code="OutOfRange",
            )
        return number


class ZeroStage(click.Choice[str]):
    """A word or number of a ZeRO stage; the value is the word of `spec.planner.zero`."""

    WORDS: ClassVar[Mapping[str, str]] = {word.lower(): word for word in get_args(Zero)}
    STAGES: ClassVar[Mapping[str, str]] = {"0": "Off", "1": "Stage1"}

    def __init__(self) -> None:
        super().__init__((*self.WORDS, *self.STAGES))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word, of type `Zero`."""
        chosen = super().convert(value, param, ctx)
        return {**self.WORDS, **self.STAGES}[chosen]


ZERO_STAGE = ZeroStage()
ABOVE_0 = Finite(0, min_open=True)
AT_LEAST_1 = click.IntRange(1)
SHOWN = {"show_default": True}  # settings of a command: its help says every default
MODEL_HELP = (
    f"Name of the model, or the path of a Hugging Face model.  The names are {', '.join(MODELS)}."
)


def require_one_reader(given: Mapping[str, Any]) -> None:
    """Refuse two inputs of a command on standard input, which can be read once.

    Args:
        given: value of each input, by its name for the user.

    Raises:
        InvalidRequest: more than one is `-`.
    """
    readers = [name for name, value in given.items() if str(value) == STANDARD_INPUT]
    if len(readers) > 1:
        raise InvalidRequest(
            f"{' and '.join(readers)} are both `-`, and standard input is read once; name a file "
            "for one of them",
            field=readers[1],
            code="Contradiction",
        )


def once(context: click.Context, option: click.Parameter, given: tuple[Any, ...]) -> Any:
    """The value of an option that may be given once, or None; for options with `multiple`.

    Raises:
        InvalidRequest: it is given again, which click would take instead of the first.
    """
    del context
    if len(given) > 1:
        raise InvalidRequest(
            f"{option.opts[0]} is given {len(given)} times; give it once, with all GPUs in it",
            field=option.opts[0],
            code="GivenTwice",
        )
    return given[0] if given else None


def picture_file(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """The file of a picture; one that cannot be is refused before anything is searched.

    Raises:
        InvalidRequest: it is a folder, or in none, does not end in `.svg`, or may not be written.
    """
    del context, option
    if path is None:
        return None
    is_file = path.suffix.lower() == ".svg" and path.parent.is_dir() and not path.is_dir()
    if is_file and os.access(path if path.exists() else path.parent, os.W_OK):
        return path
    raise InvalidRequest(
        f"picture {path} cannot be written; give a file that ends in .svg, in a folder that exists "
        "and may be written",
        code="Unwritable",
    )


def gpu_options(otherwise: str = "") -> Decorator[Any]:
    """Give a command `text` and `nodes`: the GPUs, as text or as a file; `otherwise` if neither."""
    default = f"  [default: {otherwise}]" if otherwise else ""
    return together(
        click.option(
            "--composition",
            "text",
            multiple=True,
            callback=once,
            help="GPUs, for example h100=8x4,a100-40=10x4+12x1.  The types are "
            f"{', '.join(('demo-fast', 'demo-slow', *HARDWARE))}.{default}",
        ),
        click.option(
            "--nodes",
            type=A_FILE,
            multiple=True,
            callback=once,
            help="YAML file: a list of nodes with name, type, gpus; `-`: standard input.",
        ),
    )


def answer_options(picture: str) -> Decorator[Any]:
    """Give a command `profiles`, `output` and `picture`, which shows what is said."""
    return together(
        click.option(
            "--profile",
            "profiles",
            type=A_FILE,
            help="Folder of profiles, instead of Heddle's own.",
        ),
        format_option("table"),
        click.option(
            "--picture",
            type=A_FILE,
            callback=picture_file,
            help=f"SVG file to write, with {picture}.",
        ),
    )


def format_option(for_people: str, said_of_json: str = "") -> Decorator[Any]:
    """Give a command `output`: the form for people, `text` or `table`, or `json`."""
    more = f"; {said_of_json}" if said_of_json else "."
    return click.option(
        "--output",
        "-o",
        type=click.Choice((for_people, "json")),
        default=for_people,
        show_default=True,
        help=f"Format of the output{more}",
    )


def together(*options: Decorator[Any]) -> Decorator[Any]:
    """Several options as one decorator, in the help in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):  # the last decorator comes first in the help
            command = option(command)
        return command

    return decorate


effort_options = together(  # how hard to look for a plan
    click.option(
        "--rollouts",
        default=DEFAULT_ROLLOUTS,
        type=AT_LEAST_1,
        help="Number of plans that the method policy builds; the best counts.",
    ),
    click.option(
        "--policy",
        type=A_FILE,
        help="Folder of a trained policy.  [default: Heddle's own for the model]",
    ),
    click.option(
        "--budget-s",
        type=ABOVE_0,
        help="Seconds after which a search ends.  "
        "[default: 2, and on up to 16 GPUs 3,000 plans; no limit with --budget-evaluations]",
    ),
    click.option(
        "--budget-evaluations",
        type=AT_LEAST_1,
        help="Number of evaluated plans after which a search ends, instead of seconds.",
    ),
    click.option(
        "--threads",
        type=click.IntRange(1, MOST_THREADS),
        help="Number of cores of a search with --budget-s.  [default: all, at most 4]",
    ),
)

namespace_option = click.option(
    "-n",
    "--namespace",
    help="Namespace of the job.  [default: that of the kubeconfig's context]",
)


def job_named(job: str, namespace: str | None) -> tuple[str, str | None]:
    """(name, namespace) of a job that is given as NS/NAME or NAME, beside `--namespace`.

    Raises:
        UsageError: it is no such text, or two namespaces are given.
    """
    found, slash, name = job.rpartition("/")
    if not name or "/" in found or (slash and not found):
        raise click.UsageError(f"{job!r} is no job; give NAMESPACE/NAME, or NAME")
    if found and namespace not in (None, found):
        raise click.UsageError(f"the namespace is {found} and {namespace}; give it once")
    return name, found or namespace
