"""How well a transfer is balanced, and what it takes to work it out.

    python -m benchmarks.migration [--changes N]

Writes docs/results/migration.md and a picture, with the command, the date and the machine.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.migration.bound import least_nic_bytes, least_seconds, two_stages_s
from benchmarks.migration.changes import (
    PAPER_NODES,
    change_between,
    random_change,
    uniform_plan,
)
from benchmarks.migration.loads import loads_of, makespan_s
from benchmarks.pages import header
from migration.transfer import plan_transfer
from planner.model.catalogue import MODELS

RESULTS = Path(__file__).parents[2] / "docs" / "results"
HEAD = "| | median | p90 | p99 | worst |\n| --- | --- | --- | --- | --- |"
PAPER_MODEL, LARGE_MODEL, EXPERT_MODEL = "gpt-neo-2.7b", "qwen3-32b", "deepseek-v3-like"


def balance(sizes: tuple[int, ...], model: str, count: int, most_tp: int) -> np.ndarray:
    """[changes, 3]: makespan by the bound, the paper's two stages by it, NIC bytes by the least."""
    draw, rows = random.Random(7), []
    while len(rows) < count:
        change = random_change(draw, MODELS[model], sizes, most_tp, 4)
        transfer = plan_transfer(change.held, change.needed, change.node_of)
        bound = least_seconds(transfer)
        if bound <= 0:
            continue
        least = least_nic_bytes(transfer)
        crossing = (
            sum(loads_of(transfer, transfer.links).nic_in) * transfer.links.nic_bytes_per_s[0]
        )
        rows.append(
            (
                makespan_s(transfer) / bound,
                two_stages_s(transfer) / bound,
                crossing / least if least else 1.0,
            )
        )
    return np.array(rows)


def planning() -> list[str]:
    """Processor seconds of one rank, and memory, for the two largest cases."""
    lines = []
    for name, old, new in (
        (LARGE_MODEL, (384, 4, 8), (512, 4, 8)),
        (LARGE_MODEL, (480, 2, 12), (512, 4, 8)),
        (EXPERT_MODEL, (256, 8, 16), (512, 8, 16)),
    ):
        model = MODELS[name]
        begin_s = time.process_time()
        change = change_between(model, uniform_plan(model, *old), uniform_plan(model, *new))
        transfer = plan_transfer(change.held, change.needed, change.node_of)
        mine = transfer.messages(511)
        seconds = time.process_time() - begin_s
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        plans = f"{old[0]} GPUs TP {old[1]} depth {old[2]} to {new[0]} TP {new[1]} depth {new[2]}"
        lines.append(
            f"| {name} | {plans} | {len(transfer.classes):,} | {transfer.num_bytes / 1e12:.2f} | "
            f"{len(mine)} | {seconds:.2f} | {peak:.0f} |"
        )
        print(lines[-1], flush=True)
    return lines


def row(name: str, ratios: np.ndarray) -> str:
    """Median, 90th and 99th percentile and worst of some ratios."""
    at = [*np.quantile(ratios, [0.5, 0.9, 0.99]), ratios.max()]
    return f"| {name} | " + " | ".join(f"{value:.2f}" for value in at) + " |"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=1000, help="of the paper's cluster")
    parser.add_argument("--large", type=int, default=30, help="changes of 512 GPUs")
    options = parser.parse_args()
    costs = planning()
    paper = balance(PAPER_NODES, PAPER_MODEL, options.changes, 4)
    large = balance((8,) * 64, LARGE_MODEL, options.large, 8)
    larger = []
    if len(large):
        larger = [
            f"{len(large)} random changes of {LARGE_MODEL} on 512 GPUs (64 nodes of 8):",
            "",
            HEAD,
            row("this transfer", large[:, 0]),
            row("the paper's two stages", large[:, 1]),
            row("bytes over network cards, by the fewest", large[:, 2]),
            "",
        ]
    text = "\n".join(
        [
            "# Plans of state migration",
            "",
            header("python -m benchmarks.migration", ["migration"], ","),
            "shared with other work. Seconds of a transfer are modelled: network cards of 12 GB/s,",
            "ports of 20 GB/s, each way.",
            "",
            f"{len(paper)} random changes of {PAPER_MODEL} on the paper's 19 GPUs (nodes of 3, 4,",
            "4, 4, 4): nodes join, leave and are lost, plans are drawn at random. Seconds of the",
            "busiest port or card, by those of a linear programme (HiGHS) that none can beat:",
            "",
            HEAD,
            row("this transfer", paper[:, 0]),
            row("the paper's two stages (in each node, then pair by pair)", paper[:, 1]),
            row("bytes over network cards, by the fewest", paper[:, 2]),
            "",
            *larger,
            "![balance](migration.svg)",
            "",
            "What it takes one rank to work a change out, from plans to its own messages:",
            "",
            "| model | change | classes | TB moved | own messages | processor s | peak MB |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *costs,
            "",
            "- Goals: 1.1 times the bound in the median, 1.5 at the 99th percentile; 2 s, 300 MB.",
            "- The bound counts what must leave and enter cards and ports, but not what receivers",
            "  of a node hand on to each other; the peak includes Python and numpy (about 100 MB).",
            "- The order of messages is not simulated; it has no rounds, and a law test plays it.",
        ]
    )
    (RESULTS / "migration.md").write_text(text + "\n", encoding="utf-8")
    picture(paper)
    print(text)


def picture(ratios: np.ndarray) -> None:
    """Share of changes below a ratio."""
    figure, axes = plt.subplots(figsize=(7, 4))
    share = np.arange(1, len(ratios) + 1) / len(ratios)
    for column, name in ((0, "this transfer"), (1, "the paper's two stages")):
        axes.plot(np.sort(ratios[:, column]), share, label=name)
    axes.set_xlim(0.95, 5)
    axes.set_xlabel("seconds, by the bound of the linear programme")
    axes.set_ylabel("share of changes")
    axes.legend()
    figure.tight_layout()
    figure.savefig(RESULTS / "migration.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
