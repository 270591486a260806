"""The HeddleJobs of a cluster, as the commands read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heddle_operator.kube.client import KubeApi

JOBS = "/apis/heddle.dev/v1alpha1"


async def get_job(api: KubeApi, path: str, job: str | None, namespace: str) -> dict[str, Any]:
    """A job, or a list of jobs, at a path.

    Raises:
        OperatorError: there is no such job, or the cluster knows no jobs at all.
    """
    from heddle_operator.apis.errors import OperatorError
    from heddle_operator.kube.client import ApiRefused

    try:
        return await api.get(path)
    except ApiRefused as error:
        if error.status != 404:
            raise
        if job is None or error.name != job:  # else the path itself is unknown
            raise OperatorError(
                "the cluster knows no HeddleJobs; install the chart, or apply manifests/crd",
                code="Missing",
            ) from None
        raise OperatorError(
            f"there is no HeddleJob {job} in namespace {namespace}; `heddle status -A` lists all",
            code="Missing",
        ) from None


async def read_job(job: str, namespace: str | None) -> dict[str, Any]:
    """A job of the cluster; without a namespace that of the kubeconfig.

    Raises:
        OperatorError: there is no such job, or no cluster to talk to.
    """
    from heddle_operator.kube.client import connect

    async with await connect() as api:
        where = namespace or api.namespace
        return await get_job(api, f"{JOBS}/namespaces/{where}/heddlejobs/{job}", job, where)
