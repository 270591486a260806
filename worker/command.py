"""Commands of the worker.

The agent of a pod, its fork server, and the reference run.

Everything heavy is imported inside a command: the agent starts in a fraction of a second, without
torch.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planner.program import run
from planner.wording import reason_of
from worker.contract_version import CONTRACT, VARIABLE
from worker.errors import WorkerError
from worker.log_lines import FORMATS

if TYPE_CHECKING:
    from worker.contract import TrainingSpec
    from worker.device.environment import DeviceKind
    from worker.gpu_wire import WireName


A_DAY_S = 86400.0


@click.group()
def worker() -> None:
    """Run the processes of a worker pod."""


class _AgentCommand(click.Command):
    """Leaves out options that only the newer operator knows which started it."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **rest: Any,
    ) -> click.Context:
        is_lenient = _is_of_a_newer_operator()
        rest |= {"ignore_unknown_options": is_lenient, "allow_extra_args": is_lenient}
        return super().make_context(info_name, args, parent, **rest)


def _is_of_a_newer_operator() -> bool:
    found = os.environ.get(VARIABLE, "")
    return found.isdecimal() and int(found) > CONTRACT


@worker.command(cls=_AgentCommand)
@click.option("--job", required=True, help="Name of the job.")
@click.option("--pod", required=True, help="Name of this pod.")
@click.option("--node", required=True, help="Name of the pod's node.")
@click.option("--gpus", required=True, type=click.IntRange(1), help="Number of GPUs of this pod.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; in a cluster the pod's IP.",
)
@click.option(
    "--port",
    default=0,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port on which the operator calls; 0 takes a free one.",
)
@click.option(
    "--token-file",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help="File with the job's bearer token.",
)
@click.option(
    "--emulate",
    is_flag=True,
    help="Let each rank wait until the time of its GPU type's profile has passed.",
)
@click.option(
    "--device",
    type=click.Choice(("auto", "cpu", "cuda")),
    default="auto",
    show_default=True,
    help="Device of the ranks; auto takes GPUs where there is a driver.",
)
@click.option(
    "--peer-timeout-s",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0, A_DAY_S, min_open=True),
    help="Seconds without a heartbeat after which a rank is lost.",
)
@click.option(
    "--grace-s",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0, A_DAY_S),
    help="Seconds from SIGTERM to the end of the pod.",
)
@click.option(
    "--exit-with-parent", is_flag=True, help="End the agent when its standard input closes."
)
@click.option(
    "--ignore-sigterm",
    is_flag=True,
    help="Leave SIGTERM to the parent; Slurm and systemd send it to all processes of a job.",
)
@click.option(
    "--peak-flops-s",
    type=click.FloatRange(0, min_open=True),
    help=(
        "Peak operations per second of a rank on this machine, for the MFU of GPU "
        "types without a data sheet."
    ),
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    default="text",
    help="Format of log lines; each has job, pod, epoch and rank.",
)
@click.option("--stuck-s", default=30.0, type=click.FloatRange(0, A_DAY_S), hidden=True)
@click.option("--rank-entry", default="worker.rank.process:main", hidden=True)
def agent(
    job: str,
    pod: str,
    node: str,
    gpus: int,
    host: str,
    port: int,
    token_file: str,
    emulate: bool,
    device: str,
    peer_timeout_s: float,
    grace_s: float,
    exit_with_parent: bool,
    ignore_sigterm: bool,
    peak_flops_s: float | None,
    log_format: str,
    stuck_s: float,
    rank_entry: str,
) -> None:
    """Run the agent of a worker pod.

    It prints one line of JSON with its port as soon as it listens.
    """
    import asyncio

    from worker.agent.fork_server_start import start_fork_server
    from worker.log_lines import configure, note

    if ignore_sigterm:  # the fork server and the ranks inherit it
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    configure(log_format)
    note(job=job, pod=pod)
    _warn_of_left_out()
    _require_number(peer_timeout_s, "--peer-timeout-s")
    _require_number(grace_s, "--grace-s")
    token = _token(Path(token_file))
    kind, wire = _checked_device("cpu" if emulate else device, gpus)
    fork_server = start_fork_server(host, kind)  # its imports take longest
    from worker.agent.agent import AgentSettings
    from worker.agent.pod import run_pod

    settings = AgentSettings(
        job=job,
        pod=pod,
        node=node,
        gpus=gpus,
        host=host,
        token=token,
        emulate=emulate,
        device=kind,
        wire=wire,
        peer_timeout_s=peer_timeout_s,
        grace_s=grace_s,
        stuck_s=stuck_s,
        peak_flops_s=peak_flops_s,
        rank_entry=rank_entry,
    )
    sys.exit(asyncio.run(run_pod(settings, port, exit_with_parent, fork_server)))


def _warn_of_left_out() -> None:
    """Log the options that only a newer operator knows."""
    import logging

    left_out = click.get_current_context().args
    if left_out:
        words = "options of a newer operator are left out: %s"
        logging.getLogger(__name__).warning(words, " ".join(left_out))


def _checked_device(asked: str, gpus: int) -> tuple[DeviceKind, WireName]:
    """The device and the wire of the ranks, once what gloo and NCCL were told to use is there.

    Raises:
        DeviceUnusable: a GPU, an interface or an adapter that is asked for is not there.
    """
    from worker.device.fabric import adapters, check_fabric, check_gloo, interfaces
    from worker.device.gpus import Nvml, device_kind
    from worker.gpu_wire import VARIABLE as WIRE
    from worker.gpu_wire import wire_asked

    kind = device_kind(asked, Nvml(), gpus)
    wire = wire_asked(kind, os.environ.get(WIRE, ""))
    check_gloo(os.environ, interfaces())
    if kind == "cuda":
        check_fabric(os.environ, interfaces(), adapters())
    return kind, wire


def _require_number(value: float, option: str) -> None:
    """Refuse NaN, which every range lets in."""
    if math.isnan(value):
        raise WorkerError(
            f"{option} is not a number; give a number of seconds", field=option, code="Malformed"
        )


def _token(path: Path) -> str:
    """The token in a file; an empty one would let in everybody who sends none."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise WorkerError(
            f"token file {path} cannot be read: {reason_of(error)}", code="Unreadable"
        ) from None
    if not token:
        raise WorkerError(
            f"token file {path} is empty; write the job's token into it", code="Missing"
        )
    return token


@worker.command(hidden=True)
@click.option("--control-fd", required=True, type=int)
@click.option("--agent-pid", required=True, type=int)
def forkserver(control_fd: int, agent_pid: int) -> None:
    """Run the fork server of a pod; only an agent starts it."""
    import socket

    from worker.agent.forkserver import die_with_parent, serve

    die_with_parent(agent_pid)
    serve(socket.socket(fileno=control_fd))


@worker.command()
@click.option(
    "--training",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help="JSON file with a TrainingSpec.",
)
@click.option("--steps", required=True, type=click.IntRange(1), help="Number of steps to train.")
@click.option(
    "--output-path",
    type=click.Path(dir_okay=False),
    help="File to write the losses to, as a JSON list.  [default: they are printed]",
)
def reference(training: str, steps: int, output_path: str | None) -> None:
    """Train in one process of plain torch, to compare losses with."""
    import torch

    from worker.engine.reference.training import train

    spec = _training(Path(training))
    torch.set_num_threads(1)  # the tensors are small: a second thread only spins, on a busy core
    losses, _ = train(spec, spec.model_shape(), steps)
    text = json.dumps(losses)
    if output_path:
        Path(output_path).write_text(text, encoding="utf-8")
    else:
        click.echo(text)


def _training(path: Path) -> TrainingSpec:
    """The TrainingSpec in a file."""
    from pydantic import ValidationError

    from worker.contract import TrainingSpec

    try:
        return TrainingSpec.model_validate_json(path.read_bytes(), extra="forbid")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise WorkerError(
            f"{path} does not hold a TrainingSpec: {where}: {first['msg']}", code="Malformed"
        ) from None


def main() -> None:
    """Run a command of `python -m worker`."""
    run(worker, extra="worker")
