"""`heddle profile`: measure layers and links of the machine it runs on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from heddle.cli.options import A_FILE
from planner.cluster.composition import LABEL
from planner.model.catalogue import find_model
from planner.model.workload import GpuWire, Precision, usual_workload
from planner.wording import counted
from worker.errors import WorkerError

if TYPE_CHECKING:
    from worker.profile.by_degree import Subject


@click.group("profile", invoke_without_command=True)
@click.option(
    "--model",
    default="tiny-llama",
    show_default=True,
    help="Name of a model that the worker trains, or the path of its config.json.",
)
@click.option("--gpu-type", required=False, help="GPU type of this machine, as in its node label.")
@click.option(
    "--tp", default="1", show_default=True, help="TP degrees to measure, for example 1,2,4."
)
@click.option(
    "--micro-batch",
    default="1,2,4,8,16",
    show_default=True,
    help="Sizes of micro-batches to measure.",
)
@click.option(
    "--seq-len", type=click.IntRange(1), help="Tokens of a sample.  [default: the model's]"
)
@click.option(
    "--precision",
    type=click.Choice(get_args(Precision)),
    help="Precision of weights and activations.  [default: the model's]",
)
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    help="Device to measure.  [default: cuda where there is one]",
)
@click.option(
    "--repeats",
    default=10,
    show_default=True,
    type=click.IntRange(1),
    help="Number of measurements; the smallest counts.",
)
@click.option(
    "--output-path",
    type=A_FILE,
    default=Path("measured-profiles"),
    show_default=True,
    help="Folder for the profiles; `heddle cost --profile FOLDER` reads it.",
)
@click.option(
    "--wire",
    type=click.Choice(get_args(GpuWire)),
    default="nccl",
    show_default=True,
    help="Wire of the links between GPUs: NCCL, or staged through memory of the host.",
)
@click.option(
    "--max-tiling",
    default=8,
    show_default=True,
    type=click.IntRange(1),
    help="Largest EP x ETP of experts; 1 measures the plain division alone.",
)
@click.pass_context
def profile(
    ctx: click.Context,
    model: str,
    gpu_type: str | None,
    tp: str,
    micro_batch: str,
    seq_len: int | None,
    precision: Precision | None,
    device: str | None,
    repeats: int,
    output_path: Path,
    wire: GpuWire,
    max_tiling: int,
) -> None:
    """Measure one layer of each kind on a device of this machine.

    A further GPU type or TP degree adds its entries to the profile. A TP degree above 1 needs that
    many devices; on CPU they are processes. `heddle profile --gpu-type NAME links` measures links.
    """
    asked = Asked(
        folder=output_path,
        model=model,
        gpu_type=gpu_type,
        device=device,
        repeats=repeats,
        wire=wire,
    )
    ctx.obj = asked
    if ctx.invoked_subcommand is not None:
        return
    degrees, batches = _numbers("--tp", tp), _numbers("--micro-batch", micro_batch)
    subject = _subject(asked)
    from heddle.train.screen.measuring import measuring_progress
    from worker.profile.by_degree import Sizes, measure_layers

    usual = usual_workload(subject.model)
    sizes = Sizes(
        degrees=degrees,
        micro_batches=batches,
        sequence_length=seq_len or usual.sequence_length,
        precision=precision or usual.precision,
        max_tiling=max_tiling,
    )

    def left(degree: int, too_large: Sequence[int]) -> None:
        batches = ", ".join(map(str, too_large))
        _say(f"TP {degree}: out of memory; not measured: micro-batch {batches}")

    with measuring_progress(f"measuring {subject.gpu_type}", is_headless=False, say=_say) as told:
        done = measure_layers(subject, sizes, left, told)
    click.echo(f"{done.path}: {done.entries} measured entries; links {done.links_origin}")


def _say(line: str) -> None:
    click.echo(line, err=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Options of the group, which a subcommand has as well."""

    folder: Path
    model: str
    gpu_type: str | None
    device: str | None
    repeats: int
    wire: GpuWire


def _subject(asked: Asked) -> Subject:
    """What is measured, checked after a subcommand's `--help` had its turn."""
    gpu_type, model = _gpu_type(asked.gpu_type), find_model(asked.model)
    from worker.profile.by_degree import Subject  # only now, as torch is slow to import

    return Subject(
        folder=asked.folder,
        model=model,
        gpu_type=gpu_type,
        device=_device(asked.device),
        repeats=asked.repeats,
        wire=asked.wire,
    )


def _gpu_type(gpu_type: str | None) -> str:
    """The name of a GPU type, which is that of its file too.

    Raises:
        WorkerError: it is missing, or cannot be one.
    """
    if gpu_type is None:
        raise WorkerError(
            "name the GPU type of this machine with --gpu-type, as its nodes do",
            field="gpu_type",
            code="Missing",
        )
    if not LABEL.fullmatch(gpu_type) or gpu_type == "links":
        raise WorkerError(
            f"--gpu-type {gpu_type!r} cannot be the name of a type and its file; use letters, "
            f"digits, dots, dashes, for example h100-80",
            field="gpu_type",
            code="Malformed",
        )
    return gpu_type


@profile.command()
@click.option(
    "--link-domain", default="default", show_default=True, help="Link domain of this node."
)
@click.option(
    "--devices",
    type=click.IntRange(2),
    help="Number of devices of this node to use.  [default: all]",
)
@click.pass_obj
def links(asked: Asked, link_domain: str, devices: int | None) -> None:
    """Measure messages and all-reduces within or between nodes.

    Without a launcher, the devices of this node are measured. A launcher may start one process on
    each node (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). Then each node is measured with the next
    one of its link domain.
    """
    subject = _subject(asked)
    from worker.profile.files import make_folder, write_group_bytes, write_links
    from worker.profile.links import between_nodes, inside_node

    home, gpu_type, provenance = subject.home, subject.gpu_type, subject.provenance()
    device, repeats, wire = subject.device, subject.repeats, subject.wire
    make_folder(home)
    if _launched() and wire == "staged":
        raise WorkerError(
            "links between nodes are measured over NCCL, --wire is staged; leave it out, or run "
            "this without a launcher",
            field="wire",
            code="Unsupported",
        )
    if _launched():
        found = between_nodes(device, link_domain, repeats=repeats)
        if found:
            slowest = min(found.values(), key=lambda link: link.bandwidth_bytes_per_s)
            origin = write_links(home, gpu_type, provenance, network=slowest)
            click.echo(f"{len(found)} pairs of nodes measured; links {origin}")
        return
    here = devices or (2 if wire == "staged" else subject.devices)  # ranks may share a device
    if here < 2:
        lacking = counted(here, f"{device} device")
        raise WorkerError(
            f"this node has {lacking}, so there is no link inside it; run this on a larger "
            "node, or under a launcher to measure between nodes",
            code="Missing",
        )
    sizes = [n for n in (2, 4, 8) if n <= here]
    measured = {n: inside_node(device, n, repeats=repeats, wire=wire) for n in sizes}
    rings, message = {n: found.ring for n, found in measured.items()}, measured[2].message
    origin = write_links(home, gpu_type, provenance, message=message, rings=rings, wire=wire)
    click.echo(f"groups of {', '.join(map(str, sizes))} devices measured; links {origin}")
    held_bytes = max(found.group_bytes for found in measured.values())
    if held_bytes and not write_group_bytes(home / f"{gpu_type}.json", held_bytes):
        _say(
            f"a group holds {held_bytes} bytes, and {gpu_type}.json is not there to hold them; "
            "measure layers, then links again"
        )


def _launched() -> bool:
    """Whether a launcher started this as one of several processes.

    Raises:
        WorkerError: its variables are incomplete.
    """
    stated = {name: os.environ.get(name, "") for name in ("WORLD_SIZE", "RANK", "MASTER_PORT")}
    if stated["WORLD_SIZE"] in ("", "1"):
        return False
    odd = [f"{name}={value!r}" for name, value in stated.items() if not value.isdecimal()]
    odd += [] if os.environ.get("MASTER_ADDR") else ["MASTER_ADDR=''"]
    if odd:
        raise WorkerError(
            f"the environment has {', '.join(odd)}; a launcher sets WORLD_SIZE, RANK, MASTER_ADDR "
            f"and MASTER_PORT, and without one WORLD_SIZE is not set",
            code="Malformed",
        )
    return True


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise WorkerError(
            f"{option} is {text!r}; give whole numbers of 1 or more, for example 1,2,4",
            field=option,
            code="Malformed",
        )
    return numbers


def _device(asked: str | None) -> str:
    import torch

    if asked == "cuda" and not torch.cuda.is_available():
        raise WorkerError(
            "there is no CUDA device here; leave --device out, or say --device cpu",
            field="device",
            code="Missing",
        )
    return asked or ("cuda" if torch.cuda.is_available() else "cpu")
