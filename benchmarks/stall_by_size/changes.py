"""The changes that are measured: two ranks and five, nothing, a quarter, everything."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.migration.loads import loads_of
from migration.links import Links
from planner.cost.memory import WORKER_BUCKET
from planner.model.catalogue import find_model
from planner.model.tensors import held_tensors
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap
from tests.distributed.pods import Pods, place, template
from worker.contract import LAPS, Directive, SwitchRecord, TrainingSpec
from worker.engine.seam import Buffers
from worker.rank.memory_check import needed_bytes
from worker.rank.move import plan_move
from worker.stall import measure_stall
from worker.state.held_state import HeldState

NODE = "a"
BATCH = 4
GRADIENT_BUFFER_BYTES = 4 * WORKER_BUCKET


class Size(NamedTuple):
    """A model by its width and depth; a block of it has about 12.6 x hidden^2 parameters."""

    hidden: int
    layers: int


class Case(NamedTuple):
    """One change from plan to plan on GPUs of one node."""

    name: str
    old: Plan
    new: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One change.

    Attributes:
        state_bytes: that the largest rank holds afterwards.
        moved_bytes: that the rank that received most of them received.
        all_bytes: that all ranks received.
        busiest_bytes: of the busiest port by the plan of the transfer.
        stall_s: from the end of the last old step to the start of the first new one.
        parts: {part: seconds until the last rank had done it}.
        peak_bytes: growth of a rank's memory during preparation and switch, of the one that comes
            nearest to its budget, or exceeds it most.
        budget_bytes: of that rank, by which a change is refused that does not fit.
        link_bytes_per_s: of bare gloo between two idle ranks around it; 0 until it is measured.
    """

    case: str
    ranks: int
    state_bytes: int
    moved_bytes: int
    all_bytes: int
    busiest_bytes: float
    stall_s: float
    parts: dict[str, float]
    peak_bytes: int
    budget_bytes: int
    link_bytes_per_s: float = 0.0


def cases(ranks: int, layers: int) -> list[Case]:
    """Changes that are measured with so many ranks."""
    gpus = [(NODE, gpu) for gpu in range(ranks)]
    if ranks == 2:
        whole = template(f"1x{layers}", 1, BATCH)
        half, quarter = layers // 2, layers // 4
        halves = place((template(f"1x{half}+1x{layers - half}", 1, BATCH),), gpus)
        moved = f"1x{half + quarter}+1x{layers - half - quarter}"
        other = place((template(moved, 1, BATCH),), gpus)
        return [
            Case("nothing", halves, halves),
            Case("a quarter", halves, other),
            Case("everything", place((whole,), gpus[:1]), place((whole,), gpus[1:])),
        ]
    half = layers // 2
    stages = f"1x{half}+1x{layers - half}"
    pipeline = template(stages, 1, 2, 2)
    old = place((pipeline,), gpus[:4])
    more = place((template(stages, 1, 1, 1), template(f"1x{layers}", 1, 2)), gpus)
    swapped = place((pipeline,), [gpus[1], gpus[0], gpus[3], gpus[2]])
    return [
        Case("nothing", old, old),
        Case("a rank joins", old, more),
        Case("everything", old, swapped),
    ]


def measure(case: Case, size: Size, data: Path) -> Measured:
    """Train the old plan, change to the new one, and read what the ranks say."""
    with tempfile.TemporaryDirectory() as folder:
        spec = _spec(Path(folder), size, data)
        pods = Pods(Path(folder))
        try:
            pods.start(NODE, gpus=max(gpu for p in case.new.placement for gpu in p.gpus) + 1)
            pods.change(pods.directive(1, case.old, spec, NODE, reason="start"))
            _train(pods, 2)
            spots = _gpus(case.old)
            ranks = {slot: rank.pid for slot, rank in pods.ranks(NODE).items()}
            before = {slot: _start_of_peak(pid) for slot, pid in ranks.items()}
            directive = pods.directive(
                2, case.new, spec, NODE, holds=dict.fromkeys(spots, 1), layouts={1: case.old}
            )
            pods.change(directive)
            budgets = _budgets_bytes(directive)
            found = {slot: _peak_bytes(pid) for slot, pid in ranks.items()}
            peaks = {slot: peak - before[slot] for slot, peak in found.items() if peak}
            nearest = max(peaks, key=lambda slot: peaks[slot] - budgets[slot], default=None)
            memory = (0, 0) if nearest is None else (peaks[nearest], budgets[nearest])
            _train(pods, max(rank.step for rank in pods.ranks(NODE).values()) + 2)
            records = [s for s in pods.pods[NODE].report().switches if s.epoch == 2]
            busiest = _busiest_bytes(directive)
        finally:
            pods.close()
    return _measured(case, records, memory, _state_bytes(case.new, size), busiest)


def _spec(folder: Path, size: Size, data: Path) -> TrainingSpec:
    config = {
        "model_type": "llama",
        "_name_or_path": "bench",
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.hidden // 64,
        "num_key_value_heads": size.hidden // 64,
        "intermediate_size": size.hidden * 2816 // 1024,
        "vocab_size": 256,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
    }
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return TrainingSpec(
        model=str(path), data=str(data), global_batch=BATCH, sequence_length=8, steps=10**6
    )


def _train(pods: Pods, step: int) -> None:
    pods.pods[NODE].wait(lambda report: any(rank.step >= step for rank in report.ranks), 600)


def _measured(
    case: Case, records: list[SwitchRecord], memory: tuple[int, int], state: int, busiest: float
) -> Measured:
    stall = measure_stall(records)
    assert stall is not None
    return Measured(
        case=case.name,
        ranks=len(
            {
                (p.node, gpu)
                for plan in (case.old, case.new)
                for p in plan.placement
                for gpu in p.gpus
            }
        ),
        state_bytes=state,
        moved_bytes=max(r.bytes_received for r in records),
        all_bytes=sum(r.bytes_received for r in records),
        busiest_bytes=busiest,
        stall_s=stall.stall_s,
        parts={name: stall.parts[f"{name}_s"] for name in LAPS},
        peak_bytes=memory[0],
        budget_bytes=memory[1],
    )


def _busiest_bytes(directive: Directive) -> float:
    """Load of the busiest port by the transfer's plan: its seconds at a byte a second."""
    first = directive.members[0]
    move = plan_move(find_model(directive.training.model), directive, first.pod, first.slot, "gloo")
    assert move is not None
    return loads_of(move.transfer, Links((1.0,), 1.0)).longest_s()


def _budgets_bytes(directive: Directive) -> dict[int, int]:
    """{slot: what a rank may make until the vote}, of those that hold state."""
    model = find_model(directive.training.model)
    old = RankMap.of(Plan.from_json(directive.layouts[1]))
    found = {}
    for member in directive.members:
        if member.holds is None:
            continue
        move = plan_move(model, directive, member.pod, member.slot, "gloo")
        assert move is not None
        seat = next(s for s in old.seats if (s.node, s.gpu) == (member.node, member.gpu))
        held = HeldState(model)
        nothing = torch.empty(0)
        names = [tensor.name for tensor in held_tensors(model, seat.layers)]
        beside = dict.fromkeys(names, nothing)
        held.add_shards(seat, dict.fromkeys(names, (nothing,) * 3), Buffers(beside, beside))
        found[member.slot] = needed_bytes(model, move, held, directive.training.precision, 0)
        found[member.slot] += GRADIENT_BUFFER_BYTES
    return found


def _state_bytes(plan: Plan, size: Size) -> int:
    block = 4 * size.hidden**2 + 3 * size.hidden * (size.hidden * 2816 // 1024)
    return 12 * block * max(s.layers for t in plan.templates for s in t.stages)


def _gpus(plan: Plan) -> set[tuple[str, int]]:
    return {(placed.node, gpu) for placed in plan.placement for gpu in placed.gpus}


def _start_of_peak(pid: int) -> int:
    """Forget the highest memory so far; answers what is resident now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _status_bytes(pid, "VmRSS")


def _peak_bytes(pid: int) -> int:
    return _status_bytes(pid, "VmHWM")


def _status_bytes(pid: int, key: str) -> int:
    """0 if the process is gone."""
    status = Path(f"/proc/{pid}/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return 0
