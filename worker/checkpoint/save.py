"""Save a checkpoint in two phases: each rank its boxes, then one of them the manifest.

Files are safetensors files with the offsets of each box; torch's `HuggingFaceStorageReader` reads
them.  Moments of `<tensor>` are `<tensor>/exp_avg` and `<tensor>/exp_avg_sq`.
Invariants: a manifest names only objects that are whole; nothing replaces a manifest.
Source: design of checkpoints; two-phase commit; torch.distributed.checkpoint (`DCP_SHARDING_INFO`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from pydantic import ValidationError

from planner.model.shape import ModelShape
from planner.model.tensors import Tensor, model_tensors
from planner.plans.pieces import Piece
from planner.plans.state_rule import PARTS, element_bytes
from planner.wording import counted
from worker.checkpoint.attempts import Attempt
from worker.checkpoint.boxes import by_file, numel, offsets, untiled
from worker.checkpoint.manifest import (
    InvalidManifest,
    Manifest,
    SavedBox,
    SavedStep,
    running_digest,
    sealed,
    unsealed,
)
from worker.checkpoint.vaults.vault import Facts, Vault, VaultFailed
from worker.model.boxes import box_shape
from worker.training_settings import Frozen
from worker.weights.files import bytes_of, safetensors_header

READS_AT_ONCE = 10  # as many as an S3 client keeps connections
Read = Callable[[Piece], Iterable[Iterable[torch.Tensor]]]  # chunks of each part of a box, fp32


class RankPart(Frozen):
    """The boxes and files of one rank.

    Attributes:
        rank: in the plan.
        files: {file: bytes}.
        boxes: in them.
        run: id of the run that saves it; None: it has none.
    """

    rank: int
    files: dict[str, int]
    boxes: tuple[SavedBox, ...]
    run: str | None = None


class NotYet(Exception):
    """Some ranks have not saved their part yet, as far as this one sees.

    Attributes:
        objects: number of those that the store holds of all ranks.
    """

    def __init__(self, sentence: str, objects: int) -> None:
        super().__init__(sentence)
        self.objects = objects


def save_part(
    vault: Vault,
    attempt: Attempt,
    rank: int,
    model: ModelShape,
    boxes: Sequence[Piece],
    read: Read,
    run: str | None = None,
) -> RankPart:
    """Phase one: put the files of a rank, then the record of its boxes.

    `run` is the id of the run; None: it has none.

    Raises:
        VaultFailed: the store fails; nothing of it counts, and none of its files stays.
    """
    tensors = {tensor.name: tensor for tensor in model_tensors(model)}
    files: dict[str, int] = {}
    saved: list[SavedBox] = []
    try:
        for index, of_file in enumerate(by_file(boxes)):
            file = f"rank-{rank}-{index}.safetensors"
            header = header_of(tensors, of_file)
            elements = sum(numel(tensors[box.tensor], box) for box in of_file)
            size = len(header) + elements * element_bytes(PARTS)
            chunks = _chunks(header, of_file, read, file, saved)
            vault.put(attempt.name(file), chunks, size)
            files[file] = size
        part = RankPart(rank=rank, files=files, boxes=tuple(saved), run=run)
        content = sealed(part.model_dump_json().encode())
        vault.put(attempt.name(_record(rank)), [content], len(content))
    except VaultFailed:
        _remove_files(vault, attempt, files)
        raise
    return part


def _remove_files(vault: Vault, attempt: Attempt, files: Iterable[str]) -> None:
    """Remove files of a save that has failed, as far as the store lets it."""
    with contextlib.suppress(VaultFailed):
        for file in files:
            vault.remove(attempt.name(file))


def commit(
    vault: Vault,
    attempt: Attempt,
    ranks: int,
    model: ModelShape,
    saved: SavedStep,
    data_digest: str,
) -> Manifest | None:
    """Phase two: commit the manifest of all parts; None: this run has before.

    Args:
        vault: that holds the parts.
        attempt: of this save.
        ranks: that save a part each.
        model: whose state it is.
        saved: that state.
        data_digest: of the job's data.

    Raises:
        NotYet: a part is missing.
        InvalidManifest: a record is damaged, the parts do not tile the model, or the store gives
            back another manifest; code `other`: a part or the manifest is of another run.
        VaultFailed: the store fails, a file is shorter than its record says, or a newer epoch has
            removed it meanwhile.
    """
    there = vault.facts(f"{attempt}/")
    missing = [rank for rank in range(ranks) if attempt.name(_record(rank)) not in there]
    if missing:
        raise NotYet(
            f"{attempt} lacks the parts of {counted(len(missing), 'rank')}, the first of rank "
            f"{missing[0]}; give a path that all pods see",
            len(there),
        )
    files: dict[str, int] = {}
    boxes: list[SavedBox] = []
    for part in _parts(vault, attempt, ranks):
        _check_run(f"the part of rank {part.rank} in {attempt}", part.run, saved.run)
        files |= part.files
        boxes += part.boxes
    _look_at(vault, attempt, files, there)
    for name in PARTS:
        lacking = untiled(model, (saved_box.box for saved_box in boxes if saved_box.part == name))
        if lacking is not None:
            raise InvalidManifest(
                f"the parts do not cover {name} of {lacking} once", code="damaged"
            )
    whole = Manifest(**dict(saved), data_digest=data_digest, files=files, boxes=tuple(boxes))
    content = whole.to_bytes()
    manifest = Manifest.from_bytes(content)
    if not vault.commit(attempt.manifest, content):
        there_before = Manifest.from_bytes(vault.read(attempt.manifest))
        _check_run(attempt.manifest, there_before.run, saved.run)
        return None
    if vault.read(attempt.manifest) != content:
        raise InvalidManifest("the store gives back another manifest", code="damaged")
    try:
        _look_at(vault, attempt, files, vault.facts(f"{attempt}/"))
    except VaultFailed as failure:
        # A rank that stalled before its commit is an older epoch by now, whose files may be gone.
        if failure.code in ("missing", "cut"):
            vault.remove(attempt.manifest)
        raise
    return manifest


def key_of(box: Piece, part: str) -> str:
    """The name of a part of a tensor in a file."""
    return box.tensor if part == "weight" else f"{box.tensor}/{part}"


def header_of(tensors: Mapping[str, Tensor], boxes: Sequence[Piece]) -> bytes:
    """The header of a file with all parts of these boxes."""
    described, places = {}, {}
    for box in boxes:
        for part in PARTS:
            key = key_of(box, part)
            described[key] = (box_shape(tensors[box.tensor], box), torch.float32)
            places[key] = {"saved_offsets": offsets(tensors[box.tensor], box)}
    metadata = {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(places)}
    return safetensors_header(described, metadata)


def _check_run(what: str, found: str | None, run: str | None) -> None:
    """Refuse what another run has saved under the same name; the state would be of both."""
    if None not in (found, run) and found != run:
        raise InvalidManifest(
            f"{what} is of another run; give each job a checkpoint path of its own", code="other"
        )


def _look_at(
    vault: Vault, attempt: Attempt, files: Mapping[str, int], listed: Mapping[str, Facts]
) -> None:
    """Raise VaultFailed where a file is not there or shorter than its record says.

    A listing may be older than a file, so a file that it lacks is read.
    """
    for file, size in files.items():
        name = attempt.name(file)
        if name not in listed or listed[name].num_bytes != size:
            vault.read(name, size - 1, size)


def _parts(vault: Vault, attempt: Attempt, ranks: int) -> Iterable[RankPart]:
    """The records of all ranks; many would take minutes one after the other."""

    def read(rank: int) -> RankPart:
        return _part(vault.read(attempt.name(_record(rank))), rank)

    if ranks <= READS_AT_ONCE:
        return map(read, range(ranks))
    with ThreadPoolExecutor(READS_AT_ONCE) as pool:
        return list(pool.map(read, range(ranks)))


def _part(content: bytes, rank: int) -> RankPart:
    data = unsealed(content)
    if data is None:
        raise InvalidManifest(f"the record of rank {rank} is cut or damaged", code="damaged")
    try:
        return RankPart.model_validate_json(data)
    except ValidationError as error:
        raise InvalidManifest(
            f"the record of rank {rank} has {error.error_count()} fields of another form",
            code="damaged",
        ) from None


def _record(rank: int) -> str:
    return f"part-{rank}.json"


def _chunks(
    header: bytes, boxes: Sequence[Piece], read: Read, file: str, saved: list[SavedBox]
) -> Iterator[bytes | memoryview]:
    """The content of a file; each box is listed with its digest as it goes by."""
    yield header
    start = len(header)
    for box in boxes:
        for part, chunks in zip(PARTS, read(box), strict=True):
            digest, num_bytes = running_digest(), 0
            for chunk in chunks:
                content = bytes_of(chunk)
                digest.update(content)
                num_bytes += len(content)
                yield content
            saved.append(
                SavedBox(
                    part=part,
                    box=box,
                    file=file,
                    start=start,
                    num_bytes=num_bytes,
                    digest=digest.hexdigest(),
                )
            )
            start += num_bytes
