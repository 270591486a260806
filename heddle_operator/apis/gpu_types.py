"""The GPU types that a job can use: profiled, and with a price where money decides."""

from __future__ import annotations

from collections.abc import Mapping

from heddle_operator.apis.errors import InvalidJob
from heddle_operator.apis.heddlejob import HeddleJob


def check_gpu_types(job: HeddleJob, profiled: tuple[str, ...]) -> None:
    """Refuse a job that allows a GPU type for which there is no profile.

    Raises:
        InvalidJob: names the type and the profiled ones.
    """
    for gpu_type in job.spec.elastic.gpu_types.allow:
        if gpu_type not in profiled:
            raise InvalidJob(
                f"{job.name}: spec.elastic.gpuTypes.allow holds {gpu_type!r}, for which "
                f"{job.workload.model.name} has no profile; profiled are {', '.join(profiled)}",
                field="spec.elastic.gpuTypes.allow",
                code="Unknown",
            )


def priced_types(
    job: HeddleJob, profiled: tuple[str, ...], prices: Mapping[str, float]
) -> tuple[str, ...]:
    """The GPU types that a job can use: the profiled ones, with a price where money decides.

    Raises:
        InvalidJob: money decides, and no type has a price.
    """
    if job.spec.planner.objective != "Cost":
        return profiled
    priced = tuple(name for name in profiled if name in prices)
    if not priced:
        raise InvalidJob(
            f"{job.name}: spec.planner.objective is Cost, and no GPU type has a price; an "
            "administrator sets settings.prices of the chart, or write Throughput",
            field="spec.planner.objective",
            code="Missing",
        )
    return priced
