"""The manifest of a checkpoint: the boxes of the state of one step, and the files that hold them.

Its bytes are a digest and a JSON object, so that a manifest which was cut anywhere is none.
Invariants: a manifest that is read is the one that was written; its boxes lie within its files.
Source: design of checkpoints; the digest is XXH3 of 128 bits (github.com/Cyan4973/xxHash).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import xxhash
from pydantic import Field, ValidationError

from planner.plans.pieces import Piece
from worker.errors import CheckpointUnusable
from worker.training_settings import Frozen, TrainingSpec

if TYPE_CHECKING:
    from worker.engine.seam import Progress  # an agent reads manifests, and loads no torch

VERSION = 1
DIGEST_CHARS = 32  # of 128 bits, in hexadecimal digits


class InvalidManifest(CheckpointUnusable):
    """A manifest is cut, damaged, or of a newer version; `code` is `damaged` or `newer`."""


class Damaged(InvalidManifest):
    """An object of a checkpoint has other content than was saved, or is gone.

    Attributes:
        name: of the object in its vault.
    """

    def __init__(self, name: str, sentence: str, code: str = "damaged") -> None:
        super().__init__(sentence, code=code)
        self.name = name


class SavedBox(NamedTuple):
    """A box of one part of a tensor, and where its bytes are.

    Attributes:
        part: `weight`, `exp_avg` or `exp_avg_sq`.
        box: its rows.
        file: name of the file in the folder of the checkpoint.
        start: of its bytes in that file.
        num_bytes: it has.
        digest: of them, by `digest_of`.
    """

    part: str
    box: Piece
    file: str
    start: int
    num_bytes: int
    digest: str


class SavedStep(Frozen):
    """The step whose state a checkpoint saves.

    Attributes:
        step: completed steps of the state.
        updates: applied in them.
        loss_scale: of the next step.
        good_steps: finite ones since the scale last changed.
        training: settings of the job, as its contract writes them.
        shape: of the model, as its file has it.
        plan_digest: of the plan that saved it; any other plan can load it.
        held_out_loss: of the evaluation at this very step, finite; None: there was none before the
            save began.
    """

    step: int
    updates: int
    loss_scale: int
    good_steps: int
    training: dict[str, Any]
    shape: dict[str, Any]
    plan_digest: str
    held_out_loss: Annotated[float, Field(allow_inf_nan=False)] | None = None

    @property
    def run(self) -> str | None:
        """Id of the run that saves it; None: it has none."""
        found = self.training.get("run")
        return found if isinstance(found, str) else None

    @staticmethod
    def at(
        progress: Progress, spec: TrainingSpec, plan_digest: str, loss: float | None = None
    ) -> SavedStep:
        """The state of a job at a boundary, with its held-out loss if that is known."""
        return SavedStep(
            step=progress.step,
            updates=progress.updates,
            loss_scale=progress.loss_scale,
            good_steps=progress.good_steps,
            training=spec.model_dump(mode="json"),
            shape=spec.model_shape().to_json(),
            plan_digest=plan_digest,
            held_out_loss=loss if loss is not None and math.isfinite(loss) else None,
        )


class Manifest(SavedStep):
    """A whole checkpoint.

    Attributes:
        version: of this form.
        data_digest: of the job's data, tokens and all, by `worker.data.digest`.
        files: {file: bytes}.
        boxes: all of them; each part of each tensor is tiled once.
    """

    version: int = VERSION
    data_digest: str
    files: dict[str, int]
    boxes: tuple[SavedBox, ...]

    def to_bytes(self) -> bytes:
        """The content of its file."""
        return sealed(self.model_dump_json().encode())

    @staticmethod
    def from_bytes(content: bytes) -> Manifest:
        """Read the content of its file.

        Raises:
            InvalidManifest: it is cut, damaged, or of a newer version.
        """
        data = unsealed(content)
        if data is None:
            raise InvalidManifest("the manifest is cut or damaged", code="damaged")
        try:
            found = Manifest.model_validate_json(data)
        except ValidationError as error:
            is_newer = _version_of(data) > VERSION
            raise (
                _newer(data)
                if is_newer
                else InvalidManifest(
                    f"the manifest has {error.error_count()} fields of another form", code="damaged"
                )
            ) from None
        if found.version > VERSION:
            raise _newer(data)
        for saved in found.boxes:
            if saved.start < 0 or saved.start + saved.num_bytes > found.files.get(saved.file, 0):
                raise InvalidManifest(
                    f"the manifest has {saved.box.tensor} beyond the end of {saved.file}",
                    code="damaged",
                )
        return found


def digest_of(content: bytes | memoryview) -> str:
    """The digest of a manifest or of a box."""
    return xxhash.xxh3_128_hexdigest(content)


def running_digest() -> xxhash.xxh3_128:
    """The digest of a box that is read piece by piece, by `update` and `hexdigest`."""
    return xxhash.xxh3_128()


def sealed(data: bytes) -> bytes:
    """The data behind a line with its digest."""
    return f"{digest_of(data)}\n".encode() + data


def unsealed(content: bytes) -> bytes | None:
    """The data of what `sealed` gave; None: it was cut or changed."""
    data = content[DIGEST_CHARS + 1 :]
    return data if content == sealed(data) else None


class _Version(Frozen):
    version: int = 0


def _version_of(data: bytes) -> int:
    try:
        return _Version.model_validate_json(data).version
    except ValidationError:
        return 0


def _newer(data: bytes) -> InvalidManifest:
    return InvalidManifest(
        f"the manifest has version {_version_of(data)}, this Heddle reads up to {VERSION}; "
        "load it with a newer one",
        code="newer",
    )
