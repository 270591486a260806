"""The spec by which a job is followed: as it is written, or what holds while that is refused.

A job that trains is never dropped for its spec.  While the spec is refused, because somebody
mistyped a change or a newer operator is stricter, this holds:

- The spec that this operator accepted last, whole, as if it had not been changed.
- After a restart nobody knows that one.  Then the spec holds without what is refused in it, as far
  as it only says how the job follows its cluster (`_OPTIONAL_SECTIONS`), and the job moves only
  where it loses GPUs, as in mode Recommend.  What the training itself depends on is never guessed:
  where that is refused, the pods train on, their disruption budget stays, and nobody follows them.
- No pod is made of a template that is refused.  As far as it can be read, it still says which nodes
  the job may use, for the pods that are there were made of it.

Invariant: nothing that a job's author may not have gets into a pod.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from heddle_operator.apis.errors import InvalidJob, OperatorError
from heddle_operator.apis.gpu_types import check_gpu_types, priced_types
from heddle_operator.apis.gpu_wire import gpu_wire
from heddle_operator.apis.heddlejob import (
    API_VERSION,
    HeddleJob,
    Metadata,
    load_job,
    validated,
)
from heddle_operator.apis.times import wall_s
from heddle_operator.inventory.filters import refusal_of
from heddle_operator.kube.malformed_objects import UNREADABLE, what_is_wrong
from heddle_operator.resources.epoch_config_map import record_of_body
from heddle_operator.resources.pods import WorkerDefaults, pod_body
from heddle_operator.resources.template_rules import check_allowed
from heddle_operator.state.actions import CreatePod
from heddle_operator.state.epoch_record import Outcome
from heddle_operator.state.settings import Settings
from planner.errors import HeddleError
from planner.profiles.chosen import choose_profile

# Sections and fields of a spec without which a job trains the same.
_OPTIONAL_SECTIONS = frozenset(
    {
        *("planner", "elastic", "planRef", "worker", "suspend"),
        *("deadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"),
    }
)


@dataclass(frozen=True, slots=True)
class EffectiveSpec:
    """The spec by which a job is followed, and how far.

    Attributes:
        job: with the identity and generation of the object that is there.
        refusal: what is wrong with its spec, and what holds meanwhile; "" where it is accepted.
        no_pods: why no pod may be made; "" where they may.
    """

    job: HeddleJob
    refusal: str = ""
    no_pods: str = ""


def accepted(
    body: Mapping[str, Any],
    config: Mapping[str, Any] | None,
    defaults: WorkerDefaults,
    settings: Settings,
) -> HeddleJob:
    """The job as it is written.

    Args:
        body: the HeddleJob object.
        config: see `load_job`.
        defaults: what an administrator gives all pods, and lets authors have.
        settings: profiles and prices of GPU types.

    Raises:
        HeddleError: it cannot be run, its author may not have what it asks for, or the operator
            itself fails on it.
    """
    try:
        job = _loaded(body, config, defaults)
        check_gpu_types(job, gpu_types_of(job, settings))
        _check_pods(job, defaults)
        note = choose_profile(job.workload, settings.profiles_folder).note
        return job.noted(note) if note else job
    except HeddleError:
        raise
    except Exception as error:  # a defect of ours is no reason to leave a job that trains alone
        raise OperatorError(
            f"the operator itself fails on the spec ({what_is_wrong(error)}); report this defect",
            code="Failed",
        ) from error


def gpu_types_of(job: HeddleJob, settings: Settings) -> tuple[str, ...]:
    """The GPU types that the job can use; see `priced_types`.

    Raises:
        HeddleError: there is no profile, or no price where money decides.
    """
    profile = choose_profile(job.workload, settings.profiles_folder).profile
    return priced_types(job, tuple(sorted(profile.types)), settings.prices)


def spec_while_refused(
    body: Mapping[str, Any],
    config: Mapping[str, Any] | None,
    defaults: WorkerDefaults,
    settings: Settings,
    before: HeddleJob | None,
    refusal: str,
) -> EffectiveSpec | None:
    """The spec that holds for a training job while its own is refused; see the module.

    Args:
        body: the HeddleJob object.
        config: see `load_job`.
        defaults: see `accepted`.
        settings: see `accepted`.
        before: the job as this operator accepted it last.
        refusal: why it does not accept it now.

    Returns:
        None if nothing holds: what the training depends on is not known.
    """
    if before is not None:
        words = f"{refusal}; until that is corrected, the spec that was accepted before holds"
        return EffectiveSpec(before.model_copy(update={"metadata": _metadata(body)}), words)
    kept = _without_mistakes(body)
    try:
        job = _loaded(kept, config, defaults)
        try:
            gpu_types_of(job, settings)
        except InvalidJob:  # money decides, and its prices are gone
            del kept["spec"]["planner"]["objective"]
            job = _loaded(kept, config, defaults)
    except UNREADABLE:
        return None
    no_pods = "" if kept["spec"].get("worker") == body["spec"].get("worker") else refusal
    words = f"{refusal}; until that is corrected, the job goes on without it"
    if kept != body:
        elastic = job.spec.elastic.model_copy(update={"mode": "Recommend"})
        job = _changed(job, elastic=elastic)
        words += " and moves only where it loses GPUs"
    try:
        _check_pods(job, defaults)
    except HeddleError as error:
        no_pods = str(error)
    except UNREADABLE as error:
        no_pods = what_is_wrong(error)
    if no_pods:
        return EffectiveSpec(_readable(job, defaults), f"{words}; no pod is made", no_pods)
    return EffectiveSpec(job, words)


def _check_pods(job: HeddleJob, defaults: WorkerDefaults) -> None:
    """Whether pods may and can be made of the job's template.

    Raises:
        InvalidJob: they may not, or cannot.
    """
    check_allowed(job, defaults.allow, defaults.templates)
    check_template(job, defaults)


def _loaded(
    body: Mapping[str, Any], config: Mapping[str, Any] | None, defaults: WorkerDefaults
) -> HeddleJob:
    """The job, priced by the wire that the templates of its pods ask for."""
    job = load_job(body, config)
    worker = job.spec.worker
    return job.over(gpu_wire(worker.device, (defaults.base, worker.template, defaults.template)))


def outcomes_of(bodies: Iterable[Mapping[str, Any]]) -> tuple[Outcome, ...]:
    """Of epochs, the oldest first.

    Args:
        bodies: ConfigMaps of the job; what is no record among them is left out.
    """
    found = []
    for body in bodies:
        with contextlib.suppress(*UNREADABLE):
            found.append(record_of_body(body, 0.0))
    return tuple(record.outcome for record in sorted(found, key=lambda record: record.epoch))


def has_ended(outcomes: tuple[Outcome, ...], status: Mapping[str, Any]) -> bool:
    """Whether the job is complete or has failed.

    Args:
        outcomes: of its epochs.
        status: that is there; a job that fails before its first epoch has no record of it.
    """
    is_over = status.get("phase") in ("Complete", "Failed")
    return is_over or "complete" in outcomes or "failed" in outcomes


def trains(outcomes: tuple[Outcome, ...], status: Mapping[str, Any]) -> bool:
    """Whether an epoch of the job trains, or is about to."""
    lived = [each for each in outcomes if each in ("live", "lost", "suspended")]
    is_there = lived[-1:] == ["live"] or outcomes[-1:] == ("open",)
    return is_there and not has_ended(outcomes, status)


def ended_wall_s(status: Mapping[str, Any]) -> float | None:
    """When a job completed or failed, in seconds of the wall clock; None if that is not known.

    Args:
        status: whose conditions say so.
    """
    for row in status.get("conditions") or ():
        if row.get("type") in ("Complete", "Failed") and row.get("status") == "True":
            with contextlib.suppress(*UNREADABLE):
                return wall_s(row["lastTransitionTime"])
    return None


def ttl_in(body: Mapping[str, Any]) -> int | None:
    """`ttlSecondsAfterFinished` of a job, whose spec may be refused; None if it has none."""
    spec = body.get("spec")
    found = spec.get("ttlSecondsAfterFinished") if isinstance(spec, Mapping) else None
    return found if isinstance(found, int) and found >= 0 else None


def check_template(job: HeddleJob, defaults: WorkerDefaults) -> None:
    """Whether a pod can be made of the job's template, which the API server does not look into.

    Raises:
        InvalidJob: it cannot.
    """
    node: dict[str, Any] = {"metadata": {"name": "any", "labels": {}}}
    tainted = {**node, "spec": {"taints": [{"key": "any", "effect": "NoSchedule"}]}}
    try:
        spec = pod_body(job, CreatePod("any", "any", 0, 1), defaults, 0.0)["spec"]
        refusal_of(node, spec)
        refusal_of(tainted, spec)
    except UNREADABLE as error:
        raise InvalidJob(
            f"spec.worker.template gives no pod ({what_is_wrong(error)}); it must be a pod "
            "template as `kubectl explain pod` shows it",
            field="spec.worker.template",
            code="Malformed",
        ) from None


def _without_mistakes(body: Mapping[str, Any]) -> dict[str, Any]:
    """The object without what is wrong in it, as far as a job can do without."""
    kept = copy.deepcopy(dict(body))
    while True:
        try:
            validated(kept)
            return kept
        except ValidationError as error:
            removed = [_remove(kept, row["loc"], row["type"]) for row in error.errors()]
        if not any(removed):
            return kept


def _remove(body: dict[str, Any], where: tuple[int | str, ...], kind: str) -> bool:
    """Take one mistake out; False if it is no such mistake."""
    unknown = kind == "extra_forbidden"
    if len(where) < 2 or where[0] != "spec" or not (unknown or where[1] in _OPTIONAL_SECTIONS):
        return False
    at: Any = body
    for key in where[:-1]:
        at = at.get(key) if isinstance(at, Mapping) else None
    if not isinstance(at, dict) or where[-1] not in at:
        return False
    del at[where[-1]]
    return True


def _readable(job: HeddleJob, defaults: WorkerDefaults) -> HeddleJob:
    """The job with as much of its template as says anything of nodes that can be understood."""
    spec = job.spec.worker.template.get("spec")
    kept: dict[str, Any] = {}
    for key, value in spec.items() if isinstance(spec, Mapping) else ():
        tried = _with_template(job, {"spec": {**kept, key: value}})
        try:
            check_template(tried, defaults)
        except InvalidJob:
            continue
        kept[key] = value
    return _with_template(job, {"spec": kept})


def _with_template(job: HeddleJob, template: Mapping[str, Any]) -> HeddleJob:
    worker = job.spec.worker.model_copy(update={"template": template})
    return _changed(job, worker=worker)


def _changed(job: HeddleJob, **sections: Any) -> HeddleJob:
    return job.model_copy(update={"spec": job.spec.model_copy(update=sections)})


def _metadata(body: Mapping[str, Any]) -> Metadata:
    return Metadata.model_validate(body["metadata"])


def stub_of(body: Mapping[str, Any]) -> HeddleJob:
    """The identity of a job that cannot be read, to say so at its place."""
    metadata = body["metadata"]
    return HeddleJob.model_construct(
        api_version=API_VERSION,
        kind="HeddleJob",
        metadata=Metadata.model_construct(
            name=metadata["name"],
            namespace=metadata.get("namespace", "default"),
            uid=metadata["uid"],
            generation=int(metadata.get("generation", 0)),
        ),
    )
