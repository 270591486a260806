"""Random jobs on ranks of a real gloo world: a family, a precision, tied or not, with dropout and
document masks or without, under random plans in a row.  A dense job has two, a mixture of experts
three, and the last one of these goes on from a checkpoint; each of its plans may have ZeRO.
`judged.py` holds what they answer against plain torch.

`ranks_find` runs cases in processes of their own, which do what ranks do and no more: the loop of
a rank, its agent and the operator have tests of their own (`test_random_plans.py`).
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from planner.model.shape import ModelShape
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap
from tests.distributed.exact.lost_owner import break_last, recovered
from tests.distributed.exact.state_bits import bits_of, digest_of
from tests.distributed.exact.visits import noted_visits
from tests.distributed.random_plans import apart, random_plan, tiled_plan
from tests.families import FAMILIES, MIXTURES
from tests.unit.worker.ranks import engine_loaded, run_ranks
from worker.contract import Directive, Member, TrainingSpec
from worker.training_settings import Corpus, DataSpec, LossScale, Precision

GPUS, BATCH, LENGTH = 4, 8, 16
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "fp16")
BIAS_RATE = 0.05  # so large that a step changes the choice of experts
SILENT_S = 120.0  # a rank that takes longer for a step or a move waits for ever; it says where
MOST_PLANS = 3  # of a job
RATE = 0.1  # of dropout, where the family has none of its own


@dataclass(frozen=True, slots=True)
class Case:
    """One job.

    Attributes:
        model: a family's, tied or not, with dropout or not.
        spec: what is trained; its data has no path before `on`.
        plans: in their order, each for the same number of steps.
        restored: which of them goes on from a checkpoint of the one before; 0: none.
    """

    model: ModelShape
    spec: TrainingSpec
    plans: tuple[Plan, ...]
    restored: int = 0

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
        zero = [plan.zero for plan in self.plans]
        words += [f"ZeRO {'-'.join(map(str, zero))}"] if any(zero) else []
        return " ".join(words)

    def on(self, prefix: str) -> TrainingSpec:
        """The job on a data set."""
        data = self.spec.data.model_copy(update={"blend": (Corpus(path=prefix),)})
        return self.spec.model_copy(update={"data": data})


def cases(seed: int, count: int, steps: int, kind: str = "dense") -> list[Case]:
    """So many jobs of so many steps; families and precisions in turn, the rest at random.

    `kind` is "dense", or "restored dense", whose second plan goes on from a checkpoint, or
    "mixtures" of experts, which any tiling spreads, or "fp32 mixtures".
    """
    is_dense = kind.endswith("dense")
    families, found = list((FAMILIES if is_dense else MIXTURES).values()), []
    restored = 2 if not is_dense else 1 if kind.startswith("restored") else 0
    for index in range(count):
        choose = random.Random(f"{seed}/{index}")
        family = families[index % len(families)]
        model = _varied(family, tied=choose.random() < 0.5, drops=choose.random() < 0.5)
        step = 2 if len(families) % len(PRECISIONS) == 2 else 1  # each family meets each of them
        turn = index // len(families) * step
        precision = PRECISIONS[(seed + index + turn) % len(PRECISIONS)]
        precision = "fp32" if kind.startswith("fp32") else precision
        plans = apart([_recomputing(choose, model) for _ in range(2 if is_dense else 3)], GPUS)
        if not is_dense:
            plans = [plan.with_zero(choose.choice((0, 1))) for plan in plans]
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
        found.append(Case(model, spec, tuple(plans), restored))
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
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as vault:
        patch.setenv("WANTED", json.dumps([*wanted, prefix]))
        patch.setenv("VAULT", vault)
        answers = run_ranks("tests.distributed.exact.exactness:claims", GPUS, limit_s)
    return [list(of_case) for of_case in zip(*answers, strict=True)]


def claims(gpu: int, store: Any) -> list[Any]:
    """Of each case, a row for each step of this GPU: loss, norm, visits, and bits of its pieces.

    After the steps of each plan another row has the bits of its final weights.
    """
    with engine_loaded():
        *wanted, prefix = json.loads(os.environ["WANTED"])
        return [
            list(trained(gpu, store, 1 + MOST_PLANS * index, case, case.on(prefix)))
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
    has got a weight from its owner.  The second plan goes on from the survivors.  A checkpoint is
    saved and read below the folder `VAULT` of the environment.
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
    at = first_epoch + case.restored  # the plan of this epoch goes on from a checkpoint, if any
    vault = Path(os.environ["VAULT"]) / f"{at}" if case.restored else None
    for directive in directives(case, first_epoch, spec):
        faulthandler.dump_traceback_later(SILENT_S, exit=True)
        if vault is not None and directive.epoch == at:
            held, progress = HeldState(case.model), None
            directive = restored(directive, vault)
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
            if vault is not None and directive.epoch == at - 1:
                save(vault, case.model, move, held, progress)
        transport.close()
    faulthandler.cancel_dump_traceback_later()


def _rows(engine: Any, case: Case, plan: Plan, target: Any, steps: int) -> Iterator[dict[str, Any]]:
    spread, spreads = engine.spread, list[int]()

    def noted() -> None:
        spreads.append(engine.progress.step)
        spread()

    engine.spread = noted
    with noted_visits() as visits:
        for _ in range(steps):
            faulthandler.dump_traceback_later(SILENT_S, exit=True)
            result = engine.train_step(None)
            yield {
                "step": engine.progress.step,
                "spreads": spreads.count(engine.progress.step),
                "loss": result.loss,
                "norm": repr(result.gradient_norm),
                "agreed": engine.progress.agreed,
                "visits": visits.told(),
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
