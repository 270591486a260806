"""Owners' rows reach all who multiply them, in as many bytes as the planner prices.

Ranks are threads on a gloo world that counts what it broadcasts, so a rank that waits for an owner
in vain is told of after seconds, and by its number.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from planner.cost.memory import WORKER_BUCKET
from planner.cost.weight_broadcasts import broadcast_messages
from planner.model.tensors import held_tensors, model_tensors
from planner.model.workload import Workload
from planner.plans.pieces import shard
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap
from tests.builders import work_on
from tests.distributed.pods import place, template
from tests.distributed.random_plans import tiled_plan
from tests.families import FAMILIES, MIXTURES
from worker.control.activity import Activity
from worker.device.device import CPU
from worker.engine import spread
from worker.engine.bucket import Bucket
from worker.engine.seam import DTYPES
from worker.engine.spread import Spread
from worker.model.boxes import view
from worker.state.shards import TargetShards
from worker.world.gloo_wire import GlooWire
from worker.world.world import World, rank_sets

pytestmark = pytest.mark.slow  # forms worlds
GPUS, BATCH, LENGTH = 4, 8, 16
LIMIT_S = 20.0  # for all ranks of a plan, which need a tenth of a second on a quiet machine
CASES = 14  # mixtures of experts and dense models in turn
BUCKETS = (WORKER_BUCKET, 1000)  # elements
DENSE = (  # stages of each template, and micro-batches of its replicas
    [("1x4", 2, 2, 2, 2)],
    [("2x4", 4, 4)],
    [("1x1+1x3", 5, 3)],
    [("1x4", 1, 2, 3), ("1x4", 2)],
    [("1x4", 3, 3), ("2x4", 2)],
    [("1x4", 2, 2), ("1x4", 1, 3)],
)
PRECISIONS = ("fp32", "bf16", "fp16")
SENT: Counter[tuple[str, int]] = Counter()  # bytes by (wire, place in it)


class CountedWire(GlooWire):
    """A wire that writes down what it broadcasts."""

    @classmethod
    def form(cls, store, name, place, size):
        wire = super().form(store, name, place, size)
        wire.name, wire.place = name, place
        return wire

    def broadcast(self, tensor, source):
        SENT[self.name, self.place] += tensor.nbytes
        return super().broadcast(tensor, source)


def asked(index: int) -> tuple[Plan, Workload]:
    """(plan with ZeRO 1, what it trains), at random."""
    choose, families = random.Random(f"broadcasts/{index}"), (MIXTURES, FAMILIES)[index % 2]
    model = list(families.values())[index // 2 % len(families)]
    plan = (
        dense_plan(choose, DENSE[index // 2 % len(DENSE)])
        if index % 2
        else tiled_plan(choose, GPUS, model, BATCH)
    )
    return plan.with_zero(1), work_on(
        model, BATCH, LENGTH, precision=PRECISIONS[index % len(PRECISIONS)], zero=1, memory="paper"
    )


def dense_plan(choose: random.Random, rows: Any) -> Plan:
    """One or two templates, one at least with replicas, on any GPUs."""
    templates = tuple(template(stages, 1, *counts) for stages, *counts in rows)
    return place(templates, [("a", gpu) for gpu in choose.sample(range(GPUS), GPUS)])


def whole_weights(model) -> dict[str, torch.Tensor]:
    """Numbers that no owner shares with another."""
    generator = torch.Generator().manual_seed(0)
    return {one.name: torch.randn(one.shape, generator=generator) for one in model_tensors(model)}


def wrong_rows(plan: Plan, asked: Workload, rank: int, store: Any) -> list[str]:
    """Tensors of a rank whose rows are not those of their owners after a broadcast."""
    model, seat = asked.model, RankMap.of(plan).seats[rank]
    whole = whole_weights(model)

    def fill(tensor, box, parts):
        everything = SimpleNamespace(tensor=tensor.name)
        everything.start = everything.expert_start = 0
        (rows,) = view(tensor, everything, (whole[tensor.name],), box)
        parts[0].copy_(rows)

    world = World(
        store,
        1,
        rank,
        plan.gpus,
        rank_sets(model, plan),
        Activity(),
        device=CPU,
        form_wire=CountedWire.form,
    )
    target = TargetShards.first(model, seat, fill, Activity(), asked.precision)
    bucket = Bucket(spread.WORKER_BUCKET, torch.device("cpu"))
    build = SimpleNamespace(
        model=model, seat=seat, plan=plan, buffers=target.buffers, world=world, spec=asked
    )
    Spread(build, bucket).weights_()
    world.all_reduce_(torch.zeros(1))  # nobody leaves before all have theirs
    wrong = []
    for tensor in held_tensors(model, seat.layers):
        everything = SimpleNamespace(tensor=tensor.name, start=0, expert_start=0)
        (rows,) = view(tensor, everything, (whole[tensor.name],), shard(tensor, seat))
        kind = torch.float32 if tensor.is_counted else DTYPES[asked.precision]
        if not torch.equal(target.buffers.weights[tensor.name], rows.to(kind)):
            wrong.append(tensor.name)
    return wrong


def played(plan: Plan, asked: Workload) -> dict[int, list[str]]:
    """{rank: its wrong tensors}, of the ranks that ended in time."""
    store, found = HashStore(), {}

    def one(rank: int) -> None:
        found[rank] = wrong_rows(plan, asked, rank, store)

    ranks = [threading.Thread(target=one, args=(r,), daemon=True) for r in range(plan.gpus)]
    for rank in ranks:
        rank.start()
    end = time.monotonic() + LIMIT_S
    for rank in ranks:
        rank.join(max(0.0, end - time.monotonic()))
    return found


@pytest.mark.parametrize("index", range(CASES))
def test_all_get_the_rows_of_owners_in_the_bytes_that_are_priced(index, monkeypatch):
    monkeypatch.setattr(spread, "WORKER_BUCKET", BUCKETS[index // 2 % 2])
    plan, what = asked(index)
    SENT.clear()
    assert played(plan, what) == {rank: [] for rank in range(plan.gpus)}
    priced = broadcast_messages(what, RankMap.of(plan))
    sets = rank_sets(what.model, plan)
    counted = {
        (sets[int(name.removeprefix("epoch1/group"))], place): num_bytes
        for (name, place), num_bytes in SENT.items()
    }
    assert counted == {(of, place): size for of, size in priced.items() for place in range(len(of))}


def test_the_plans_have_owners_of_dense_tensors_and_of_experts_apart():
    found = [asked(index) for index in range(CASES)]
    sent = [broadcast_messages(what, RankMap.of(plan)) for plan, what in found]
    assert sum(map(bool, sent)) >= 10
    ranks = [RankMap.of(plan) for plan, what in found if what.model.experts]
    both = [seat.owner_ranks for one in ranks for seat in one.seats]
    assert any(dense != experts and len(experts) > 1 for dense, experts in both)
    assert any(dense != experts and len(experts) == 1 < len(dense) for dense, experts in both)
    stages = [s for plan, _ in found for one in plan.templates for s in one.stages]
    assert any(stage.ep > 1 and stage.tp > 1 for stage in stages)
