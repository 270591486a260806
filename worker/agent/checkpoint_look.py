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
    """The newest look; all methods run on the agent's event loop.

    One thread looks at a time: one that hangs with its disk can be neither ended nor joined.
    """

    def __init__(self, changed: Callable[[], None], answer_s: float = ANSWER_S) -> None:
        """Call `changed` with each answer; one that takes longer than `answer_s` is a failure."""
        self._answer: FoundCheckpoints | None = None
        self._answered_s = 0.0
        self._changed, self._answer_s = changed, answer_s
        self._is_looking = False
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
        if self._timer is not None:
            self._timer.cancel()
        self._asked = asked
        late = _failed(asked, f"the folder did not answer within {self._answer_s:g} s")
        self._timer = asyncio.get_running_loop().call_later(self._answer_s, self._take, asked, late)
        if not self._is_looking:
            self._look(asked)
        return None

    def _look(self, asked: Look) -> None:
        """Look in a thread of its own: a pool would be joined at the end."""
        loop = asyncio.get_running_loop()

        def work() -> None:
            found = _answer(asked)
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self._looked, asked, found)

        self._is_looking = True
        threading.Thread(target=work, name="look", daemon=True).start()

    def _looked(self, asked: Look, found: FoundCheckpoints) -> None:
        """A thread has come back; look again where another question waits."""
        self._is_looking = False
        self._take(asked, found)
        if self._asked is not None:
            self._look(self._asked)

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
