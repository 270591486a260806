"""Programs of Heddle that a run starts and waits for; their errors arrive with code and field.

Invariant: a wait that is cancelled leaves no process behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence

from heddle_operator.apis.errors import ProcessFailed
from planner.failure import Failure


async def run_heddle(
    arguments: Sequence[str], what: str, environment: Mapping[str, str] | None = None
) -> None:
    """Run a command of `heddle` to its end, as `run_child` does."""
    await run_child("heddle.child", arguments, what, environment)


async def run_child(
    module: str,
    arguments: Sequence[str],
    what: str,
    environment: Mapping[str, str] | None = None,
    hear: Callable[[bytes], None] | None = None,
) -> None:
    """Run a module that ends an error by the line of a `Failure`.

    Args:
        module: what `python -m` runs.
        arguments: of it.
        what: fails with it, for example "the data set cannot be made".
        environment: of the process; None: that of this one.
        hear: gets each line of its stdout; None: nobody reads them.

    Raises:
        ProcessFailed: with the code, field and sentence of its error.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE if hear else asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    assert process.stderr is not None
    said = asyncio.create_task(process.stderr.read())
    try:
        if hear and process.stdout is not None:
            async for line in process.stdout:
                hear(line)
        status = await process.wait()
        words = await said
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await asyncio.gather(said, return_exceptions=True)  # its pipe must not outlive the loop
    if status:
        failure = Failure.read(words, status)
        raise ProcessFailed(f"{what}: {failure.message}", field=failure.field, code=failure.code)
