"""The resource `HeddleJob` (heddle.dev/v1alpha1), typed; every mistake is one sentence.

Invariant: a job that `load_job` returns can be run as far as the job alone tells; what needs a
profile is checked by `apis.gpu_types`.  Fields that this version cannot honour are refused, never
ignored.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
)
from pydantic_core import ErrorDetails

from heddle_operator.apis.errors import InvalidJob, Mistake
from heddle_operator.apis.gpu_wire import gpu_wire
from heddle_operator.apis.labels import SAVE_ANNOTATION
from heddle_operator.apis.spec import JobSpec
from heddle_operator.apis.times import wall_s_if_time
from planner.errors import HeddleError
from planner.model.workload import GpuWire, Workload
from planner.strict_yaml import read_yaml
from planner.wording import code_of, demand_of, did_you_mean, kind_of
from worker.contract import TrainingSpec
from worker.trainable import why_untrainable
from worker.training_settings import Checkpointing, Section

API_VERSION = "heddle.dev/v1alpha1"
MOST_EXACT = 2**53  # JSON's numbers are whole up to there
MAX_NAME = 63  # of a label's value, by which the objects of a job are found


class Metadata(BaseModel):
    """Kubernetes' object metadata; further keys are Kubernetes' own."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    creation_timestamp: str = Field(default="", alias="creationTimestamp")
    annotations: Mapping[str, str] | None = None

    @field_validator("name")
    @classmethod
    def _leaves_room(cls, name: str) -> str:
        if len(name) > MAX_NAME:
            raise ValueError(
                f"{name!r} has {len(name)} characters; at most {MAX_NAME} are allowed, because the "
                "objects of the job are labelled with it"
            )
        return name


class HeddleJob(Section):
    """One training job that Heddle keeps on the best plan for the GPUs that are there now."""

    api_version: Literal["heddle.dev/v1alpha1"]
    kind: Literal["HeddleJob"]
    metadata: Metadata
    spec: JobSpec
    _notes: tuple[str, ...] = PrivateAttr(default=())
    _wire: GpuWire | None = PrivateAttr(default=None)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about an annotation that cannot be read, and about the job's profile."""
        asked = (self.metadata.annotations or {}).get(SAVE_ANNOTATION)
        if asked is None or wall_s_if_time(asked) is not None:
            return self._notes
        unread = f"the annotation {SAVE_ANNOTATION} is {asked!r}, which is no time of RFC 3339"
        return (unread, *self._notes)

    def noted(self, note: str) -> HeddleJob:
        """The job with another note."""
        job = self.model_copy()
        job._notes = (*self._notes, note)
        return job

    @property
    def name(self) -> str:
        """The job's name; pods, epochs and directives carry it."""
        return self.metadata.name

    @property
    def workload(self) -> Workload:
        """Workload that the planner prices."""
        training = self.spec.training
        model = self.spec.model.shape
        return Workload(
            model=model,
            global_batch=training.global_batch,
            sequence_length=training.sequence_length,
            precision=training.precision,
            zero=int(self.spec.planner.zero == "Stage1"),
            recompute=self.spec.planner.recompute,
            memory="worker",
            wire=self._wire or gpu_wire(self.spec.worker.device, (self.spec.worker.template,)),
        )

    @property
    def training(self) -> TrainingSpec:
        """Training part of every directive; texts have no pairs before `with_data`."""
        spec, training = self.spec, self.spec.training
        return TrainingSpec(
            model=spec.model.shape.name,
            data=spec.data.as_read,
            steps=spec.steps,
            output=spec.output.path if spec.output else None,
            run=self.metadata.uid or None,
            verify=spec.elastic.verify,
            checkpoint=self._checkpointing,
            **spec.model.origin,
            **training.model_dump(),
        )

    @property
    def save_asked_unix_s(self) -> float | None:
        """API server's time at which a user asked to save last; None: nobody did, or by no time."""
        said = (self.metadata.annotations or {}).get(SAVE_ANNOTATION)
        return wall_s_if_time(said)

    @property
    def _checkpointing(self) -> Checkpointing | None:
        """Where and how often the spec asks to save; a job's folder has its name."""
        wanted = self.spec.checkpoint
        if wanted is None:
            return None
        interval = wanted.interval
        return Checkpointing(
            path=f"{wanted.path.rstrip('/')}/{self.name}",
            every_steps=interval.steps if interval else None,
            every_s=interval.seconds if interval else None,
            keep_last=wanted.keep.last,
            keep_best=wanted.keep.best,
        )

    def over(self, wire: GpuWire) -> HeddleJob:
        """The same job, priced by the wire that its ranks use."""
        job = self.model_copy()
        job._wire = wire
        return job

    def with_data(self, folder: str) -> HeddleJob:
        """The same job on the pairs that are made of its texts in a folder."""
        spec = self.spec.model_copy(update={"data": self.spec.data.prepared(folder)})
        return self.model_copy(update={"spec": spec})


def load_job(
    source: str | Path | Mapping[str, Any], config: Mapping[str, Any] | None = None
) -> HeddleJob:
    """Read a job from a YAML file or from plain data.

    Args:
        source: the file, or what is in one.
        config: config.json of the folder that the job names; None: it is on this machine.

    Raises:
        InvalidJob: the first mistake, with the field, what it holds and what to do.
    """
    data: object = source
    where = "the job"
    if isinstance(source, str | Path):
        where = str(source)
        data = read_yaml(Path(source), "job file", InvalidJob, "HeddleJob")
    try:
        return _read(data, config)
    except InvalidJob as error:
        first = error.mistakes[0]
        raise InvalidJob(f"{where}: {first.message}", field=first.field, code=first.code) from None


def _read(data: object, config: Mapping[str, Any] | None = None) -> HeddleJob:
    """The job in plain data.

    Raises:
        InvalidJob: all mistakes of single fields, or else the first of several fields together.
    """
    if not isinstance(data, Mapping):
        raise InvalidJob(
            f"it holds {kind_of(data)}; a HeddleJob is a mapping with apiVersion, kind, metadata, "
            "spec",
            code="Malformed",
        )
    try:
        job = validated(data)
    except ValidationError as error:
        raise InvalidJob.of([_mistake(each) for each in error.errors()]) from None
    try:
        job = _resolved(job, config)
        workload = job.workload
    except HeddleError as error:
        raise InvalidJob.of([Mistake.of(error)]) from None
    try:
        _ = job.training
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidJob(
            f"spec.training: {demand_of(first)}", field="spec.training", code=code_of(first)
        ) from None
    untrainable = why_untrainable(
        workload.model,
        workload.sequence_length,
        masks_documents=job.spec.data.document_mask,
    )
    if untrainable is not None:
        raise InvalidJob(f"spec.model: {untrainable}", field="spec.model", code="Unsupported")
    return job


def validated(data: Mapping[Any, Any]) -> HeddleJob:
    """The job in plain data, of which each field is right by itself.

    Raises:
        ValidationError: a field is wrong, or of another kind than the API server takes.
        InvalidJob: the data are nested without end, as YAML's anchors can.
    """
    return HeddleJob.model_validate_json(_json_of(data), strict=True)


def _json_of(data: Mapping[Any, Any]) -> str:
    """Data as the API server gets them; the status is the operator's writing, never its input."""
    try:
        given = {key: value for key, value in data.items() if key != "status"}
        return json.dumps(_plain(given), default=str)
    except RecursionError:
        raise InvalidJob("it is nested too deeply; write it out", code="Malformed") from None


def _plain(data: object) -> object:
    """JSON has one kind of number, so 4.0 is 4, and no half of a surrogate pair."""
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, str):
        return data.encode(errors="surrogatepass").decode(errors="replace")
    if isinstance(data, float) and data.is_integer() and abs(data) < MOST_EXACT:
        return int(data)
    return data


def _resolved(job: HeddleJob, config: Mapping[str, Any] | None) -> HeddleJob:
    """The job with all that is known of its model.

    Raises:
        InvalidWeights: its folder has no config.json that can be read.
        InvalidJob: it would write its weights over those that it starts from.
    """
    spec = job.spec
    if spec.output and spec.model.path and Path(spec.output.path) == Path(spec.model.path):
        raise InvalidJob(
            f"spec.output.path is the folder of the model, {spec.model.path!r}, whose weights it "
            "would replace; name another folder",
            field="spec.output.path",
            code="Taken",
        )
    update = {"spec": spec.model_copy(update={"model": spec.model.resolved(config)})}
    return job.model_copy(update=update)


def mistakes_of(data: object) -> tuple[Mistake, ...]:
    """Everything that is wrong with a job; () if `load_job` takes it.

    What depends on several fields is looked at once each of them is right.
    """
    try:
        _read(data)
    except InvalidJob as error:
        return error.mistakes
    return ()


def _mistake(error: ErrorDetails) -> Mistake:
    field = ".".join(str(part) for part in error["loc"])
    return Mistake(_sentence(error), code_of(error), field)


def _near(path: tuple[int | str, ...]) -> str:
    """The field that may have been meant, in brackets; nothing if none is like it."""
    section: type[BaseModel] = HeddleJob
    for part in path[:-1]:
        found = [f for n, f in section.model_fields.items() if part in (n, f.alias)]
        kinds = [found[0].annotation, *get_args(found[0].annotation)] if found else []
        sections = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
        if not sections:
            return ""
        section = sections[0]
    names = (field.alias or name for name, field in section.model_fields.items())
    return did_you_mean(str(path[-1]), names)


def _sentence(error: ErrorDetails) -> str:
    field = ".".join(str(part) for part in error["loc"])
    value = error["input"]
    found = (
        f" (found {'nothing' if value is None else reprlib.repr(value)})"
        if error["type"] not in ("missing", "extra_forbidden", "value_error")
        else ""
    )
    message = demand_of(error)
    if error["type"] == "missing":
        message = "this field is required"
    if error["type"] == "extra_forbidden":
        message = f"a HeddleJob has no such field{_near(error['loc'])}"
    if (field, error["type"]) == ("metadata.name", "string_pattern_mismatch"):
        message = (
            "it must hold lower-case letters, digits and dashes only, and begin and end with a "
            "letter or digit"
        )
    return f"{field}: {message}{found}"
