"""Settings of every test run: where tests may look, how properties are drawn, what was left out.

Nothing here starts a process; a test that needs ranks takes them from a fixture of its own folder.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.cluster.assets import Assets, reasons_not_to_start

# One thread per process: four ranks with a pool each on two cores are slower than four without.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # tests on one machine stay on it

# A run in the background of a shell ignores SIGINT, and what it starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every run, so that a red run is red for everybody; no deadline, as the
# machine may be busy.  `pytest --hypothesis-profile explore` looks further.
settings.register_profile("heddle", derandomize=True, deadline=None, max_examples=30)
settings.register_profile("fast", derandomize=True, deadline=None, max_examples=8)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("heddle")


@pytest.fixture(autouse=True)
def _own_log_handlers() -> Iterator[None]:
    """A command that logs takes its handler with it: its stream ends with the test."""
    root = logging.getLogger()
    level, before = root.level, tuple(root.handlers)
    yield
    for handler in tuple(root.handlers):
        if handler not in before and type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
            root.setLevel(level)


@pytest.fixture(scope="session")
def assets() -> Assets:
    """The binaries of Kubernetes; the test is skipped, saying why, where no cluster can start."""
    found = Assets.of(os.environ)
    reasons = reasons_not_to_start(found)
    if reasons:
        pytest.skip("; ".join(reasons))
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end, loudly, what did not run and why."""
    skipped = terminalreporter.getreports("skipped")
    chosen = terminalreporter.config.option.markexpr or terminalreporter.config.option.keyword
    if not skipped and not chosen:
        return
    terminalreporter.section("NOT RUN", sep="=", yellow=True, bold=True)
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.line(f"{report.nodeid}: {reason.removeprefix('Skipped: ')}")
    if chosen:
        terminalreporter.line(
            f"what is not {chosen!r}, by the choice on the command line; `.ci/run` runs all tests"
        )
