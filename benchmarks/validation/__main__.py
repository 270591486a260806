"""Compare the cost model with measured plans: `python -m benchmarks.validation`."""

from benchmarks.validation.command import validate_cost
from planner.program import run

if __name__ == "__main__":
    run(validate_cost)
