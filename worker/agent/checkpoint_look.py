"""The look of an agent after the checkpoints of its job; its loop waits for no store."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections.abc import Callable

from worker.agent.admission import Refused, read_look
from worker.checkpoint.looking import look
from worker.checkpoint.vaults.open_vault import open_vault
from worker.contract import FoundCheckpoints, Look
from worker.data.digest import data_digest
from worker.errors import WorkerError

ANSWER_S = 30.0  # for a store that answers at all


class CheckpointLook:
    """The newest look; all methods run on the agent's event loop."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """Call `changed` with each answer."""
        self._answer: FoundCheckpoints | None = None
        self._answered_s = 0.0
        self._changed = changed
        self._asked: Look | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def answer(self) -> FoundCheckpoints | None:
        """The answer to the newest look that has ended; None: none has."""
        if self._answer is None:
            return None
        return self._answer.model_copy(update={"age_s": time.monotonic() - self._answered_s})

    def begin(self, body: object) -> Refused | None:
        """Look, unless this very look is under way; or say what is wrong with the question."""
        asked = read_look(body)
        if isinstance(asked, Refused):
            return asked
        if self._asked == asked:
            return None
        self._asked = asked
        loop = asyncio.get_running_loop()

        def work() -> None:
            found = _answer(asked)
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self._take, asked, found)

        late = f"the folder did not answer within {ANSWER_S:g} s"
        self._timer = loop.call_later(ANSWER_S, self._take, asked, _failed(asked, late))
        # No thread of a pool: a pool is joined at the end, and this one may hang with its disk.
        threading.Thread(target=work, name="look", daemon=True).start()
        return None

    def _take(self, asked: Look, found: FoundCheckpoints) -> None:
        if self._asked != asked:
            return
        assert self._timer is not None
        self._timer.cancel()
        self._answer, self._asked, self._answered_s = found, None, time.monotonic()
        self._changed()


def _answer(asked: Look) -> FoundCheckpoints:
    assert asked.training.checkpoint is not None
    path = asked.training.checkpoint.path
    digest = functools.cache(functools.partial(data_digest, asked.training.data))
    try:
        return look(open_vault(path), path, asked, digest)
    except (WorkerError, OSError) as error:
        return _failed(asked, str(error))


def _failed(asked: Look, sentence: str) -> FoundCheckpoints:
    assert asked.training.checkpoint is not None
    return FoundCheckpoints(epoch=asked.epoch, path=asked.training.checkpoint.path, error=sentence)
