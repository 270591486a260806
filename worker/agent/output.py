"""Whether the folder for the final weights can be written, tried before a step is trained."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from pathlib import Path

PROBE_BYTES = 4096
ADVICE = "final weights could not be kept there; mount a disk that the job's user can write"
ANSWER_S = 5.0  # for a disk that answers at all


async def probe(folder: str) -> str | None:
    """None if files can be written into `folder`, else one sentence; the folder is made if missing.

    The loop goes on meanwhile, also while a disk in the network does not answer.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str | None] = loop.create_future()

    def tell(found: str | None) -> None:
        if not answer.done():
            answer.set_result(found)

    def try_it() -> None:
        found = _try_to_write(Path(folder))
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, found)

    # No thread of a pool: a pool is joined at the end, and this one may hang with its disk.
    threading.Thread(target=try_it, name="probe-output", daemon=True).start()
    try:
        async with asyncio.timeout(ANSWER_S):
            return await answer
    except TimeoutError:
        return f"output {folder!r} did not take a small file within {ANSWER_S:g} s; {ADVICE}"


def _try_to_write(folder: Path) -> str | None:
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
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return f"output {str(folder)!r} cannot be written: {reason.lower()}; {ADVICE}"
    return None
