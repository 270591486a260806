"""Sentences of a run: a line for each reconfiguration, and the last words.

Pure: from a result (the JSON object of the demo) to lines of text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.wording import counted

TRY_NEXT = (
    "heddle demo --interactive               add, drain and kill nodes yourself",
    "heddle demo --headless --output json    print every number of such a run",
    "heddle plan --help                      plan for GPUs that you do not have",
)
TOLERANCE = 1e-5
# A last bit may decide which experts a token visits, so losses of a mixture part in jumps.  Plain
# torch parts from itself in 205 steps, with micro-batches of 4 or 20: by 5e-4 in tiny-mixtral, and
# by 2.1e-2 in tiny-deepseek, where groups are chosen too.
OF_MIXTURES = {"tiny-mixtral": 1e-2, "tiny-deepseek": 1e-1}


def summary(result: Mapping[str, Any]) -> tuple[str, ...]:
    """Summary of a run, in three sentences."""
    changes = [epoch for epoch in result["epochs"] if epoch["reconfiguration"]]
    stalls = [e["reconfiguration"]["stall_s"] for e in changes if e["reconfiguration"]["stall_s"]]
    pids, kept = _survivors(result), len(result["refusals"])
    losses, difference = result["losses"], result["max_loss_difference"]
    reasons = f" ({', '.join(e['reason'] for e in changes)})" if changes else ""
    moved = (
        f"The job trained {counted(len(losses), 'step')}, changed its plan "
        f"{counted(len(changes), 'time')}{reasons} and kept it {counted(kept, 'time')} because a "
        f"change would not pay; {counted(pids, 'process')} trained before and after a change."
    )
    restart = result["epochs"][1]["reconfiguration"]["restart_s"] if changes else None
    worst = f"The longest stall was {max(stalls):.2f} s" if stalls else "Training never stalled"
    cost = f" (a cold restart takes {restart:.1f} s)" if restart else ""
    if difference is None or not losses:
        exact = "The losses were not compared."
    else:
        allowed = _allowed(result)
        verdict = "within" if difference <= allowed else "MORE than"
        exact = (
            f"The loss went from {losses[0]:.2f} to {losses[-1]:.2f} and differs from that of one "
            f"process of plain torch by at most {difference:.1e}, {verdict} the allowed "
            f"{allowed:.0e}."
        )
    reads = result["checkpoint_reads"]
    source = "no state" if not reads else f"the state of {counted(reads, 'rank')}"
    return (moved, f"{worst}{cost}, and {source} was read from a checkpoint.", exact)


def is_exact(result: Mapping[str, Any]) -> bool:
    """Whether every step was compared, and none left the curve of one plain process."""
    difference = result["max_loss_difference"]
    compared = len(result["losses"]) == len(result["reference_losses"])
    return compared and difference is not None and difference <= _allowed(result)


def _allowed(result: Mapping[str, Any]) -> float:
    return OF_MIXTURES.get(result["model"], TOLERANCE)


def _survivors(result: Mapping[str, Any]) -> int:
    seen: dict[tuple[int, float], int] = {}
    for epoch in result["processes"]:
        for rank in epoch["ranks"]:
            key = (rank["pid"], rank["started_s"])
            seen[key] = seen.get(key, 0) + 1
    return sum(count > 1 for count in seen.values())
