"""Compare the planner's methods on many sets of GPUs: `python -m benchmarks.evaluation`."""

from benchmarks.evaluation.command import evaluate_command
from planner.program import run

if __name__ == "__main__":
    run(evaluate_command)
