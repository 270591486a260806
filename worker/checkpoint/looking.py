"""Which checkpoints of a vault a job can go on from; an agent looks, and no number is read.

Invariant: this reaches no framework: an agent has none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from planner.model.shape import ModelShape
from worker.checkpoint.attempts import Attempt, complete, objects_of
from worker.checkpoint.manifest import InvalidManifest, Manifest, digest_of
from worker.checkpoint.vaults.vault import Vault, VaultFailed
from worker.checkpoint_records import (
    FOUND_MOST,
    FoundCheckpoint,
    FoundCheckpoints,
    Look,
    RefusedCheckpoint,
    RefusedCode,
)
from worker.contract import TrainingSpec

FIXED = ("global_batch", "sequence_length", "seed")  # they decide the samples of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A complete attempt of a vault.

    Attributes:
        digest: of the manifest's bytes; "" where they cannot be read.
        run: id of the run that saved it; None: it is unknown.
        manifest: None where the attempt is refused.
        code: why it is refused; None: it is not.
        sentence: why it is refused; "" if it is not.
    """

    attempt: Attempt
    digest: str
    run: str | None
    manifest: Manifest | None
    code: RefusedCode | None
    sentence: str


def examined(
    vault: Vault, names: Sequence[str], refuse: Callable[[Manifest], str | None]
) -> Iterator[Examined]:
    """The complete attempts of a vault, the newest first.

    Args:
        vault: that holds them.
        names: of all its objects.
        refuse: says in a sentence why a manifest is of another job; None: it is of this one.
    """
    for attempt in complete(names):
        digest, run, manifest = "", None, None
        code: RefusedCode | None = None
        try:
            content = vault.read(attempt.manifest)
            digest = digest_of(content)
            manifest = Manifest.from_bytes(content)
            run = manifest.run
            sentence = refuse(manifest) or ""
            code = "other" if sentence else None
        except InvalidManifest as error:
            code, sentence = "newer" if error.code == "newer" else "damaged", str(error)
        except VaultFailed as error:
            code, sentence = "unread", str(error)
        yield Examined(
            attempt=attempt,
            digest=digest,
            run=run,
            manifest=None if code else manifest,
            code=code,
            sentence=sentence,
        )


def of_run(rows: Iterable[Examined], run: str | None) -> Iterable[Examined]:
    """The attempts that a run may go back to: its own, and those before its oldest.

    Two jobs of one name may save in one place; the later one's state is not that of the other.  A
    run without an attempt of its own may go on from all: a job that is created again does.
    """
    if run is None:
        return rows
    there = list(rows)
    own = [one.attempt for one in there if one.run == run]
    if not own:
        return there
    return [one for one in there if one.run in (None, run) or one.attempt < min(own)]


def look(
    vault: Vault, path: str, asked: Look, data_digest: Callable[[], str] | None
) -> FoundCheckpoints:
    """The answer to a look.

    Args:
        vault: of the path.
        path: that the answer names.
        asked: supplies the epoch and the job's settings.
        data_digest: gives that of the job's data; asked only where a checkpoint is there.  None:
            the data are not compared.
    """
    found: list[FoundCheckpoint] = []
    refused: list[RefusedCheckpoint] = []
    try:
        model = asked.training.model_shape()
        names = vault.names()
        last_epoch = max((attempt.epoch for attempt in objects_of(names)), default=0)

        def refuse(saved: Manifest) -> str | None:
            digest = data_digest() if data_digest is not None else saved.data_digest
            return unfit(saved, model, asked.training, digest)

        for one in of_run(examined(vault, names, refuse), asked.run):
            epoch, step = one.attempt
            if one.code is None:
                found.append(FoundCheckpoint(epoch=epoch, step=step, manifest=one.digest))
            else:
                refused.append(
                    RefusedCheckpoint(epoch=epoch, step=step, code=one.code, error=one.sentence)
                )
            if len(found) + len(refused) == FOUND_MOST:
                break
    except VaultFailed as error:
        return FoundCheckpoints(epoch=asked.epoch, path=path, error=str(error))
    return FoundCheckpoints(
        epoch=asked.epoch,
        path=path,
        found=tuple(found),
        refused=tuple(refused),
        last_epoch=last_epoch,
    )


def unfit(
    manifest: Manifest, model: ModelShape, spec: TrainingSpec, data_digest: str
) -> str | None:
    """Why a job cannot go on from a checkpoint: one sentence; None: it can."""
    # JSON has lists where a shape has tuples
    saved, shape = (json.loads(json.dumps(one)) for one in (manifest.shape, model.to_json()))
    odd = sorted(key for key in shape if saved.get(key) != shape[key])
    if odd:
        return f"the checkpoint is of another model: it has another {odd[0]}"
    asked = spec.model_dump(mode="json")
    for key in FIXED:
        if manifest.training.get(key) != asked[key]:
            return (
                f"the checkpoint has {key} {manifest.training.get(key)}, the job has {asked[key]}; "
                "give it the same"
            )
    if manifest.data_digest != data_digest:
        return "the checkpoint is of another data set; give the job the same pairs and split"
    return None
