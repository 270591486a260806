"""A profile that is measured while others use the machine leads to plans of nearly best speed."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from planner.api import answer
from planner.cluster.composition import Composition
from planner.cost.evaluate import cost_of
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.entries import GpuType, LayerCost, LinkCost
from planner.profiles.profile import Profile
from planner.request import PlanRequest
from worker.device.device import CPU
from worker.profile.bench import Bench
from worker.profile.layers import parts_of
from worker.profile.machine import LAYERS_S, MICRO_BATCHES, REPEATS
from worker.profile.rows import Part, Row, measured_rows

RECORDED = json.loads((Path(__file__).parents[2] / "data" / "busy_machine.json").read_text())
MODEL = find_model("tiny-llama")
PARTS = parts_of(MODEL)
FIXED_S = {"embedding": 0.0005, "block": 0.003, "head": 0.001}  # of a forward pass
SAMPLE_S = {"embedding": 0.0003, "block": 0.004, "head": 0.006}  # likewise, for each sample
BUILD_S = 0.05  # of a layer, before it is measured
LINK = LinkCost(1e-4, 1e9)
TYPE = GpuType(
    name="cpu",
    memory_bytes=1 << 33,
    reserve_bytes=1 << 28,
    optimizer_latency_s=1e-3,
    optimizer_s_per_parameter=1e-9,
)
Noise = Callable[[float], float]  # how many times longer work takes at a moment


def recorded(at_s: float) -> float:
    rows = RECORDED["slowdown"]
    return float(rows[int(at_s / RECORDED["slice_s"]) % len(rows)])


def bursts(seed: int) -> Noise:
    """Four times slower for seconds, then quiet for seconds."""
    draw, at_s, busy = random.Random(seed), 0.0, []
    while at_s < 300:
        at_s += draw.expovariate(1 / 2.0)
        end_s = at_s + draw.expovariate(1 / 1.0)
        busy.append((at_s, end_s))
        at_s = end_s
    return lambda now: recorded(now) * (4 if any(a <= now < b for a, b in busy) else 1)


NOISES: dict[str, Noise] = {
    "recorded": recorded,
    "constant": lambda now: 2 * recorded(now),
    "drift up": lambda now: recorded(now) * (1 + min(1.0, now / 30)),
    "drift down": lambda now: recorded(now) * (2 - min(1.0, now / 30)),
    **{f"bursts {seed}": bursts(seed) for seed in range(3)},
}


@dataclass
class Machine:
    """Whose clock others slow down."""

    noise: Noise
    now_s: float = 0.0

    def work(self, seconds: float) -> None:
        """Have the core for so long, others permitting."""
        while seconds > 0:
            part_s = min(seconds, 0.01)
            self.now_s += part_s * self.noise(self.now_s)
            seconds -= part_s


def true_cost(kind: str, b: int) -> LayerCost:
    forward_s = FIXED_S[kind] + b * SAMPLE_S[kind]
    return LayerCost(
        forward_s=forward_s,
        backward_s=2 * forward_s,
        tp_communication_s=0.0,
        activation_bytes=1000 * b,
    )


def profile_of(rows: dict) -> Profile:
    layers = {(part.kind, "cpu", 1, b): row.cost for (part, b), row in rows.items()}
    return Profile(
        model=MODEL.name,
        sequence_length=128,
        precision="fp32",
        origin="measured",
        provenance="a test",
        types={"cpu": TYPE},
        layers=layers,
        inside_links={"cpu": LINK},
        network=LINK,
    )


def measured_profile(noise: Noise) -> Profile:
    machine = Machine(noise)
    bench = Bench(CPU, REPEATS, clock=lambda: machine.now_s)

    def measure(part: Part, b: int) -> Row:
        machine.work(BUILD_S)
        bench.spread = 0.0
        cost = true_cost(part.kind, b)
        forward_s = bench.seconds(lambda: machine.work(cost.forward_s))
        both_s = bench.seconds(lambda: machine.work(3 * cost.forward_s))
        return Row(
            LayerCost(
                forward_s=forward_s,
                backward_s=max(0.0, both_s - forward_s),
                tp_communication_s=0.0,
                activation_bytes=1000 * b,
            ),
            bench.spread,
            0.0,
        )

    rows, _ = measured_rows(
        measure, PARTS, MICRO_BATCHES, lambda: machine.now_s, LAYERS_S, lambda *_: None
    )
    return profile_of(rows)


TRUE = profile_of(
    {(part, b): Row(true_cost(part.kind, b)) for part in PARTS for b in MICRO_BATCHES}
)


def throughput(profile: Profile, ranks: int, batch: int) -> float:
    """Of the plan that is found with a profile, on the quiet machine."""
    workload = Workload(model=MODEL, global_batch=batch, sequence_length=128, memory="paper")
    nodes = Composition.from_text(f"cpu=1x{ranks}")
    found = answer(
        PlanRequest(workload=workload, composition=nodes, seed=1, budget_evaluations=500), profile
    )
    return cost_of(found.plan, workload, nodes, TRUE).throughput_samples_s


@pytest.mark.slow
@pytest.mark.parametrize("name", NOISES)
def test_the_plan_from_a_noisy_profile_is_nearly_the_best(name):
    noisy = measured_profile(NOISES[name])
    for ranks, batch in itertools.product((2, 4), (16, 20)):
        best = throughput(TRUE, ranks, batch)
        assert throughput(noisy, ranks, batch) >= 0.95 * best, (ranks, batch)
