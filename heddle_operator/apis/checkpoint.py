"""`spec.checkpoint` of a HeddleJob: where its state is saved, how often, and how much stays."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from worker.training_settings import BUCKET, Count, Positive, Section

SCHEMES = ("file", "s3")  # beside plain folders


class Interval(Section):
    """Distance between two checkpoints; exactly one of its fields is given."""

    steps: Count | None = Field(default=None, description="Steps between two checkpoints.")
    seconds: Positive | None = Field(default=None, description="Seconds between two checkpoints.")

    @model_validator(mode="after")
    def _is_one(self) -> Interval:
        if (self.steps is None) == (self.seconds is None):
            raise ValueError("give exactly one of steps and seconds, or leave interval out")
        return self


class Keep(Section):
    """Checkpoints that stay."""

    last: Count = Field(default=2, description="Number of the newest complete checkpoints.")
    best: bool = Field(
        default=False,
        description=(
            "Keep the checkpoint with the lowest held-out loss, too; of equal ones the newest. "
            "Each evaluation with a lower loss is saved. It needs evaluateEvery."
        ),
    )


def _is_known(path: str) -> str:
    scheme, is_url, rest = path.partition("://")
    if is_url and scheme not in SCHEMES:
        raise ValueError(
            f"checkpoints cannot be kept at {scheme}://; give a folder or s3://BUCKET/PREFIX"
        )
    if scheme == "s3" and is_url and not BUCKET.fullmatch(rest.partition("/")[0]):
        raise ValueError(
            "it must be s3://BUCKET/PREFIX, with a bucket of 3 to 63 lower letters, digits, dots "
            "and dashes"
        )
    return path


class Checkpoint(Section):
    """Checkpoints of the state, from which the job goes on when no pod holds it any more."""

    path: Annotated[
        str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_is_known)
    ] = Field(
        description=(
            "Folder on a volume of the pod template that all pods share, or "
            "s3://BUCKET/PREFIX. The checkpoints of the job are in a folder of its name there."
        )
    )
    interval: Interval | None = Field(
        default=None,
        description=(
            "Distance between two checkpoints. By default it loses least time, by the measured "
            "cost of a save and the job's own losses (Young, Daly)."
        ),
    )
    keep: Keep = Keep()
