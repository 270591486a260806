"""`heddle operator run`: the operator of a cluster.

Everything heavy is imported inside the command, so that `--help` is quick.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import click

IMAGE = f"heddle:{version('heddle')}"  # what `make image` builds


@click.group()
def operator() -> None:
    """Run the operator of a cluster."""


@operator.command("run")
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    help="Watch only this namespace; may be given several times.  [default: all]",
)
@click.option(
    "--port",
    default=8080,
    show_default=True,
    type=click.IntRange(1, 65535),
    help="Port on which probes and metrics are served.",
)
@click.option(
    "--worker-image",
    default=IMAGE,
    show_default=True,
    envvar="HEDDLE_WORKER_IMAGE",
    help="Image of the worker pods.",
)
@click.option(
    "--worker-template",
    "worker_templates",
    multiple=True,
    type=click.Path(path_type=Path),
    help="YAML file with a pod template that is merged into all worker pods; may be given several "
    "times, and a later one overrides an earlier one.",
)
@click.option(
    "--lease-namespace",
    default="default",
    show_default=True,
    envvar="POD_NAMESPACE",
    help="Namespace of the Lease that lets one operator work at a time.",
)
@click.option(
    "--lease-name", default="heddle-operator", show_default=True, help="Name of that Lease."
)
@click.option(
    "--lease-seconds",
    default=15,
    show_default=True,
    type=click.IntRange(2),
    help="Seconds after which another operator takes over from a dead one.",
)
@click.option(
    "--log-format",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    help="Form of each line of the log, and of the logs of workers whose job does not say.",
)
@click.option(
    "--log-level",
    type=click.Choice(("debug", "info", "warning", "error")),
    default="info",
    show_default=True,
    help="Least severity that is logged.",
)
def run(
    namespaces: tuple[str, ...],
    port: int,
    worker_image: str,
    worker_templates: tuple[Path, ...],
    lease_namespace: str,
    lease_name: str,
    lease_seconds: int,
    log_format: str,
    log_level: str,
) -> None:
    """Run the HeddleJobs of a cluster until this process is stopped.

    The cluster is that of KUBECONFIG, or of the pod in which the operator runs.
    """
    import asyncio
    import os
    import socket
    from functools import reduce

    from heddle_operator.controller.operator import OperatorOptions, run_operator
    from heddle_operator.kube.leader_election import LeaseSettings
    from heddle_operator.resources.pod_template import merge
    from heddle_operator.resources.pods import WorkerDefaults
    from heddle_operator.state.settings import Settings
    from heddle_operator.telemetry.log_format import configure_logs

    configure_logs(log_format, log_level)
    chosen: Literal["text", "json"] = "json" if log_format == "json" else "text"
    identity = f"{socket.gethostname()}_{os.getpid()}"
    options = OperatorOptions(
        namespaces,
        port,
        LeaseSettings(lease_namespace, lease_name, identity, lease_seconds),
        WorkerDefaults(
            worker_image, reduce(merge, map(_read_template, worker_templates), {}), chosen
        ),
        Settings(),
    )
    sys.exit(asyncio.run(run_operator(options)))


def _read_template(path: Path) -> dict[str, Any]:
    from heddle_operator.apis.errors import InvalidJob
    from planner.strict_yaml import read_yaml

    found = read_yaml(path, "worker template", InvalidJob)
    template = {} if found is None else found
    if not isinstance(template, dict):
        raise InvalidJob(f"worker template {path} must hold a mapping with metadata and spec")
    return template
