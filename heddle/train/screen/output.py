"""Lines for whoever follows a run.

Invariant: a reader that leaves, or a full disk, costs lines and never the run.
"""

from __future__ import annotations

import contextlib
import sys

from planner.wording import reason_of


class Output:
    """Standard output, or standard error where the output is for programs."""

    def __init__(self, is_quiet: bool) -> None:
        """Nothing was lost yet."""
        self._is_quiet = is_quiet
        self._has_failed = False

    def write(self, text: str) -> None:
        """Write it if that can be done; the first line that is lost is said on standard error."""
        stream = sys.stderr if self._is_quiet else sys.stdout
        if stream is None:  # it was closed before the program began
            return
        try:
            stream.write(text)
            stream.flush()
        except OSError as error:
            if not self._has_failed and sys.stderr is not None and not self._is_quiet:
                with contextlib.suppress(OSError):
                    sys.stderr.write(
                        f"the output cannot be written: {reason_of(error)}; the run goes on\n"
                    )
            self._has_failed = True
