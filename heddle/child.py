"""`python -m heddle.child`: the command `heddle` for a process that reads its error, not a person.

An error is the line of a `planner.failure.Failure`.
"""

from __future__ import annotations

from heddle.main import OPTIONS, heddle
from planner.program import run

if __name__ == "__main__":
    run(heddle, OPTIONS, is_child=True)
