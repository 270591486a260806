"""Bytes of a rank's state without ZeRO and with stage 1, beside the planner's rule.

    python -m benchmarks.experts.state

Each rank's weights, gradients, masters and moments are allocated as a job allocates them, and the
bytes of their storages are summed.  Writes the last section of docs/results/experts.md, and a
picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
import torch

from benchmarks.pages import PAGES, header
from planner.cost.memory import rule_of, slot_of, slot_parameters, stepped_parameters
from planner.model.experts import Experts
from planner.model.shape import ModelShape
from planner.model.workload import Workload
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.plans.ranks import RankMap, Seat
from worker.control.activity import Activity
from worker.state.held_state import HeldState
from worker.state.shards import TargetShards
from worker.training_settings import Precision

MODEL = ModelShape(
    name="few",
    layers=4,
    hidden=256,
    heads=8,
    kv_heads=8,
    ffn=512,
    vocab=1024,
    experts=Experts(count=8, per_token=2, ffn=512),
)
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
TILINGS = {1: (1,), 2: (1, 2), 3: (1,), 4: (1, 2, 4)}  # {replicas: EP degrees}
TITLE = "## State of a rank by ZeRO"
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan.

    Attributes:
        precision: of the training.
        ep: EP degree.
        replicas: n.
        zero: stage of ZeRO.
        found: bytes of each rank.
        rule: bytes that the planner counts for a rank.
    """

    precision: Precision
    ep: int
    replicas: int
    zero: int
    found: tuple[int, ...]
    rule: int

    @property
    def apart(self) -> float:
        """How far the rule is from the fullest rank, of that rank's bytes."""
        return self.rule / max(self.found) - 1


def main() -> None:
    """Sum, and write."""
    rows = list(rows_of(MODEL))
    page = PAGES / "experts.md"
    before = page.read_text(encoding="utf-8").partition(TITLE)[0].rstrip()
    page.write_text(f"{before}\n\n{section(rows)}", encoding="utf-8")
    picture(rows, PAGES / "experts_state.svg")
    print(page.read_text(encoding="utf-8").partition(TITLE)[2])


def rows_of(model: ModelShape) -> Iterator[Row]:
    """All plans of a model."""
    for precision in PRECISIONS:
        for replicas, degrees in TILINGS.items():
            for ep in degrees:
                for zero in (0, 1):
                    plan = plan_of(model, replicas, ep).with_zero(zero)
                    seats = RankMap.of(plan).seats
                    found = tuple(allocated_bytes(model, seat, precision) for seat in seats)
                    rule = rule_bytes(model, plan, precision)
                    yield Row(
                        precision=precision,
                        ep=ep,
                        replicas=replicas,
                        zero=zero,
                        found=found,
                        rule=rule,
                    )


def plan_of(model: ModelShape, replicas: int, ep: int) -> Plan:
    """One stage on each replica, over all of which the experts are spread."""
    stage = Stage(gpu_type="demo-fast", tp=1, layers=model.layers, ep=ep, etp=1)
    spots = tuple(PlacedStage(0, replica, 0, "a", (replica,)) for replica in range(replicas))
    return Plan((FilledTemplate((stage,), 1, (1,) * replicas),), spots)


def allocated_bytes(model: ModelShape, seat: Seat, precision: Precision) -> int:
    """Bytes of the storages of all that a rank's state has."""
    target = TargetShards.of(model, seat, HeldState(model), Activity(), precision)
    tensors: list[torch.Tensor] = [
        *(part for parts in target.shards.values() for part in parts),
        *target.buffers.weights.values(),
        *target.buffers.gradients.values(),
    ]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage() for one in tensors}
    return sum(one.nbytes() for one in storages.values())


def rule_bytes(model: ModelShape, plan: Plan, precision: Precision) -> int:
    """Bytes that the planner counts for weights, gradients and optimizer of a rank."""
    (template,) = plan.templates
    workload = Workload(
        model=model,
        global_batch=plan.gpus,
        sequence_length=1,
        precision=precision,
        memory="worker",
        zero=plan.zero,
    )
    rule, slot = rule_of(workload), slot_of(template, 0, 1)
    held = sum(slot_parameters(model, slot, model.layers))
    stepped = stepped_parameters(workload, slot, model.layers)
    return held * (rule.weight + rule.gradient) + stepped * rule.optimizer


def section(rows: Sequence[Row]) -> str:
    """The section of the page."""
    worst = max(abs(row.apart) for row in rows)
    lines = [
        TITLE,
        "",
        header("python -m benchmarks.experts.state", ["worker/state", "planner/cost"], "."),
        "",
        "MiB of weights, gradients, masters and moments of a rank, least to most of all ranks. The",
        "model is the one with 8 experts. Bytes are those of the storages that the worker",
        "allocates. Each replica is one rank.",
        "",
        "| precision | EP | replicas | without ZeRO | the rule | stage 1 | the rule |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for plain, zero in zip(rows[::2], rows[1::2], strict=True):
        lines.append(
            f"| {plain.precision} | {plain.ep} | {plain.replicas} | {_mib(plain.found)} | "
            f"{plain.rule / MIB:.2f} | {_mib(zero.found)} | {zero.rule / MIB:.2f} |"
        )
    lines += [
        "",
        "![MiB of a rank's state by replicas](experts_state.svg)",
        "",
        "- The rule is the planner's count for weights, gradients and optimizer.",
        f"- It differs from the fullest rank by {worst:.3%} at most.",
    ]
    return "\n".join(lines) + "\n"


def _mib(found: Sequence[int]) -> str:
    least, most = (f"{one / MIB:.2f}" for one in (min(found), max(found)))
    return least if least == most else f"{least} to {most}"


def picture(rows: Sequence[Row], path: Path) -> None:
    """Bytes of the fullest rank over the replicas, and the rule's."""
    figure, axes = plt.subplots(1, len(PRECISIONS), figsize=(8, 3.5), sharey=True)
    for axis, precision in zip(axes, PRECISIONS, strict=True):
        for zero in (0, 1):
            for ep in (1, 2, 4):
                wanted = precision, ep, zero
                own = [row for row in rows if (row.precision, row.ep, row.zero) == wanted]
                x = [row.replicas for row in own]
                label = f"EP {ep}, {'stage 1' if zero else 'without ZeRO'}"
                (line,) = axis.plot(x, [max(row.found) / MIB for row in own], "o", label=label)
                axis.plot(x, [row.rule / MIB for row in own], "-", color=line.get_color())
        axis.set_title(f"{precision}: dots are ranks, lines the rule", fontsize="small")
        axis.set_xlabel("replicas")
        axis.set_xticks(list(TILINGS))
    axes[0].set_ylim(bottom=0)  # of both, once all is drawn
    axes[0].set_ylabel("MiB of a rank's state")
    axes[-1].legend(fontsize="x-small")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
