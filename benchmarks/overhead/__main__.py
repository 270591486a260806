"""Cost of Heddle's engine beside DeepSpeed's own, and beside a loop of torch.

    python -m benchmarks.overhead [--pairs N]

Seconds of the processor a step, summed over ranks.  The two sides take turns, a few steps each, in
one run, so that other work on the machine meets both.  Writes docs/results/overhead.md and a
picture.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sysconfig
import tempfile
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
import pytest

from benchmarks.pages import header
from planner.model.shape import ModelShape
from planner.plans.plan import Plan
from tests.distributed.pods import place, template
from tests.unit.worker.ranks import run_ranks
from worker.contract import TrainingSpec
from worker.data.making.prepare import prepare

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PAIRS = 10
GATE = 0.10
AIMS = {"plain": 0.05, "stock": 0.03}
RIVALS = {"plain": "a loop of torch", "stock": "DeepSpeed's own engine"}
LIMIT_S = 3600.0
NEVER = 1e9  # a norm to clip to: DeepSpeed's own engine clips stage by stage
CLOSE = 1e-4  # of the two sides' losses: they train the same


class Size(NamedTuple):
    """Training to measure: a model, its sequence length, and steps of a turn."""

    model: ModelShape
    length: int
    steps: int


SIZES = {
    "small": Size(
        ModelShape(name="small", layers=6, hidden=64, heads=4, kv_heads=4, ffn=176, vocab=256),
        128,
        5,
    ),
    "large": Size(
        ModelShape(name="large", layers=6, hidden=256, heads=8, kv_heads=8, ffn=688, vocab=2048),
        256,
        1,
    ),
}
PLANS: dict[str, tuple[str, Plan]] = {
    "one rank": ("plain", place((template("1x6", 2, 4),), [("a", 0)])),
    "2 replicas": ("stock", place((template("1x6", 2, 4, 4),), [("a", 0), ("a", 1)])),
    "2 stages": ("stock", place((template("1x3+1x3", 2, 4),), [("a", 0), ("a", 1)])),
}
Overheads = dict[tuple[str, str], list[float]]  # (plan, size) -> of each pair
Seconds = dict[tuple[str, str], tuple[float, float]]  # -> medians of Heddle and the rival


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    pairs = parser.parse_args().pairs
    overheads: Overheads = {}
    seconds: Seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "text"
        prepare([Path(sysconfig.get_paths()["stdlib"])], data, 1_000_000)
        for plan in PLANS:
            for size in SIZES:
                ours, theirs = measured(plan, size, str(data), pairs)
                overheads[plan, size] = [a / b - 1 for a, b in zip(ours, theirs, strict=True)]
                seconds[plan, size] = statistics.median(ours), statistics.median(theirs)
                print(plan, size, seconds[plan, size], overheads[plan, size], flush=True)
    text = report(overheads, seconds, pairs)
    print(text)
    if pairs >= PAIRS:
        (RESULTS / "overhead.md").write_text(text, encoding="utf-8")
        picture(overheads, RESULTS / "overhead.svg")


def measured(name: str, size: str, data: str, pairs: int) -> tuple[list[float], list[float]]:
    """Seconds of the processor a step, of each turn: Heddle's, and the rival's."""
    rival, plan = PLANS[name]
    steps = SIZES[size].steps
    spec = spec_of(plan, size, data)
    wanted = {"rival": rival, "plan": plan.to_json(), "spec": spec.model_dump(mode="json"),
              "blocks": pairs, "steps": steps}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANTED", json.dumps(wanted))
        found = run_ranks("benchmarks.overhead.rank:claims", 2 * plan.gpus, LIMIT_S)
    ours, theirs = found[: plan.gpus], found[plan.gpus :]
    apart = max(abs(a - b) for a, b in zip(ours[0]["losses"], theirs[0]["losses"], strict=True))
    assert apart <= CLOSE, f"the two sides train otherwise: losses differ by {apart}"
    sums = [
        [sum(turn) for turn in zip(*(one["seconds"] for one in side), strict=True)]
        for side in (ours, theirs)
    ]
    return sums[0], sums[1]


def spec_of(plan: Plan, size: str, data: str) -> TrainingSpec:
    """The job that all sides train."""
    model, length, _ = SIZES[size]
    return TrainingSpec(
        model=model.name,
        shape=model.to_json(),
        data=data,
        global_batch=sum(one.samples for one in plan.templates),
        sequence_length=length,
        steps=100_000,
        learning_rate=3e-4,
        warmup_steps=0,
        gradient_clip=NEVER,
    )


def report(overheads: Overheads, seconds: Seconds, pairs: int) -> str:
    """The result file."""
    lines = [
        "# Overhead of the engine",
        "",
        header(
            f"python -m benchmarks.overhead --pairs {pairs}",
            ["worker"],
            ", shared with other work.",
        ),
        "",
        f"Seconds of the processor a step, summed over ranks: medians of {pairs} turns of each",
        "side in one run; the overhead is that of a pair of turns. Layers, weights, samples, loss",
        "and AdamW are the same, and so is each loss, to 1e-4.",
        "",
        "| plan | model | beside | Heddle | the other | overhead (median) | least to most | aim |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (plan, size), found in overheads.items():
        rival, (ours, theirs) = PLANS[plan][0], seconds[plan, size]
        model = SIZES[size].model
        lines.append(
            f"| {plan} | h {model.hidden}, {SIZES[size].length} tokens | {RIVALS[rival]} | "
            f"{ours:.3f} | {theirs:.3f} | {statistics.median(found):+.1%} | {min(found):+.1%} to "
            f"{max(found):+.1%} | {AIMS[rival]:.0%} |"
        )
    worst = max(map(statistics.median, overheads.values()))
    kept = "is kept" if worst <= GATE else "is missed"
    lines += [
        "",
        "![overheads](overhead.svg)",
        "",
        f"- The gate of {GATE:.0%} {kept}: the largest median is {worst:+.1%}.",
        "- Beside what the others do, Heddle sums by piece in one order on all ranks, takes the",
        "  norm of the whole plan (DeepSpeed clips each stage by itself, so nothing is clipped",
        "  here), and tells time and memory of each step.",
        "- The small model shows fixed costs of a step, the large one those by size.",
    ]
    return "\n".join(lines) + "\n"


def picture(overheads: Overheads, path: Path) -> None:
    """Each pair's overhead, with median, by plan and model."""
    figure, axes = plt.subplots(figsize=(7, 4))
    axes.boxplot([[100 * one for one in found] for found in overheads.values()])
    axes.set_xticks(range(1, len(overheads) + 1), [f"{p}\n{s}" for p, s in overheads])
    axes.axhline(100 * GATE, color="grey", linestyle="--", label="gate")
    axes.set_ylabel("overhead in percent of processor time")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
