"""Tokens per second of a mixture of experts, beside `transformers` and a dense model.

    python -m benchmarks.experts [--turns N]

All sides train in turns, a few steps each, in one run, so that other work on the machine meets all
of them.  A dense model has feed-forward blocks as wide as the experts that a token visits.  Ranks
of an EP group also exchange rows alone, beside gloo's own all-to-all of the same bytes.
Writes docs/results/experts.md and a picture; `benchmarks.experts.state` writes the last section.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sysconfig
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
import pytest

from benchmarks.experts.state import TITLE
from benchmarks.pages import PAGES, header
from planner.model.experts import Experts
from planner.model.shape import ModelShape
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from tests.unit.worker.ranks import run_ranks
from worker.contract import TrainingSpec
from worker.data.making.prepare import prepare

TURNS, STEPS, LIMIT_S = 7, 2, 3600.0
LENGTH, MICRO_BATCH, MICRO_BATCHES = 256, 4, 2
MODELS = {
    "8 experts, 2 per token": ModelShape(
        name="few", layers=4, hidden=256, heads=8, kv_heads=8, ffn=512, vocab=1024,
        experts=Experts(count=8, per_token=2, ffn=512, dense_blocks=0),
    ),
    "32 experts, 4 per token": ModelShape(
        name="many", layers=4, hidden=256, heads=8, kv_heads=8, ffn=256, vocab=1024,
        experts=Experts(count=32, per_token=4, ffn=256, dense_blocks=0),
    ),
}  # fmt: skip
EXCHANGES = ((64, 256), (1024, 256), (1024, 2048))  # rows to each rank, and their width


class Side(NamedTuple):
    """What trains in turn with the others.

    Attributes:
        kind: "heddle", or "transformers".
        ranks: its processes; the experts are spread over them.
        is_dense: whether it has a dense model instead.
    """

    kind: str
    ranks: int
    is_dense: bool = False


SIDES = {
    "Heddle, one rank": Side("heddle", 1),
    "transformers": Side("transformers", 1),
    "Heddle, dense": Side("heddle", 1, is_dense=True),
    "Heddle, EP 2": Side("heddle", 2),
    "Heddle, dense, 2 replicas": Side("heddle", 2, is_dense=True),
}
Rates = dict[str, list[float]]  # tokens per second of each turn, by side


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS)
    turns = parser.parse_args().turns
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "text"
        prepare([Path(sysconfig.get_paths()["stdlib"])], data, 1_000_000)
        rates = {name: measured(model, str(data), turns) for name, model in MODELS.items()}
    text = report(rates, exchanges(), turns)
    print(text)
    if turns >= TURNS:
        page = PAGES / "experts.md"
        _, title, last = page.read_text(encoding="utf-8").partition(TITLE)
        page.write_text(f"{text}\n{title}{last}", encoding="utf-8")
        picture(rates, PAGES / "experts.svg")


def measured(model: ModelShape, data: str, turns: int) -> Rates:
    """Tokens per second of every side in every turn."""
    sides, first = [], 0
    for side in SIDES.values():
        own, plan = dense(model) if side.is_dense else model, plan_of(model, side)
        spec = TrainingSpec(
            model=own.name,
            shape=own.to_json(),
            data=data,
            global_batch=MICRO_BATCH * MICRO_BATCHES * side.ranks,
            sequence_length=LENGTH,
            steps=100_000,
            learning_rate=3e-4,
            warmup_steps=0,
        )
        sides.append({"kind": side.kind, "first": first, "plan": plan.to_json(),
                      "spec": spec.model_dump(mode="json")})  # fmt: skip
        first += side.ranks
    asked = {"sides": sides, "turns": turns, "steps": STEPS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANTED", json.dumps(asked))
        seconds = run_ranks("benchmarks.experts.rank:claims", first, LIMIT_S)
    tokens = MICRO_BATCH * MICRO_BATCHES * LENGTH
    return {
        name: [side.ranks * tokens / one for one in seconds[stated["first"]]]
        for (name, side), stated in zip(SIDES.items(), sides, strict=True)
    }


def dense(model: ModelShape) -> ModelShape:
    """A model whose feed-forward blocks have the parameters that a token meets."""
    experts = model.experts
    assert experts is not None
    return replace(
        model, name=f"{model.name}-dense", ffn=experts.per_token * experts.ffn, experts=None
    )


def plan_of(model: ModelShape, side: Side) -> Plan:
    """One stage; each rank is a replica, and the experts are spread over all of them."""
    ep = 1 if side.is_dense else side.ranks
    stage = Stage(gpu_type="demo-fast", tp=1, layers=model.layers, ep=ep, etp=1)
    template = FilledTemplate((stage,), MICRO_BATCH, (MICRO_BATCHES,) * side.ranks)
    spots = tuple(PlacedStage(0, replica, 0, "a", (replica,)) for replica in range(side.ranks))
    return Plan((template,), spots)


def exchanges() -> list[dict[str, Any]]:
    """Of each size seconds of an exchange of rows both ways, and of gloo's all-to-alls alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANTED", json.dumps(EXCHANGES))
        found: list[list[dict[str, Any]]] = run_ranks("benchmarks.experts.rank:exchanges", 2)
    return found[0]


def report(rates: dict[str, Rates], exchanged: list[dict[str, Any]], turns: int) -> str:
    """The page."""
    lines = [
        "# Speed of mixtures of experts",
        "",
        header(
            f"python -m benchmarks.experts --turns {turns}",
            ["worker/model", "worker/engine"],
            ", shared with other work.",
        ),
        "",
        f"Tokens per second of training steps, medians of {turns} turns of {STEPS} steps. All sides"
        " take",
        "turns in one run, so a ratio is that of a turn. Each rank has one thread. The model has 4",
        f"blocks of width 256, {LENGTH} tokens a sample, {MICRO_BATCHES} micro-batches of"
        f" {MICRO_BATCH} a rank, in fp32.",
        "",
        "| model | side | tokens/s | beside Heddle on one rank | least to most |",
        "| --- | --- | --- | --- | --- |",
    ]
    for model, of_sides in rates.items():
        ours = of_sides["Heddle, one rank"]
        for side, found in of_sides.items():
            ratios = [one / other for one, other in zip(found, ours, strict=True)]
            lines.append(
                f"| {model} | {side} | {statistics.median(found):,.0f} |"
                f" {statistics.median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} |"
            )
    lines += [
        "",
        "![tokens per second by side](experts.svg)",
        "",
        "- `transformers` trains its `MixtralForCausalLM` of the same shape in a loop of torch.",
        "- The dense model has the parameters that a token meets, and no router.",
        "- EP 2 spreads the experts over two ranks, each with a micro-batch of its own. The two",
        "  ranks share the machine's memory, and their rows go through gloo on it.",
        "",
        "Rows go to the other rank of an EP group and come back in the backward pass:",
        "",
        "| rows to each rank | width | Heddle's exchange | gloo's all-to-all | ratio |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in exchanged:
        ours_s, gloo_s = statistics.median(one["ours_s"]), statistics.median(one["gloo_s"])
        ratio = statistics.median(
            [ours / gloo for ours, gloo in zip(one["ours_s"], one["gloo_s"], strict=True)]
        )
        lines.append(
            f"| {one['rows']:,} | {one['width']:,} | {1e3 * ours_s:.2f} ms |"
            f" {1e3 * gloo_s:.2f} ms | {ratio:.2f} |"
        )
    return "\n".join(lines) + "\n"


def picture(rates: dict[str, Rates], path: Path) -> None:
    """Bars of the medians, by model and side."""
    figure, axes = plt.subplots(figsize=(7, 3.5))
    width = 0.8 / len(SIDES)
    for index, side in enumerate(SIDES):
        found = [statistics.median(of_sides[side]) for of_sides in rates.values()]
        places = [place + index * width for place in range(len(rates))]
        axes.bar(places, found, width, label=side)
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(rates))], list(rates))
    axes.set_ylabel("tokens per second")
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
