"""Random jobs on ranks of a real gloo world: a family, a precision, tied or not, with dropout and
document masks or without, under two random plans in a row.  Each claim is one of the trainer.

`ranks_find` runs cases in processes of their own, which do what ranks do and no more: the loop of
a rank, its agent and the operator have tests of their own (`test_random_plans.py`).
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from planner.model.shape import ModelShape
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap
from tests.distributed.exact.lost_owner import break_last, recovered
from tests.distributed.exact.state_bits import bits_of, digest_of
from tests.distributed.random_plans import apart, random_plan, tiled_plan
from tests.families import FAMILIES, MIXTURES
from tests.unit.worker.ranks import engine_loaded, run_ranks
from worker.contract import Directive, Member, TrainingSpec
from worker.training_settings import Corpus, DataSpec, LossScale, Precision

GPUS, BATCH, LENGTH = 4, 8, 16
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "fp16")
TOLERANCE = 1e-5  # of fp32
MICRO_BATCHES = (1, 2, 4)  # of the references in low precision
SPREAD = 2.0  # times the largest difference between two of them,
SPREAD_STEPS = 50  # over at most so many steps; in a few they have hardly parted
BIAS_RATE = 0.05  # so large that a step changes the choice of experts
SILENT_S = 120.0  # a rank that takes longer for a step or a move waits for ever; it says where
RATE = 0.1  # of dropout, where the family has none of its own


@dataclass(frozen=True, slots=True)
class Case:
    """One job.

    Attributes:
        model: a family's, tied or not, with dropout or not.
        spec: what is trained; its data has no path before `on`.
        plans: in their order, each for the same number of steps.
    """

    model: ModelShape
    spec: TrainingSpec
    plans: tuple[Plan, Plan]

    def __str__(self) -> str:
        words = [self.model.name, self.spec.precision]
        words += ["tied"] if self.model.tied_head else []
        words += ["dropout"] if self.model.dropout else []
        words += ["masked"] if self.spec.data.document_mask else []
        words += [
            f"EP {stage.ep} ETP {stage.expert_tp}"
            for plan in self.plans
            for template in plan.templates
            for stage in template.stages
            if stage.is_tiled
        ]
        return " ".join(words)

    def on(self, prefix: str) -> TrainingSpec:
        """The job on a data set."""
        data = self.spec.data.model_copy(update={"blend": (Corpus(path=prefix),)})
        return self.spec.model_copy(update={"data": data})


def cases(seed: int, count: int, steps: int, kind: str = "dense") -> list[Case]:
    """So many jobs of so many steps; families and precisions in turn, the rest at random.

    `kind` is "dense", or "mixtures" of experts, which any tiling spreads, or "fp32 mixtures".
    """
    families, found = list((FAMILIES if kind == "dense" else MIXTURES).values()), []
    for index in range(count):
        choose = random.Random(f"{seed}/{index}")
        family = families[index % len(families)]
        model = _varied(family, tied=choose.random() < 0.5, drops=choose.random() < 0.5)
        step = 2 if len(families) % len(PRECISIONS) == 2 else 1  # each family meets each of them
        turn = index // len(families) * step
        precision = PRECISIONS[(seed + index + turn) % len(PRECISIONS)]
        precision = "fp32" if kind.startswith("fp32") else precision
        plans = apart([_recomputing(choose, model) for _ in range(2)], GPUS)
        spec = TrainingSpec(
            model=model.name,
            shape=model.to_json(),
            data=DataSpec(blend=(Corpus(path="none"),), document_mask=choose.random() < 0.5),
            global_batch=BATCH,
            sequence_length=LENGTH,
            steps=steps,
            precision=precision,
            # So low that nothing overflows: near the edge a plan decides in which step it does.
            loss_scale=LossScale(initial=2**10, window=20) if precision == "fp16" else None,
            learning_rate=3e-4,
            warmup_steps=0,
            weight_decay=choose.choice((0.0, 0.1)),
            seed=choose.randrange(1 << 30),
            router_bias_rate=BIAS_RATE,
            verify="Full",
        )
        found.append(Case(model, spec, (plans[0], plans[1])))
    return found


def _varied(family: ModelShape, *, tied: bool, drops: bool) -> ModelShape:
    arithmetic = family.arithmetic
    rates = {
        name: (getattr(arithmetic, name) or RATE) if drops else 0.0
        for name in ("embedding_dropout", "attention_dropout", "residual_dropout")
    }
    return replace(family, tied_head=tied, dropout=drops, arithmetic=replace(arithmetic, **rates))


def _recomputing(choose: random.Random, model: ModelShape) -> Plan:
    plan = (
        random_plan(choose, GPUS, model.layers, BATCH)
        if model.experts is None
        else tiled_plan(choose, GPUS, model, BATCH)
    )
    templates = tuple(
        replace(
            one,
            stages=tuple(
                replace(stage, recompute=choose.choice(("none", "selective", "full")))
                for stage in one.stages
            ),
        )
        for one in plan.templates
    )
    return Plan(templates, plan.placement)


def directives(case: Case, first_epoch: int, spec: TrainingSpec) -> Iterator[Directive]:
    """One for each plan, the state moving from one to the next."""
    held: dict[tuple[str, int], int] = {}
    layouts: dict[int, Any] = {}
    for epoch, plan in enumerate(case.plans, start=first_epoch):
        spots = [(seat.node, seat.gpu, seat.rank) for seat in RankMap.of(plan).seats]
        stay = {(node, gpu) for node, gpu, _ in spots}
        rows = [*spots, *((node, gpu, None) for node, gpu in sorted(held.keys() - stay))]
        members = tuple(
            Member(pod="a", slot=gpu, node=node, gpu=gpu, rank=rank, holds=held.get((node, gpu)))
            for node, gpu, rank in rows
        )
        yield Directive(
            job="tiny",
            epoch=epoch,
            phase="prepare",
            reason="join" if held else "start",
            plan=plan.to_json(),
            plan_digest=plan.digest,
            layouts=layouts,
            members=members,
            store="127.0.0.1:1",
            training=spec,
        )
        held = dict.fromkeys(stay, epoch)
        layouts = {epoch: plan.to_json()}


def ranks_find(wanted: tuple[object, ...], prefix: str, limit_s: float) -> list[list[Any]]:
    """What each GPU's rank answered of each case of `cases(*wanted)`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANTED", json.dumps([*wanted, prefix]))
        answers = run_ranks("tests.distributed.exact.exactness:claims", GPUS, limit_s)
    return [list(of_case) for of_case in zip(*answers, strict=True)]


def claims(gpu: int, store: Any) -> list[Any]:
    """Of each case, a row for each step of this GPU: loss, norm, and the bits of its pieces.

    After the steps of each plan another row has the bits of its final weights.
    """
    with engine_loaded():
        *wanted, prefix = json.loads(os.environ["WANTED"])
        return [
            list(trained(gpu, store, 1 + 2 * index, case, case.on(prefix)))
            for index, case in enumerate(cases(*wanted))
        ]


def trained(
    gpu: int,
    store: Any,
    first_epoch: int,
    case: Case,
    spec: TrainingSpec,
    lost: int | None = None,
) -> Iterator[dict[str, Any]]:
    """A row for each step of a GPU, and one for the final weights of each plan.

    A GPU that is `lost` breaks the last step of the first plan: some have applied it, and nobody
    has got a weight from its owner.  The second plan goes on from the survivors.
    """
    from tests.distributed.exact.restored import restored, save
    from worker.checkpoint.start_source import start_source
    from worker.engine.seam import Progress
    from worker.rank.move import plan_move
    from worker.rank.preparation import Prepared, Successor
    from worker.rank.process import GlooServices
    from worker.rank.switch import Switch
    from worker.state.held_state import HeldState
    from worker.state.shards import TargetShards

    services = GlooServices(emulate=False, store_key="")
    held, progress = HeldState(case.model), None
    vault = os.environ.get("VAULT")  # given: the second plan goes on from a checkpoint
    for directive in directives(case, first_epoch, spec):
        faulthandler.dump_traceback_later(SILENT_S, exit=True)
        if vault is not None and directive.epoch > first_epoch:
            held, progress = HeldState(case.model), None
            directive = restored(directive, Path(vault) / f"{first_epoch}")
        if lost is not None and progress is not None:
            directive = recovered(directive, lost, progress.step)
        move = plan_move(case.model, directive, "a", gpu, "gloo")
        if move is None:
            continue
        size, prefix = len(directive.members), f"transport{directive.epoch}"
        transport = services.form_transport(store, prefix, move.transport_rank, size)
        successor = start = None
        if move.seat is not None:
            seat, epoch = move.seat, directive.epoch
            world = services.form_world(store, epoch, seat.rank, case.model, move.plan)
            if move.moves_state:
                target = TargetShards.of(case.model, seat, held, services.activity, spec.precision)
            else:
                source = start_source(case.model, directive)
                start = source.progress
                target = TargetShards.first(
                    case.model, seat, source.fill, services.activity, spec.precision
                )
            build = _build(case, spec, move, world, target, services.activity)
            successor = Successor(world, target, services.build_engine(build))
        prepared = Prepared(
            move=move, store=store, transport=transport, successor=successor, start=start
        )
        switch = Switch(model=case.model, prepared=prepared, services=services, progress=progress)
        assert switch.run(held, lambda: False, lambda: None) == "commit"
        held, progress = HeldState(case.model), None
        if successor is not None:
            switch.complete(successor.world)
            engine, target = successor.engine, successor.target
            engine.progress = progress = switch.agreed or Progress.of_start(spec)
            is_broken = lost is not None and directive.epoch == first_epoch
            steps = spec.steps // len(case.plans) - is_broken
            yield from _rows(engine, case, move.plan, target, steps)
            if is_broken:
                break_last(engine, has_applied=gpu % 2 == 0)
            else:
                final = {name: digest_of(one) for name, one in engine.weights().items()}
                yield {"step": engine.progress.step, "final": final}
            engine.release()
            successor.world.leave(wait=True)
            held.add_shards(target.seat, target.shards, target.buffers)
            if vault is not None and directive.epoch == first_epoch:
                save(Path(vault) / f"{first_epoch}", case.model, move, held, progress)
        transport.close()
    faulthandler.cancel_dump_traceback_later()


def _rows(engine: Any, case: Case, plan: Plan, target: Any, steps: int) -> Iterator[dict[str, Any]]:
    spread, spreads = engine.spread, list[int]()

    def noted() -> None:
        spreads.append(engine.progress.step)
        spread()

    engine.spread = noted
    for _ in range(steps):
        faulthandler.dump_traceback_later(SILENT_S, exit=True)
        result = engine.train_step(None)
        yield {
            "step": engine.progress.step,
            "spreads": spreads.count(engine.progress.step),
            "loss": result.loss,
            "norm": repr(result.gradient_norm),
            "agreed": engine.progress.agreed,
            "bits": bits_of(case.model, plan, target),
        }


def _build(
    case: Case, spec: TrainingSpec, move: Any, world: Any, target: Any, activity: Any
) -> Any:
    from worker.engine.seam import StageBuild
    from worker.state.still import StillState

    return StageBuild(
        model=case.model,
        spec=spec,
        plan=move.plan,
        seat=target.seat,
        world=world,
        shards=target.shards,
        buffers=target.buffers,
        activity=activity,
        still=StillState(),
    )


@dataclass(frozen=True, slots=True)
class Found:
    """What came of a case.

    Attributes:
        worst: largest difference of a loss from the reference's, of the nearest one in low
            precision.
        allowed: TOLERANCE, or SPREAD times what the references differ by.
        copies: compared, bit by bit, with those of another rank.
    """

    worst: float
    allowed: float
    copies: int


def claim(
    wanted: tuple[Any, ...], prefix: str, answers: Sequence[Sequence[dict[str, Any]]], index: int
) -> None:
    """Case `index` of `cases(*wanted)` trains as plain torch does, and its holders are equal."""
    case = cases(*wanted)[index]
    result = judged(case, prefix, answers[index])
    assert result.worst <= result.allowed
    assert result.copies > 0 or all(plan.gpus == 1 for plan in case.plans)


def judged(case: Case, prefix: str, answers: Sequence[Sequence[dict[str, Any]]]) -> Found:
    """What came of a case.

    Raises:
        AssertionError: two holders of a piece differ in a bit, two ranks in loss, norm or scale,
            or a step is missing.
    """
    rows: dict[int, list[dict[str, Any]]] = {}
    for row in (row for answer in answers for row in answer if "final" not in row):
        rows.setdefault(row["step"], []).append(row)
    assert sorted(rows) == list(range(1, case.spec.steps + 1)), str(case)
    copies = 0
    for of_step in rows.values():
        told = {(row["loss"], row["norm"], *row["agreed"]) for row in of_step}
        assert len(told) == 1, str(case)
        bits: dict[str, list[str]] = {}
        for row in of_step:
            for piece, digest in row["bits"].items():
                bits.setdefault(piece, []).append(digest)
        assert all(len(set(digests)) == 1 for digests in bits.values()), str(case)
        copies += sum(len(digests) for digests in bits.values() if len(digests) > 1)
    losses = [rows[step][0]["loss"] for step in sorted(rows)]
    last = {piece: bits for row in rows[case.spec.steps] for piece, bits in row["bits"].items()}
    worst, allowed = _distance(case, prefix, losses, last)
    return Found(worst, allowed, copies)


def _distance(
    case: Case, prefix: str, losses: list[float], bits: dict[str, str]
) -> tuple[float, float]:
    """(how far the losses are from those of plain torch, how far they may be).

    Raises:
        AssertionError: in fp32, `bits` of a tensor that is counted are not those of plain torch.
    """
    from planner.model.tensors import model_tensors
    from worker.engine.reference.training import train, training

    spec, model, steps = case.on(prefix), case.model, len(losses)
    if spec.precision == "fp32":
        plain, weights = train(spec, model, steps, micro_batch=BATCH)
        for tensor in model_tensors(model):
            if tensor.is_counted:
                bias = weights[tensor.name]
                moment = bias.new_zeros(len(bias))
                assert bits[f"multiplied {tensor.name}/0/0"] == digest_of(bias), str(case)
                wanted = digest_of(bias, moment, moment)
                assert bits[f"state {tensor.name}/0/0"] == wanted, str(case)
        return _apart(losses, plain), TOLERANCE
    of_sizes = zip(*(training(spec, model, size) for size in MICRO_BATCHES), strict=True)
    found = [[loss for loss, _ in of_step] for of_step in islice(of_sizes, steps)]
    worst = min(_apart(losses, one) for one in zip(*found, strict=True))
    allowed = SPREAD * max(max(row) - min(row) for row in found)
    for of_step in islice(of_sizes, max(0, SPREAD_STEPS - steps)):
        if worst <= allowed:
            break  # further steps only allow more
        row = [loss for loss, _ in of_step]
        allowed = max(allowed, SPREAD * (max(row) - min(row)))
    return worst, allowed


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
