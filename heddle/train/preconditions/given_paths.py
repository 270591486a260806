"""Whether the files that a job names are here and fit it, and its folders can be written.

Each mistake says what to do.  The operator does not ask this: there the pods have the files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heddle_operator.apis.errors import Mistake
from heddle_operator.apis.heddlejob import HeddleJob
from planner.errors import HeddleError
from planner.wording import reason_of
from worker.checkpoint.vaults.open_vault import folder_of
from worker.data.corpus import check_pairs
from worker.data.making.tokenizing import tokenization, why_unfit


def wrong_paths(job: HeddleJob, output: Path) -> list[Mistake]:
    """Mistakes in the paths of a job that writes into the folder `output`."""
    return [*_data(job), *_weights(job), *_output(output, job), *_checkpoints(job)]


def why_impossible(check: Callable[[], Any]) -> list[Mistake]:
    """The mistake that a check raises; empty if it raises none."""
    try:
        check()
    except HeddleError as error:
        return [Mistake.of(error)]
    return []


def _data(job: HeddleJob) -> list[Mistake]:
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
    mistakes = [Mistake(said, "Missing", "spec.data") for said in found]
    if data.tokenizer is not None:
        unfit = why_unfit(Path(data.tokenizer), vocab)
        if unfit is not None:
            return [*mistakes, Mistake(f"spec.data: {unfit}", "Mismatch", "spec.data")]
        tokenizer = Path(data.tokenizer)
        if data.commands("", ()):
            mistakes += why_impossible(lambda: tokenization(tokenizer))
    if not mistakes and not data.commands("", ()):
        mistakes += why_impossible(lambda: check_pairs(job.training.data, vocab))
    return mistakes


def _is_file(path: str, suffix: str) -> bool:
    return Path(f"{path}{suffix}").is_file()


def _weights(job: HeddleJob) -> list[Mistake]:
    """Whether the folder that the job starts from has the weights of its model."""
    spec = job.training
    if spec.weights is None:
        return []
    from worker.weights.hugging_face.reading import open_weights
    from worker.weights.hugging_face.tensors import family_of

    return why_impossible(
        lambda: open_weights(
            Path(str(spec.weights)), job.workload.model, family_of(spec.config or {})
        )
    )


def _output(folder: Path, job: HeddleJob) -> list[Mistake]:
    field, origin = "spec.output.path", job.spec.model.path
    if origin is not None and folder.resolve() == Path(origin).resolve():
        said = f"the output folder {folder} is that of the model, whose weights it would replace"
        return [Mistake(f"{said}; name another one with --output-path", "Taken", field)]
    why = _why_no_text(folder) or _why_unwritable(folder)
    if why is None:
        return []
    said = f"the output folder {folder} {why}; name another one with --output-path"
    return [Mistake(said, "Unwritable", field)]


def _checkpoints(job: HeddleJob) -> list[Mistake]:
    """Whether checkpoints can be written where the job names a folder for them."""
    folder = folder_of(job.spec.checkpoint.path) if job.spec.checkpoint else None
    why = None if folder is None else _why_unwritable(folder)
    if why is None:
        return []
    said = f"spec.checkpoint.path {folder} {why}; name another folder"
    return [Mistake(said, "Unwritable", "spec.checkpoint.path")]


def _why_no_text(folder: Path) -> str | None:
    """The clause that says why no record can name the folder; None: one can."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        return "has a name that is not UTF-8"
    return None


def _why_unwritable(folder: Path) -> str | None:
    """The clause that says why nothing can be written there; None: it can."""
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    try:
        with tempfile.TemporaryDirectory(prefix=".heddle-", dir=existing):
            return None
    except OSError as error:
        return f"cannot be written, nothing can be made in {existing} ({reason_of(error)})"
