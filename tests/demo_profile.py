"""The modelled profile of the demo's emulated GPU types, as a formula with stated constants.

`demo-fast` and `demo-slow` do not exist.  A rank that emulates one really computes the tiny model
on a CPU core and then waits until its profiled time has passed.  So the times are large on purpose,
several times what one core needs: the waiting, not the core, sets the pace.

Invariant: `profile_files` is a pure function of the constants below; the files in `profiles/` are
its output bit for bit.  Source of the formula's form: launch overhead + work / speed + collectives.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.model.catalogue import find_model
from planner.model.shape import ModelShape
from planner.profiles.entries import GpuType, LayerCost, LinkCost, as_row
from planner.profiles.profile import LINKS_FILE

SEQUENCE_LENGTH = 128
PRECISION = "fp32"
TP_DEGREES = (1, 2, 4)
MICRO_BATCHES = (1, 2, 4, 8, 16)
VALUE_BYTES = 4

# All seconds are multiplied by it.  It changes no plan, only how much the emulating machine must do
# in a second: raise it where ranks overrun their profiled times.
PACE = 1.6
BACKWARD_OF_FORWARD = 2.0  # two matrix products in the backward pass for each of the forward
MOE_OF_BLOCK = 1.5  # two experts of half the width, the router and the way of the rows
EP_DEGREES = (1, 2, 4)  # of tilings; an expert is cut over as many GPUs
HEAD_OF_BLOCK = 0.4  # head and loss, against the work of one block
EMBEDDING_OF_BLOCK = 0.05
COLLECTIVES_OF_BLOCK = 4  # all-reduces in forward and backward of one block
COLLECTIVES_OF_HEAD = 3  # loss maximum and sum, gradient of the input
COLLECTIVES_OF_EMBEDDING = 1
# Hidden-sized tensors that a block keeps for its backward pass and that TP cuts.  Plain fp32
# kernels keep about four times as much; with these few, micro-batch 8 is possible with TP 2.
KEPT_TENSORS = 4
# Seconds of one all-reduce: latency by TP degree and bytes over a ring.
COLLECTIVE_LATENCY_S = {1: 0.0, 2: 0.0004, 4: 0.0008}
COLLECTIVE_BYTES_PER_S = 1.0e9


@dataclass(frozen=True, slots=True)
class EmulatedType:
    """Constants of one emulated GPU type.

    Attributes:
        gpu_type: name, memory and optimizer.
        launch_s: of one block, forward and backward, whatever its size.
        sample_s: of one block and one sample, forward and backward, on one GPU.
        inside_node: link between two GPUs of a node.
    """

    gpu_type: GpuType
    launch_s: float
    sample_s: float
    inside_node: LinkCost


TYPES = (
    EmulatedType(
        GpuType(
            name="demo-fast",
            memory_bytes=7_000_000,
            reserve_bytes=500_000,
            optimizer_latency_s=0.010,
            optimizer_s_per_parameter=1.0e-8,
        ),
        launch_s=0.0050,
        sample_s=0.0034,
        inside_node=LinkCost(0.0015, 250.0e6),
    ),
    EmulatedType(
        GpuType(
            name="demo-slow",
            memory_bytes=7_000_000,
            reserve_bytes=500_000,
            optimizer_latency_s=0.012,
            optimizer_s_per_parameter=2.0e-8,
        ),
        launch_s=0.0100,
        sample_s=0.0068,
        inside_node=LinkCost(0.0015, 250.0e6),
    ),
)
BETWEEN_NODES = LinkCost(0.0025, 125.0e6)  # 1 Gb/s


def _layer(kind: str, emulated: EmulatedType, model: ModelShape, tp: int, b: int) -> LayerCost:
    share, collectives = {
        "block": (1.0, COLLECTIVES_OF_BLOCK),
        "moe_block": (MOE_OF_BLOCK, COLLECTIVES_OF_BLOCK),
        "head": (HEAD_OF_BLOCK, COLLECTIVES_OF_HEAD),
        "embedding": (EMBEDDING_OF_BLOCK, COLLECTIVES_OF_EMBEDDING),
    }[kind]
    compute_s = share * (emulated.launch_s + emulated.sample_s * b / tp)
    forward_s = compute_s / (1 + BACKWARD_OF_FORWARD)
    hidden_bytes = b * SEQUENCE_LENGTH * model.hidden * VALUE_BYTES
    ring_s = 2 * (tp - 1) / tp * hidden_bytes / COLLECTIVE_BYTES_PER_S
    communication_s = collectives * (COLLECTIVE_LATENCY_S[tp] + ring_s) if tp > 1 else 0.0
    kept = hidden_bytes + KEPT_TENSORS * hidden_bytes // tp if "block" in kind else hidden_bytes
    return LayerCost(
        forward_s=_rounded(forward_s),
        backward_s=_rounded(compute_s - forward_s),
        tp_communication_s=_rounded(communication_s),
        activation_bytes=kept,
    )


def _rounded(seconds: float) -> float:
    return round(PACE * seconds, 9)  # to the nanosecond, so that the files stay readable


def _paced_link(link: LinkCost) -> LinkCost:
    return LinkCost(PACE * link.latency_s, link.bandwidth_bytes_per_s / PACE)


def _paced_type(gpu_type: GpuType) -> GpuType:
    return replace(
        gpu_type,
        optimizer_latency_s=PACE * gpu_type.optimizer_latency_s,
        optimizer_s_per_parameter=PACE * gpu_type.optimizer_s_per_parameter,
    )


def profile_files(name: str = "tiny-llama") -> dict[str, dict[str, Any]]:
    """The content of every file of a model's profile, by file name."""
    model = find_model(name)
    files: dict[str, dict[str, Any]] = {}
    for emulated in TYPES:
        rows = [
            {"kind": kind, "tp": tp, "micro_batch": b}
            | as_row(_layer(kind, emulated, model, tp, b))
            for kind in ("embedding", *model.block_kinds, "head")
            for tp in TP_DEGREES
            for b in MICRO_BATCHES
        ]
        rows += [  # whatever the tiling, a GPU computes as many rows, of fewer experts or parts
            {"kind": "moe_block", "tp": tp, "micro_batch": b, "ep": ep, "etp": etp}
            | as_row(_layer("moe_block", emulated, model, tp, b))
            for tp in TP_DEGREES
            for b in MICRO_BATCHES
            for ep in EP_DEGREES
            for etp in EP_DEGREES
            if model.experts and (ep, etp) != (1, tp)
        ]
        files[f"{emulated.gpu_type.name}.json"] = {
            "model": name,
            "sequence_length": SEQUENCE_LENGTH,
            "precision": PRECISION,
            "origin": "modelled",
            "provenance": _provenance(emulated, model),
            "gpu_type": as_row(_paced_type(emulated.gpu_type)),
            "layers": rows,
        }
    files[LINKS_FILE] = {
        "origin": "modelled",
        "provenance": {"hardware": "emulated network of the demo"},
        "inside_node": {e.gpu_type.name: as_row(_paced_link(e.inside_node)) for e in TYPES},
        "between_nodes": as_row(_paced_link(BETWEEN_NODES)),
    }
    return files


def _provenance(emulated: EmulatedType, model: ModelShape) -> dict[str, Any]:
    moe = {"moe_share": MOE_OF_BLOCK} if model.experts else {}
    return moe | {
        "hardware": "emulated GPU types of the demo; no such GPU exists",
        "formula": (
            "share * (launch_s + sample_s * micro_batch / tp), a third of it forward; "
            "collectives * (latency_s + 2 (tp - 1) / tp * bytes / bytes_per_s)"
        ),
        "pace": PACE,
        "launch_s": emulated.launch_s,
        "sample_s": emulated.sample_s,
        "head_share": HEAD_OF_BLOCK,
        "embedding_share": EMBEDDING_OF_BLOCK,
        "collective_latency_s": {str(tp): s for tp, s in COLLECTIVE_LATENCY_S.items()},
        "collective_bytes_per_s": COLLECTIVE_BYTES_PER_S,
    }


def write_profile(directory: Path, name: str = "tiny-llama") -> tuple[Path, ...]:
    """Write the files of a model below `directory / name`; returns their paths."""
    folder = directory / name
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for file, content in profile_files(name).items():
        path = folder / file
        path.write_text(profile_text(content), encoding="utf-8")
        paths.append(path)
    return tuple(paths)


def profile_text(content: dict[str, Any]) -> str:
    """The text of one file: one row of `layers` a line."""
    rows = content.get("layers")
    if rows is None:
        return json.dumps(content, indent=1) + "\n"
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    head = json.dumps({key: value for key, value in content.items() if key != "layers"}, indent=1)
    return f'{head[:-2]},\n "layers": [\n  {lines}\n ]\n}}\n'
