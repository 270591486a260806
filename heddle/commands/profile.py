"""`heddle profile`: measure layers and links of the machine it runs on.

Invariant: what is written says `origin: measured` with hardware, versions and date; what could not
be measured here is named, never made up.
"""

from __future__ import annotations

import datetime
import math
import os
import platform
import time
from pathlib import Path
from typing import Any, NamedTuple, get_args

import click

from heddle.cli.options import A_FILE
from planner.cluster.composition import LABEL
from planner.cores import usable_cores
from planner.model.catalogue import find_model
from planner.model.workload import GpuWire, Precision, usual_workload
from planner.profiles.entries import LinkCost
from planner.profiles.generator import RESERVE_BYTES, RESERVE_SHARE
from planner.profiles.profile import PROFILES, load_profile
from planner.wording import counted
from worker.errors import WorkerError


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
    asked = Asked(output_path, model, gpu_type, device, repeats)
    ctx.obj = asked, wire
    if ctx.invoked_subcommand is None:
        where = _checked(asked)
        degrees, batches = _numbers("--tp", tp), _numbers("--micro-batch", micro_batch)
        _layers(where, wire, degrees, batches, seq_len, precision, max_tiling)


class Asked(NamedTuple):
    """Options of the group, which a subcommand has as well."""

    folder: Path
    model: str
    gpu_type: str | None
    device: str | None
    repeats: int


def _checked(asked: Asked) -> tuple[Path, str, str, str, int]:
    """Model, device and folder to measure, checked after a subcommand's `--help` had its turn."""
    gpu_type = asked.gpu_type
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
    return asked.folder, asked.model, gpu_type, _device(asked.device), asked.repeats


def _layers(
    where: tuple[Path, str, str, str, int],
    wire: GpuWire,
    degrees: tuple[int, ...],
    micro_batches: tuple[int, ...],
    seq_len: int | None,
    precision: Precision | None,
    max_tiling: int,
) -> None:
    import torch

    from worker.device.choice import device_of
    from worker.device.cuda import begin_process
    from worker.device.environment import environment_of
    from worker.error_kinds import is_out_of_memory
    from worker.profile.bench import Bench
    from worker.profile.files import make_folder, write_layers, write_links
    from worker.profile.layers import check_model, measure_layer, parts_of
    from worker.profile.links import inside_node
    from worker.profile.rows import DoesNotFit, Part, Row, RowKey, measured_rows
    from worker.profile.types import measure_type

    folder, name, gpu_type, device, repeats = where
    model = find_model(name)
    check_model(model)
    usual = usual_workload(model)
    length, chosen = seq_len or usual.sequence_length, precision or usual.precision
    _check_tp(model.allows_tp, model.name, degrees, device)
    make_folder(folder / model.name)
    if device == "cpu":
        torch.set_num_threads(1)
    else:
        os.environ.update(environment_of("cuda"))  # before the first call of CUDA
        begin_process()
    bench = Bench(device_of(device), repeats)
    bench.device.check(gpu_type)
    layers: dict[RowKey, Row] = {}
    rings: dict[int, LinkCost] = {}
    message: LinkCost | None = None
    for degree in degrees:
        if degree > 1:
            message, rings[degree] = inside_node(device, degree, repeats=repeats, wire=wire)
        ring = rings.get(degree)

        def measure(part: Part, b: int, n: int = degree, r: LinkCost | None = ring) -> Row:
            bench.spread = 0.0
            try:
                cost = measure_layer(
                    bench,
                    model,
                    part,
                    n,
                    b,
                    length,
                    chosen,
                    lambda size: r.seconds(2 * (n - 1) / n * size) if r else 0.0,
                )
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                raise DoesNotFit from error
            return Row(cost, bench.spread, os.getloadavg()[0])

        found, left = measured_rows(
            measure,
            parts_of(model, degree, max_tiling),
            sorted(micro_batches),
            time.monotonic,
            math.inf,
            lambda *_: None,
        )
        if not found:
            raise WorkerError(
                f"a layer of {model.name} at TP {degree} does not fit on this device; "
                f"measure a smaller --micro-batch, a shorter --seq-len or a larger --tp",
                code="OutOfRange",
            )
        if left:
            sizes = ", ".join(map(str, left))
            click.echo(f"TP {degree}: out of memory; not measured: micro-batch {sizes}", err=True)
        layers |= {(part, degree, b): row for (part, b), row in found.items()}
    memory, reserve = _memory(gpu_type, model.name, device)
    head = {
        "model": model.name,
        "shape": model.cost_digest,
        "sequence_length": length,
        "precision": chosen,
        "provenance": _provenance(device, repeats),
    }
    path = folder / model.name / f"{gpu_type}.json"
    entry = measure_type(bench, model, gpu_type, chosen, memory_bytes=memory, reserve_bytes=reserve)
    count = write_layers(path, head, entry, layers)
    origin = write_links(
        path.parent, gpu_type, _provenance(device, repeats), message=message, rings=rings, wire=wire
    )
    click.echo(f"{path}: {count} measured entries; links {origin}")


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
def links(given: tuple[Asked, GpuWire], link_domain: str, devices: int | None) -> None:
    """Measure messages and all-reduces within or between nodes.

    Without a launcher, the devices of this node are measured. If a launcher starts one process on
    each node (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), each node is measured with the next node
    of its link domain.
    """
    from worker.profile.files import make_folder, write_links
    from worker.profile.links import between_nodes, inside_node

    asked, wire = given
    folder, name, gpu_type, device, repeats = _checked(asked)
    home = folder / find_model(name).name
    make_folder(home)
    provenance = _provenance(device, repeats)
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
    here = devices or (2 if wire == "staged" else _devices(device))  # ranks may share a device
    if here < 2:
        lacking = counted(here, f"{device} device")
        raise WorkerError(
            f"this node has {lacking}, so there is no link inside it; run this on a larger "
            "node, or under a launcher to measure between nodes",
            code="Missing",
        )
    sizes = [n for n in (2, 4, 8) if n <= here]
    measured = {n: inside_node(device, n, repeats=repeats, wire=wire) for n in sizes}
    rings = {n: ring for n, (_, ring) in measured.items()}
    origin = write_links(home, gpu_type, provenance, message=measured[2][0], rings=rings, wire=wire)
    click.echo(f"groups of {', '.join(map(str, sizes))} devices measured; links {origin}")


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


def _devices(device: str) -> int:
    import torch

    return torch.cuda.device_count() if device == "cuda" else usable_cores()


def _check_tp(allows: Any, name: str, degrees: tuple[int, ...], device: str) -> None:
    for degree in degrees:
        if not allows(degree):
            raise WorkerError(
                f"TP {degree} does not divide the heads, ffn and vocabulary of {name}; {{field}} "
                f"may have {', '.join(str(n) for n in (1, 2, 4, 8, 16) if allows(n))}",
                field="tp",
                code="OutOfRange",
            )
        if device == "cuda" and degree > _devices(device):
            raise WorkerError(
                f"TP {degree} needs {degree} devices, and this machine has {_devices(device)}; "
                "measure it on a larger node",
                code="OutOfRange",
            )


def _memory(gpu_type: str, model: str, device: str) -> tuple[int, int]:
    """(physical bytes, reserve): of the device; on CPU those that the type has in its profile."""
    import torch

    if device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        return total, round(RESERVE_SHARE * total) + RESERVE_BYTES
    if (PROFILES / model / f"{gpu_type}.json").exists():
        known = load_profile(model).types[gpu_type]
        return known.memory_bytes, known.reserve_bytes
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return total, total // 2


def _provenance(device: str, repeats: int) -> dict[str, Any]:
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "CPU"
    return {
        "hardware": f"{name}, {device}",
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda or "none"},
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "repeats": repeats,
    }
