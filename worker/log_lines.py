"""How Heddle's processes log: one line each, as text or as JSON, with whose line it is.

A process notes what it is part of (job, pod, epoch, rank), and every line of it says so.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Literal, get_args

Format = Literal["text", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)
VARIABLE = "HEDDLE_LOG_FORMAT"  # by which a process tells those that it starts
RATE_LIMITED_LOGGERS = ("aiohttp", "asyncio")
CHATTY_LOGGERS = ("torch._subclasses.fake_tensor",)  # tells at exit how its cache has done
MOST_LINES, PERIOD_S = 5, 60.0  # a trace has some 3 kB
_ABOUT: ContextVar[dict[str, str | int] | None] = ContextVar("about", default=None)


def begin_about(**fields: str | int) -> None:
    """From now on each line of this task, and of those that it starts, says this."""
    _ABOUT.set(dict(fields))


def about(**fields: str | int) -> None:
    """Add fields to the lines of a task that said `begin_about`, and of all that it started."""
    said = _ABOUT.get()
    if said is not None:
        said.update(fields)


class _Lines(logging.Formatter):
    """A record with whose line it is.

    Attributes:
        process: what each line of the process says.
    """

    def __init__(self, form: str | None = None) -> None:
        super().__init__(form)
        self.process: dict[str, str | int] = {}

    def whose(self) -> dict[str, str | int]:
        """What a line of this task says."""
        return {**self.process, **(_ABOUT.get() or {})}


class JsonLines(_Lines):
    """A record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields: dict[str, str | int] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            **self.whose(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields)


class TextLines(_Lines):
    """A record as text, a trace below it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(whose)s%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        record.whose = "".join(f"{name}={value} " for name, value in self.whose().items())
        return super().format(record)


class RateLimitFilter(logging.Filter):
    """Lets a few lines a minute pass of what strangers can make the libraries say, and counts.

    Who sends an agent what is no HTTP must not fill a disk with traces.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._began_s = clock()
        self._passed = self._kept_back = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        if record.name.partition(".")[0] not in RATE_LIMITED_LOGGERS:
            return True
        now = self._clock()
        if now - self._began_s > PERIOD_S:
            self._began_s, self._passed = now, 0
        if self._passed >= MOST_LINES:
            self._kept_back += 1
            return False
        self._passed += 1
        if self._kept_back:
            record.msg = f"{record.getMessage()} ({self._kept_back} such lines were left out)"
            record.args, self._kept_back = (), 0
        return True


def note(**whose: str | int) -> None:
    """From now on each line of this process says this, where `configure` was called."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, _Lines):
            handler.formatter.process.update(whose)


def configure(log_format: str | None = None, level: str = "info") -> None:
    """Log to standard error, this process and those that it starts.

    Args:
        log_format: text or json; None: what the process that started this one has.
        level: least severity that is logged.
    """
    chosen = log_format or os.environ.get(VARIABLE, "text")
    os.environ[VARIABLE] = chosen
    handler = logging.StreamHandler()
    handler.addFilter(RateLimitFilter())
    handler.setFormatter(JsonLines() if chosen == "json" else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in CHATTY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
