"""Every family under random plans, tied or not, with dropout or not: exact, all holders equal."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from planner.model.shape import ModelShape
from planner.plans.pieces import holders
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap
from tests.distributed.random_plans import random_plan
from tests.families import FAMILIES
from tests.unit.worker.ranks import run_ranks
from worker.contract import TrainingSpec

pytestmark = pytest.mark.slow  # imports DeepSpeed, forks ranks
GPUS, BATCH, STEPS = 4, 6, 2
TOLERANCE = 1e-5  # as in test_exact_training


def cases() -> list[tuple[ModelShape, Plan]]:
    """Each family, and some with the other kind of head, each under a plan of its own."""
    choose = random.Random(11)
    others = (FAMILIES[name] for name in ("gpt2", "llama3", "qwen2"))
    models = [
        *FAMILIES.values(),
        *(replace(o, name=f"{o.name}-otherwise", tied_head=not o.tied_head) for o in others),
    ]
    return [(model, random_plan(choose, GPUS, model.layers, BATCH)) for model in models]


def spec_of(model: ModelShape, prefix: Path) -> TrainingSpec:
    return TrainingSpec(
        model=model.name,
        shape=model.to_json(),
        data=str(prefix),
        global_batch=BATCH,
        sequence_length=16,
        steps=STEPS,
        learning_rate=3e-4,
        warmup_steps=0,
    )


def claims(rank, store):
    """{model: (losses, norms, {piece: digest of its parts})} of one rank."""
    with contextlib.redirect_stdout(sys.stderr):  # where DeepSpeed's log goes from its import on
        from worker.engine.deepspeed import begin, warm_up

        warm_up()
        os.environ["LOCAL_RANK"] = "0"
        begin()
        prefix = Path(os.environ["CORPUS"])
        return {
            model.name: trained(rank, store, epoch, model, plan, prefix)
            for epoch, (model, plan) in enumerate(cases(), start=1)
            if rank < plan.gpus
        }


def trained(rank, store, epoch, model, plan, prefix):
    import torch

    from worker.control.activity import Activity
    from worker.data.dataset import Dataset
    from worker.engine.deepspeed import DeepSpeedEngine
    from worker.engine.seam import StageBuild
    from worker.model.initial_weights import initial_rows
    from worker.rank.held_state import HeldState
    from worker.rank.home import Home
    from worker.world.pace import RealPace
    from worker.world.world import World, rank_sets

    torch.set_num_threads(1)
    spec, activity = spec_of(model, prefix), Activity()
    seat = RankMap.of(plan).seats[rank]
    world = World(store, epoch, rank, plan.gpus, rank_sets(model, plan), activity)
    home = Home.first(model, seat, partial(initial_rows, spec.seed), activity)
    shards, buffers = home.shards, home.buffers
    build = StageBuild(model, spec, plan, seat, world, shards, buffers, activity)
    dataset = Dataset(spec.data, spec.sequence_length, model.vocab)
    engine = DeepSpeedEngine(build, dataset, RealPace())
    results = [engine.train_step(None) for _ in range(STEPS)]
    engine.release()
    world.leave(wait=True)
    held = HeldState(model)
    held.add_shards(seat, shards)
    digests = {}
    for piece, owners in holders(model, plan).items():
        if any(rank in ranks for ranks in owners):
            content = b"".join(part.contiguous().numpy().tobytes() for part in held.read(piece))
            digests[str(piece)] = hashlib.sha256(content).hexdigest()
    return [r.loss for r in results], [r.gradient_norm for r in results], digests


@pytest.fixture(scope="module")
def found():
    from worker.data.prepare import prepare

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        prefix = Path(folder) / "text"
        prepare([Path(__file__), Path(random.__file__)], prefix)
        patch.setenv("CORPUS", str(prefix))
        yield prefix, run_ranks("tests.distributed.test_families:claims", GPUS)


@pytest.mark.parametrize("model", [model for model, _ in cases()], ids=lambda model: model.name)
def test_a_family_trains_as_one_plain_process_does_and_all_holders_are_equal(model, found):
    from worker.engine.reference import train

    prefix, ranks = found
    answers = [answer[model.name] for answer in ranks if model.name in answer]
    expected, _ = train(spec_of(model, prefix), model, STEPS)
    for losses, norms, _ in answers:
        assert losses == pytest.approx(expected, abs=TOLERANCE)
        assert norms == answers[0][1]
    copies: dict[str, set[str]] = {}
    for _, _, digests in answers:
        for piece, digest in digests.items():
            copies.setdefault(piece, set()).add(digest)
    assert all(len(digests) == 1 for digests in copies.values())
