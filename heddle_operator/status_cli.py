"""`heddle status` and `heddle logs`: what a cluster's jobs do.

Everything heavy is imported inside the commands.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from heddle_operator.kube_api import KubeApi

JOBS = "/apis/heddle.dev/v1alpha1"
namespace_option = click.option(
    "-n", "--namespace", default="default", show_default=True, help="Of the job."
)


@click.command()
@click.argument("job", required=False)
@namespace_option
@click.option("-A", "--all-namespaces", is_flag=True, help="Jobs of all namespaces.")
@click.option(
    "--plan", "shows_plan", is_flag=True, help="The job's plan, as `heddle price` reads it."
)
@click.option("--output", type=click.Choice(("table", "json")), default="table", show_default=True)
def status(
    job: str | None, namespace: str, all_namespaces: bool, shows_plan: bool, output: str
) -> None:
    """Show all jobs, or everything about one."""
    from heddle_operator.status_table import page, table

    if shows_plan:
        if job is None:
            raise click.UsageError("--plan needs the name of a job")
        click.echo(json.dumps(asyncio.run(_plan(namespace, job)), indent=2))
        return
    where = "" if all_namespaces and job is None else f"/namespaces/{namespace}"
    path = f"{JOBS}{where}/heddlejobs" + (f"/{job}" if job else "")
    found = asyncio.run(_read(path, job, namespace))
    if output == "json":
        click.echo(json.dumps(found, indent=2))
    elif job:
        click.echo("\n".join(page(found)))
    elif found["items"]:
        click.echo("\n".join(table(found["items"])))
    else:
        click.echo("There are no HeddleJobs.")


@click.command()
@click.argument("job")
@namespace_option
@click.option("--tail", type=click.IntRange(1), help="Lines of each pod.")
def logs(job: str, namespace: str, tail: int | None) -> None:
    """Show the logs of all ranks of a job; the first traceback comes first."""
    from heddle_operator.errors import OperatorError
    from heddle_operator.job_logs import lines_of, ordered

    found = asyncio.run(_logs(namespace, job, tail))
    if not found:
        raise OperatorError(f"job {job} has no pods in namespace {namespace}; see `heddle status`")
    for log in ordered(found):
        for line in lines_of(log):
            click.echo(line)


async def _read(path: str, job: str | None, namespace: str) -> dict[str, Any]:
    from heddle_operator.kube_api import connect

    async with await connect() as api:
        return await _get(api, path, job, namespace)


async def _get(api: KubeApi, path: str, job: str | None, namespace: str) -> dict[str, Any]:
    from heddle_operator.errors import OperatorError
    from heddle_operator.kube_api import ApiRefused

    try:
        return await api.get(path)
    except ApiRefused as error:
        if error.status != 404:
            raise
        if job is None:
            raise OperatorError(
                "the cluster knows no HeddleJobs; install the chart, or apply manifests/crd"
            ) from None
        raise OperatorError(f"there is no HeddleJob {job} in namespace {namespace}") from None


async def _plan(namespace: str, job: str) -> dict[str, Any]:
    from heddle_operator.api import load_job
    from heddle_operator.epoch_config_map import epoch_name, record_of_body
    from heddle_operator.errors import OperatorError
    from heddle_operator.kube_api import connect

    async with await connect() as api:
        body = await _get(api, f"{JOBS}/namespaces/{namespace}/heddlejobs/{job}", job, namespace)
        epoch = (body.get("status") or {}).get("epoch")
        if epoch is None:
            raise OperatorError(f"job {job} has no plan yet; see `heddle status {job}`")
        held = load_job(body)
        path = f"/api/v1/namespaces/{namespace}/configmaps/{epoch_name(held, epoch)}"
        record = record_of_body(await api.get(path), 0.0)
    workload = held.workload
    return {
        **record.plan.to_json(),
        "digest": record.plan.digest,
        "composition": record.composition.to_json(),
        "workload": {
            "model": {"name": workload.model.name},
            "global_batch": workload.global_batch,
            "sequence_length": workload.sequence_length,
        },
    }


async def _logs(namespace: str, job: str, tail: int | None) -> list[Any]:
    from heddle_operator.job_logs import PodLog
    from heddle_operator.kube_api import ApiRefused, connect
    from heddle_operator.rendering import JOB_LABEL, WORKER

    found = []
    async with await connect() as api:
        await _get(api, f"{JOBS}/namespaces/{namespace}/heddlejobs/{job}", job, namespace)
        pods = f"/api/v1/namespaces/{namespace}/pods"
        query = {"timestamps": "true", "container": WORKER}
        if tail:
            query["tailLines"] = str(tail)
        for pod in (await api.get(pods, labelSelector=f"{JOB_LABEL}={job}"))["items"]:
            name = pod["metadata"]["name"]
            try:
                text = await api.text(f"{pods}/{name}/log", **query)
            except ApiRefused as error:
                text = f"- (no log: {error})"
            found.append(PodLog(name, text))
    return found
