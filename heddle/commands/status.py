"""`heddle status` and `heddle logs`: what a cluster's jobs do.

Everything heavy is imported inside the commands.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from heddle.cli.jobs import JOBS, get_job
from heddle.cli.options import format_option, job_named, namespace_option

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heddle.cli.pod_logs import PodLog
    from heddle_operator.kube.client import KubeApi

ENDED = ("Complete", "Failed")  # phases of a job that says nothing more
LOOK_S = 1.0  # between two looks at the logs of a job that is followed

STATUS_HELP = """Show all jobs, or everything about one job.

\b
    heddle status -A            lists all jobs of the cluster
    heddle status tiny          shows the plan, the progress, the last change and the conditions
    heddle status tiny --plan   prints the plan as JSON
"""


@click.command(help=STATUS_HELP)
@click.argument("job", required=False)
@namespace_option
@click.option("-A", "--all-namespaces", is_flag=True, help="Show the jobs of all namespaces.")
@click.option(
    "--plan",
    "shows_plan",
    is_flag=True,
    help="Print the job's plan as JSON, which `heddle cost` reads.",
)
@format_option("table", "json prints the HeddleJob objects.")
def status(
    job: str | None, namespace: str | None, all_namespaces: bool, shows_plan: bool, output: str
) -> None:
    """Print all jobs, or one job."""
    from heddle.cli.job_tables import page, table

    if shows_plan and job is None:
        raise click.UsageError("--plan needs the name of a job")
    if all_namespaces and job is not None:
        raise click.UsageError("-A shows all jobs; give the name of a job or -A, not both")
    if job is not None:
        job, namespace = job_named(job, namespace)
    if shows_plan and job is not None:
        click.echo(json.dumps(asyncio.run(_plan(namespace, job)), indent=2))
        return
    found = asyncio.run(_read(job, namespace, all_namespaces))
    if output == "json":
        click.echo(json.dumps(found, indent=2))
    elif job:
        click.echo("\n".join(page(found)))
    elif found["items"]:
        click.echo("\n".join(table(found["items"], datetime.now(UTC))))
    else:
        click.echo("There are no HeddleJobs here; -A looks in all namespaces.")


@click.command()
@click.argument("job")
@namespace_option
@click.option(
    "--tail", type=click.IntRange(1), help="Show only the last lines of each pod.  [default: all]"
)
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Go on with new lines, also of pods that join, until the job ends; in order of time.",
)
def logs(job: str, namespace: str | None, tail: int | None, follow: bool) -> None:
    """Show the logs of all ranks of a job; the first traceback comes first.

    Pods and logs of an ended job stay until the job is deleted.
    """
    from heddle.cli.pod_logs import lines_of, ordered
    from heddle_operator.apis.errors import OperatorError

    job, namespace = job_named(job, namespace)
    if follow:
        asyncio.run(_follow(namespace, job, tail))
        return
    found = asyncio.run(_logs(namespace, job, tail))
    if not found:
        raise OperatorError(
            f"job {job} has no pods now; `heddle status {job}` says why", code="Missing"
        )
    for log in ordered(found):
        for line in lines_of(log):
            click.echo(line)


async def _read(job: str | None, namespace: str | None, is_all: bool) -> dict[str, Any]:
    from heddle_operator.kube.client import connect

    async with await connect() as api:
        if is_all:
            return await get_job(api, f"{JOBS}/heddlejobs", None, "")
        where = namespace or api.namespace
        path = f"{JOBS}/namespaces/{where}/heddlejobs"
        return await get_job(api, f"{path}/{job}" if job else path, job, where)


async def _plan(namespace: str | None, job: str) -> dict[str, Any]:
    from heddle_operator.apis.errors import OperatorError
    from heddle_operator.apis.heddlejob import load_job
    from heddle_operator.kube.client import connect
    from heddle_operator.kube.references.config import referenced_config
    from heddle_operator.resources.epoch_config_map import epoch_name, record_of_body

    async with await connect() as api:
        where = namespace or api.namespace
        body = await get_job(api, f"{JOBS}/namespaces/{where}/heddlejobs/{job}", job, where)
        epoch = (body.get("status") or {}).get("epoch")
        if epoch is None:
            raise OperatorError(
                f"job {job} has no plan yet; `heddle status {job}` says why", code="Missing"
            )
        held = load_job(body, await referenced_config(api, body))
        path = f"/api/v1/namespaces/{where}/configmaps/{epoch_name(held, epoch)}"
        record = record_of_body(await api.get(path), 0.0)
    return {
        **record.plan.to_json(),
        "digest": record.plan.digest,
        "composition": record.composition.to_json(),
        "workload": held.workload.to_json(),
    }


async def _logs(namespace: str | None, job: str, tail: int | None) -> list[PodLog]:
    from heddle_operator.kube.client import connect

    async with await connect() as api:
        where = namespace or api.namespace
        await get_job(api, f"{JOBS}/namespaces/{where}/heddlejobs/{job}", job, where)
        return await _pod_logs(api, where, job, lambda _: _tail(tail))


async def _follow(namespace: str | None, job: str, tail: int | None) -> None:
    """Print new lines until the job has ended, and all it said with it."""
    from heddle.cli.pod_logs import Follower
    from heddle_operator.kube.client import connect

    follower, has_ended = Follower(), False

    def newer(whose: str) -> dict[str, str]:
        since = follower.since(whose)
        return {"sinceTime": since} if since else _tail(tail)

    async with await connect() as api:
        where = namespace or api.namespace
        path = f"{JOBS}/namespaces/{where}/heddlejobs/{job}"
        while not has_ended:
            body = await get_job(api, path, job, where)
            has_ended = (body.get("status") or {}).get("phase") in ENDED
            found = await _pod_logs(api, where, job, newer)
            for line in follower.new_lines(log for log in found if not log.is_refusal):
                click.echo(line)
            if not has_ended:
                await _pause()


async def _pause() -> None:
    await asyncio.sleep(LOOK_S)


def _tail(lines: int | None) -> dict[str, str]:
    return {"tailLines": str(lines)} if lines else {}


async def _pod_logs(
    api: KubeApi, where: str, job: str, query_of: Callable[[str], Mapping[str, str]]
) -> list[PodLog]:
    """The logs of a job's pods, each read by the query of its container."""
    from heddle.cli.pod_logs import NO_LOG, PodLog, containers_of
    from heddle_operator.apis.labels import JOB_LABEL
    from heddle_operator.kube.client import ApiRefused

    found = []
    pods = f"/api/v1/namespaces/{where}/pods"
    for pod in (await api.get(pods, labelSelector=f"{JOB_LABEL}={job}"))["items"]:
        name = pod["metadata"]["name"]
        for container in containers_of(pod):
            query = query_of(PodLog(name, "", container).whose)
            try:
                text = await api.text(
                    f"{pods}/{name}/log", container=container, timestamps="true", **query
                )
            except ApiRefused as error:
                text = f"{NO_LOG}{error})"
            found.append(PodLog(name, text, container))
    return found
