"""Whether this machine has what a job names: data, tokenizer, weights, folders to write into."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heddle_operator.apis.heddlejob import HeddleJob
from planner.errors import HeddleError
from planner.wording import reason_of
from worker.checkpoint.vaults.open_vault import folder_of
from worker.data.corpus import check_pairs
from worker.data.making.tokenizing import tokenization, why_unfit


def mistakes_here(job: HeddleJob, output: Path) -> tuple[str, ...]:
    """Everything that is wrong with the files and folders of a job, a sentence each.

    Args:
        job: as it is written.
        output: folder for what its run leaves.
    """
    return *_data(job), *_weights(job), *_output(output, job), *_checkpoints(job)


def impossible(check: Callable[[], Any]) -> list[str]:
    """The sentence of the error that a check raises, alone in a list; else nothing."""
    try:
        check()
    except HeddleError as error:
        return [str(error)]
    return []


def _data(job: HeddleJob) -> list[str]:
    """Whether the job's texts, pairs and tokenizer are there, and fit each other and the model."""
    data, vocab, found = job.spec.data, job.workload.model.vocab, []
    for path in data.pairs:
        missing = [f"{path}{suffix}" for suffix in (".bin", ".idx") if not _is_file(path, suffix)]
        if missing:
            found.append(
                f"spec.data names {path!r}, and {' and '.join(missing)} cannot be found; "
                "make them with `heddle data prepare`, or name their path on this machine"
            )
    found += [
        f"spec.data names {path!r}, which cannot be found; name its path on this machine"
        for path in data.texts
        if not Path(path).exists()
    ]
    if data.tokenizer is not None:
        unfit = why_unfit(Path(data.tokenizer), vocab)
        if unfit is not None:
            return [*found, f"spec.data: {unfit}"]
        tokenizer = Path(data.tokenizer)
        found += impossible(lambda: tokenization(tokenizer)) if len(data.commands("", ())) else []
    if not found and not data.commands("", ()):
        found += impossible(lambda: check_pairs(job.training.data, vocab))
    return found


def _is_file(path: str, suffix: str) -> bool:
    return Path(f"{path}{suffix}").is_file()


def _weights(job: HeddleJob) -> list[str]:
    """Whether the folder that the job starts from has the weights of its model."""
    spec = job.training
    if spec.weights is None:
        return []
    from worker.weights.hugging_face.reading import open_weights
    from worker.weights.hugging_face.tensors import family_of

    return impossible(
        lambda: open_weights(
            Path(str(spec.weights)), job.workload.model, family_of(spec.config or {})
        )
    )


def _output(folder: Path, job: HeddleJob) -> list[str]:
    origin = job.spec.model.path
    if origin is not None and folder.resolve() == Path(origin).resolve():
        return [
            f"the output folder {folder} is that of the model, whose weights it would replace; "
            "name another one with --output-path"
        ]
    why = _why_unwritable(folder)
    if why is None:
        return []
    return [f"the output folder {folder} {why}; name another one with --output-path"]


def _checkpoints(job: HeddleJob) -> list[str]:
    """Whether checkpoints can be written where the job names a folder for them."""
    folder = folder_of(job.spec.checkpoint.path) if job.spec.checkpoint else None
    why = None if folder is None else _why_unwritable(folder)
    return [] if why is None else [f"spec.checkpoint.path {folder} {why}; name another folder"]


def _why_unwritable(folder: Path) -> str | None:
    """The clause that says why nothing can be written there; None: it can."""
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    try:
        with tempfile.TemporaryDirectory(prefix=".heddle-", dir=existing):
            return None
    except OSError as error:
        return f"cannot be written, nothing can be made in {existing} ({reason_of(error)})"
