"""`heddle operator run`: the operator of a cluster.

Everything heavy is imported inside the command, so that `--help` is quick.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from heddle_operator.state.settings import Settings

# The API server stores objects of up to 10,000 levels, and to read or merge one takes a few calls
# for each: without that, the list that holds one could not be read, nor any job in it be followed.
DEEPEST = 60_000
IMAGE = f"heddle-worker:{version('heddle')}"  # what `make image` builds
OPTIONS = {"port": "--port"}  # how the command calls the fields of errors


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
    "--all-pods",
    is_flag=True,
    help=(
        "With --namespace: count the GPUs that pods of all namespaces hold. It needs "
        "the right to list and watch the pods of the cluster."
    ),
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
    help=(
        "YAML file with a pod template for all worker pods; it overrides a job's "
        "template. May be given several times; later ones override earlier ones."
    ),
)
@click.option(
    "--worker-base",
    "worker_bases",
    multiple=True,
    type=click.Path(path_type=Path),
    help=(
        "YAML file with the default pod template; a job's template overrides it. May "
        "be given several times."
    ),
)
@click.option(
    "--worker-allow",
    multiple=True,
    metavar="FIELD",
    help=(
        "Extra pod-template field that jobs may set, for example hostPath; may be "
        "given several times."
    ),
)
@click.option(
    "--worker-per-gpu",
    multiple=True,
    metavar="NAME=QUANTITY",
    help=(
        "Extra resource request of a worker pod for each of its GPUs, for example "
        "memory=64Gi; may be given several times. A job's template overrides it."
    ),
)
@click.option(
    "--worker-shm-per-gpu",
    default="8Gi",
    show_default=True,
    metavar="QUANTITY",
    help="Limit of /dev/shm for each GPU of a worker pod.",
)
@click.option(
    "--worker-host-ports",
    default="8470-8533",
    show_default=True,
    metavar="FIRST-LAST",
    help="Ports of a node for agents whose pods have the network of their host; each takes one.",
)
@click.option(
    "--lease-namespace",
    default="default",
    show_default=True,
    envvar="POD_NAMESPACE",
    help="Namespace of the Lease by which one operator works at a time.",
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
    "--settings",
    "settings_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="YAML file with limits of the operator; docs/reference/settings.md lists them.",
)
@click.option(
    "--log-format",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    help="Format of log lines, also of the workers unless their job sets logFormat.",
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
    all_pods: bool,
    port: int,
    worker_image: str,
    worker_templates: tuple[Path, ...],
    worker_bases: tuple[Path, ...],
    worker_allow: tuple[str, ...],
    worker_per_gpu: tuple[str, ...],
    worker_shm_per_gpu: str,
    worker_host_ports: str,
    lease_namespace: str,
    lease_name: str,
    lease_seconds: int,
    settings_file: Path | None,
    log_format: Literal["text", "json"],
    log_level: str,
) -> None:
    """Run the HeddleJobs of a cluster until this process is stopped.

    The cluster is that of KUBECONFIG, else of the operator's pod, else of ~/.kube/config.
    """
    import asyncio
    import os
    import socket
    from functools import reduce

    from heddle_operator.controller.operator import OperatorOptions, run_operator
    from heddle_operator.kube.leader_election import LeaseSettings
    from heddle_operator.resources.pod_template import merge
    from heddle_operator.resources.pods import WorkerDefaults
    from heddle_operator.telemetry.log_format import configure_logs
    from heddle_operator.telemetry.loop_probe import timed_loop
    from heddle_operator.telemetry.metrics import OperatorMetrics

    _check_namespaces(namespaces)
    configure_logs(log_format, log_level)
    identity = f"{socket.gethostname()}_{os.getpid()}"
    options = OperatorOptions(
        namespaces=namespaces,
        port=port,
        lease=LeaseSettings(lease_namespace, lease_name, identity, lease_seconds),
        defaults=WorkerDefaults(
            image=worker_image,
            template=reduce(merge, map(_read_template, worker_templates), {}),
            log_format=log_format,
            base=reduce(merge, map(_read_template, worker_bases), {}),
            allow=_allowed(worker_allow),
            per_gpu=dict(_named_quantity("--worker-per-gpu", pair) for pair in worker_per_gpu),
            shm_per_gpu=_quantity("--worker-shm-per-gpu", worker_shm_per_gpu),
            host_ports=_ports("--worker-host-ports", worker_host_ports),
        ),
        settings=_read_settings(settings_file),
        all_pods=all_pods,
    )
    sys.setrecursionlimit(DEEPEST)
    metrics = OperatorMetrics(version("heddle"), os.environ.get("HEDDLE_COMMIT", ""))
    with asyncio.Runner(loop_factory=lambda: timed_loop(metrics.turn)) as runner:
        sys.exit(runner.run(run_operator(options, metrics)))


def _check_namespaces(names: tuple[str, ...]) -> None:
    from heddle_operator.apis.errors import OperatorError
    from heddle_operator.apis.references import is_label

    for name in names:
        if not is_label(name):
            raise OperatorError(
                f"--namespace {name!r} is no name of a namespace; give at most 63 lower-case "
                "letters, digits and dashes",
                field="namespace",
                code="Malformed",
            )


def _allowed(fields: tuple[str, ...]) -> frozenset[str]:
    from heddle_operator.apis.errors import OperatorError
    from heddle_operator.resources.template_rules import GRANTABLE
    from planner.wording import did_you_mean

    for field in fields:
        if field not in GRANTABLE:
            known = ", ".join(sorted(GRANTABLE))
            near = did_you_mean(field, GRANTABLE)
            raise OperatorError(
                f"--worker-allow {field}{near}: one can allow {known}",
                field="worker_allow",
                code="Unknown",
            )
    return frozenset(fields)


def _named_quantity(option: str, pair: str) -> tuple[str, str]:
    from heddle_operator.apis.errors import OperatorError
    from heddle_operator.inventory.requests import GPU

    name, _, quantity = pair.partition("=")
    if name == GPU:
        raise OperatorError(
            f"{option} {pair}: the operator itself asks for the GPUs; leave it out",
            field=option,
            code="Unsupported",
        )
    if not (name and quantity):
        raise OperatorError(
            f"{option} {pair}: it is not NAME=QUANTITY; write for example cpu=8",
            field=option,
            code="Malformed",
        )
    return name, _quantity(option, quantity)


def _quantity(option: str, quantity: str) -> str:
    from heddle_operator.apis.errors import OperatorError
    from heddle_operator.inventory.quantities import amount, times

    if amount(quantity) < 0:
        raise OperatorError(
            f"{option}: {quantity!r} is below 0; write for example 8, 500m or 64Gi",
            field=option,
            code="OutOfRange",
        )
    try:
        return times(quantity, 1)
    except ValueError as error:
        raise OperatorError(f"{option}: {error}", field=option, code="Malformed") from None


def _ports(option: str, text: str) -> str:
    from heddle_operator.apis.errors import OperatorError
    from heddle_operator.inventory.host_ports import range_of

    if range_of(text) is None:
        raise OperatorError(
            f"{option} {text}: it is no range FIRST-LAST of ports from 1 to 65535; write for "
            "example 8470-8533",
            field=option,
            code="OutOfRange",
        )
    return text


def _read_settings(path: Path | None) -> Settings:
    from heddle_operator.apis.errors import InvalidSettings
    from heddle_operator.state.settings import settings_of
    from planner.profiles.chosen import check_profiles
    from planner.strict_yaml import read_yaml

    data = None if path is None else read_yaml(path, "settings file", InvalidSettings)
    settings = settings_of(data, str(path))
    if settings.profiles_folder is not None:
        check_profiles(settings.profiles_folder)
    return settings


def _read_template(path: Path) -> dict[str, Any]:
    from heddle_operator.apis.errors import InvalidJob
    from heddle_operator.resources.template_rules import administrators_problems
    from planner.strict_yaml import read_yaml

    found = read_yaml(path, "worker template", InvalidJob)
    template = {} if found is None else found
    if not isinstance(template, dict):
        raise InvalidJob(
            f"worker template {path} must hold a mapping with metadata and spec", code="Malformed"
        )
    for sentence in administrators_problems(template):
        raise InvalidJob(
            f"worker template {path}: {sentence}; correct it there, or under worker in the "
            "chart's values",
            code="Malformed",
        )
    return template
