"""Settings of the operator that an administrator may give, with the reason of every default.

They come from the file of `--settings`; docs/reference/settings.md and the chart's schema of
`settings` are generated from this class.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from heddle_operator.apis.errors import InvalidSettings
from heddle_operator.apis.heddlejob import HeddleJob
from planner.cost.money import DEAREST
from planner.wording import code_of, did_you_mean, kind_of

DAY_S = 86_400.0
Seconds = Annotated[float, Field(gt=0, le=DAY_S, allow_inf_nan=False)]
OF_THE_JOB = {"peerTimeoutSeconds": "spec.elastic.peerTimeoutSeconds"}


def key_of(name: str) -> str:
    """The key of a field in the file: seconds are spelled out."""
    return to_camel(f"{name}econds" if name.endswith("_s") else name)


class Settings(BaseModel):
    """Limits and expectations of the decision loop.

    Attributes:
        peer_timeout_s: silence after which a member is lost: an agent that does not answer, a rank
            that sends no heartbeat.  A job sets it; no file does.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=key_of, validate_by_name=True
    )

    peer_timeout_s: float = Field(default=10.0, exclude=True)
    kill_s: Seconds = Field(
        default=2.0,
        description=(
            "Time in which an agent must kill a rank without heartbeats. Later the pod is deleted."
        ),
    )
    progress_timeout_s: Seconds = Field(
        default=60.0,
        description=(
            "Time without progress after which an epoch is halted although its ranks send "
            "heartbeats; at least progressSteps predicted steps."
        ),
    )
    progress_steps: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=20, description="Predicted steps that an epoch has for its next progress."
    )
    prepare_timeout_s: Seconds = Field(
        default=300.0,
        description=(
            "Time that a rank has to prepare an epoch without progress. The rank builds "
            "an engine in one piece while the old plan trains on."
        ),
    )
    pod_timeout_s: Seconds = Field(
        default=600.0,
        description=(
            "Time from the creation of a pod until it must be ready (image pull, imports). A "
            "pod that was told to end has the same time to go."
        ),
    )
    pod_problem_s: Seconds = Field(
        default=10.0,
        description=(
            "Time to wait for a pod that cannot start: no image, no room, or refused by "
            "the API server. The old plan trains on."
        ),
    )
    late_s: Seconds = Field(
        default=8.0,
        description=(
            "Time for which a pod that is not ready may delay other nodes that could join."
        ),
    )
    start_late_s: Seconds = Field(
        default=30.0, description="The time of lateSeconds while nothing trains yet."
    )
    refusal_pause_s: Seconds = Field(
        default=5.0, description="Time until the operator retries a pod that the cluster refused."
    )
    halt_timeout_s: Seconds = Field(
        default=25.0,
        description=(
            "Time that a rank with heartbeats has to halt. Later it is given up if its "
            "state is not needed."
        ),
    )
    node_gone_s: Seconds = Field(
        default=60.0,
        description=(
            "Time without an answer of pods on unready nodes, after which a job goes back to its "
            "checkpoint. Kubernetes ends such pods later, or never if most nodes fail."
        ),
    )
    end_timeout_s: Seconds = Field(
        default=60.0,
        description=(
            "Time that a pod has to end after its job. Later it is deleted; pods that have ended "
            "stay."
        ),
    )
    epochs_kept: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=20, description="Number of newest epoch records that are kept beyond need."
    )
    expected_change_s: Seconds = Field(
        default=600.0,
        description=(
            "Expected time to the next change of the cluster, until the job has seen "
            "changesKnown changes."
        ),
    )
    changes_known: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=3, description="Number of changes after which the mean time between them is used."
    )
    expected_stall_s: Seconds = Field(
        default=1.0, description="Expected stall of a change, until one was measured."
    )
    backoff_limit_s: Seconds = Field(
        default=60.0,
        description="Longest pause after an aborted epoch; pauses are 1, 2, 4 ... s.",
    )
    plan_seed: Annotated[int, Field(ge=0)] = Field(default=0, description="Seed of the search.")
    plan_evaluations: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description=(
            "Number of plans after which a search stops. By default the job's budgetSeconds end "
            "it, or 3,000 plans on at most 16 GPUs."
        ),
    )
    prices: Mapping[str, Annotated[float, Field(ge=0, le=DEAREST, allow_inf_nan=False)]] = Field(
        default={},
        description=(
            "Money per GPU-hour by GPU type, in any currency; jobs of objective Cost need it."
        ),
    )
    profiles: str | None = Field(
        default=None,
        description=(
            "Folder of your own profiles, one folder a model; docs/operate.md says how to mount "
            "it. The operator reads a file once."
        ),
    )
    report_wait_s: Seconds = Field(
        default=3.0,
        description=(
            "Longest time that an agent holds back a report without news; at most a "
            "quarter of the job's peer time-out."
        ),
    )

    @property
    def profiles_folder(self) -> Path | None:
        """The folder of profiles; None: there is none."""
        return None if self.profiles is None else Path(self.profiles)

    def of_job(self, job: HeddleJob) -> Settings:
        """The settings with those of the job."""
        return self.model_copy(update={"peer_timeout_s": job.spec.elastic.peer_timeout_seconds})


def settings_of(data: object, where: str) -> Settings:
    """The settings in the data of a file.

    Args:
        data: read from YAML; None for an empty file.
        where: name of the file, for messages.

    Raises:
        InvalidSettings: the first mistake, with its key, the value found and the allowed range.
    """
    if data is None:
        return Settings()
    if not isinstance(data, Mapping):
        raise InvalidSettings(
            f"{where} holds {kind_of(data)}; settings are a mapping of keys", code="Malformed"
        )
    known = settings_schema()["properties"]
    for key in data:
        if key in OF_THE_JOB:
            raise InvalidSettings(
                f"{where}: {key} is set by each job; write {OF_THE_JOB[key]}",
                field=key,
                code="Unsupported",
            )
        if key not in known:
            near = did_you_mean(str(key), known)
            raise InvalidSettings(
                f"{where}: there is no setting {reprlib.repr(key)}{near}; "
                "docs/reference/settings.md lists all",
                field=key,
                code="Unknown",
            )
    try:
        return Settings.model_validate(dict(data), strict=True)
    except ValidationError as error:
        row = error.errors()[0]
        key, found = ".".join(map(str, row["loc"])), reprlib.repr(row["input"])
        field = known[row["loc"][0]]
        if len(row["loc"]) > 1:
            field = field["additionalProperties"]
        raise InvalidSettings(
            f"{where}: {key} is {found}; it must be {_demand(field)}", field=key, code=code_of(row)
        ) from None


def settings_schema() -> dict[str, Any]:
    """The JSON schema of the file."""
    found = Settings.model_json_schema(by_alias=True)
    fields = {
        key: {name: value for name, value in _flat(field).items() if name != "title"}
        for key, field in found["properties"].items()
        if key not in OF_THE_JOB
    }
    return {"type": "object", "additionalProperties": False, "properties": fields}


def _flat(field: Mapping[str, Any]) -> dict[str, Any]:
    """A field that may be absent without its null."""
    kinds = [kind for kind in field.get("anyOf", ()) if kind["type"] != "null"]
    rest = {key: value for key, value in field.items() if key != "anyOf"}
    return {key: value for key, value in {**rest, **(kinds[0] if kinds else {})}.items()
            if value is not None}  # fmt: skip


def _demand(field: Mapping[str, Any]) -> str:
    """The values that a field may have."""
    noun = {"number": "a number", "integer": "a whole number"}.get(field["type"])
    if noun is None:
        return "text" if field["type"] == "string" else "a mapping"
    lowest, highest = field.get("exclusiveMinimum"), field.get("maximum")
    start = f"above {lowest}" if lowest is not None else f"of at least {field['minimum']}"
    return f"{noun} {start}" + (f" and at most {highest:,.15g}" if highest is not None else "")
