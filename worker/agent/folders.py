"""Whether the folders of a job are right, tried before a step is trained.

That for the final weights must take files, that of the model hold the job's config.json, and the
tokenizer fit the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from worker.data.making.tokenizing import why_unfit
from worker.training_settings import TrainingSpec
from worker.weights.hugging_face.config import difference
from worker.weights.run_record import RunRecord, claim

PROBE_BYTES = 4096
ADVICE = "final weights could not be kept there; mount a disk that the job's user can write"
ANSWER_S = 5.0  # for a disk that answers at all


async def probe(folder: str, record: RunRecord | None = None) -> str | None:
    """None if `folder` takes files, else one sentence; it is made if it is missing.

    Args:
        folder: for the final weights.
        record: of the run, whose folder it is from now on; None: the run has no id.
    """
    late = f"output {folder!r} did not take a small file within {ANSWER_S:g} s; {ADVICE}"
    return await _ask(lambda: _try_to_write(Path(folder), record), late)


async def compare(folder: str, config: Mapping[str, Any]) -> str | None:
    """None if the model's folder has this config.json, else one sentence."""
    late = f"model folder {folder!r} did not give its config.json within {ANSWER_S:g} s; mount it"
    return await _ask(lambda: difference(config, Path(folder)), late)


async def fit(tokenizer: str, vocab: int) -> str | None:
    """None if the model takes all tokens of a tokenizer, else one sentence."""
    late = f"tokenizer {tokenizer!r} did not give its file within {ANSWER_S:g} s; mount it"
    return await _ask(lambda: why_unfit(Path(tokenizer), vocab), late)


Question = Callable[[], Awaitable[str | None]]


def questions(spec: TrainingSpec, job: str) -> dict[tuple[str, str], Question]:
    """{(use, folder): what is to be asked of it} of a job; one folder may have several uses."""
    found: dict[tuple[str, str], Question] = {}
    if spec.output is not None:
        record = RunRecord(run=spec.run, job=job) if spec.run is not None else None
        found["output", spec.output] = partial(probe, spec.output, record)
    if spec.folder is not None:
        found["model", spec.folder] = partial(compare, spec.folder, spec.config or {})
    if spec.data.tokenizer is not None:
        vocab = spec.model_shape().vocab
        found["tokenizer", spec.data.tokenizer] = partial(fit, spec.data.tokenizer, vocab)
    return found


async def _ask(question: Callable[[], str | None], late: str) -> str | None:
    """The answer of a disk, or `late` if it gives none in time.

    The loop goes on meanwhile, also while a disk in the network does not answer.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str | None] = loop.create_future()

    def tell(found: str | None) -> None:
        if not answer.done():
            answer.set_result(found)

    def try_it() -> None:
        found = question()
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, found)

    # No thread of a pool: a pool is joined at the end, and this one may hang with its disk.
    threading.Thread(target=try_it, name="probe-folder", daemon=True).start()
    try:
        async with asyncio.timeout(ANSWER_S):
            return await answer
    except TimeoutError:
        return late


def _try_to_write(folder: Path, record: RunRecord | None) -> str | None:
    file = folder / f".probe-{os.uname().nodename}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with file.open("wb") as opened:
                opened.write(bytes(PROBE_BYTES))
                opened.flush()
                os.fsync(opened.fileno())
        finally:
            file.unlink(missing_ok=True)
        return claim(folder, record) if record is not None else None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return f"output {str(folder)!r} cannot be written: {reason.lower()}; {ADVICE}"
