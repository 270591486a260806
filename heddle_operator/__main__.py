"""The composition root of the operator's pod: `python -m heddle_operator run`."""

from heddle_operator.command import OPTIONS, operator
from planner.program import run

if __name__ == "__main__":
    run(operator, OPTIONS, extra="operator")
