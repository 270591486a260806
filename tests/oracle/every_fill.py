"""Every fill of a template, and seconds that no placement of it beats.

A fill is a micro-batch, a split of the layers, and for each stage its choices of recomputation and
expert tiling.  Of the recomputations of a stage, one goes if another is no slower and allows as
many micro-batches: recomputation changes the seconds and the memory of its own stage and nothing
else of the evaluator.  Nothing else is left out: splits, micro-batches and tilings also change what
the gradients' sum costs, so that being slower in a pipeline proves nothing.
Invariant: the layers of a fill sum to L, each at least 1; each choice fits in memory with up to
`most` micro-batches.
Source: Heddle, section 5.3 (fill).   Legend: b micro-batch, M micro-batches, L layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.cost.memory import (
    StageSlot,
    rule_of,
    slot_parameters,
    stage_memory,
    stepped_parameters,
)
from planner.cost.stage import StageWork, stage_seconds
from planner.errors import UnprofiledConfiguration
from planner.model.workload import STAGE_RECOMPUTATIONS, Workload
from planner.plans.plan import Stage
from planner.profiles.profile import Profile
from tests.oracle.every_placement import Outline, Structure
from tests.oracle.splits import every_split

# The gradients of a run of layers are cut into `lcm of the TP degrees` parts, rounded down; with
# degrees 1, 2 and 4 nothing is lost, and of others no more than this.
ROUNDING_ELEMENTS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class StageChoice:
    """One way to run a stage with its layers.

    Attributes:
        stage: with recomputation and tiling.
        layers: its run in [embedding, block 1..L, head].
        work_s: one micro-batch on speed factor 1, messages and exchange of tokens apart.
        most: the largest M that its memory allows.
        optimizer_s: of its optimizer step on speed factor 1.
        summed_bytes: of gradients, that its first rank sums with all other pipelines.
        exchanges: passes of a block in which its experts exchange tokens, if they are tiled.
    """

    stage: Stage
    layers: range
    work_s: float
    most: int
    optimizer_s: float
    summed_bytes: int
    exchanges: int


@dataclass(frozen=True, slots=True)
class Fill:
    """A micro-batch, a split of the layers, and the choices that each stage has with them.

    Attributes:
        micro_batch: b.
        choices: of each stage, at least one.
    """

    micro_batch: int
    choices: tuple[tuple[StageChoice, ...], ...]

    @property
    def most(self) -> int:
        """The largest M that its memory allows with some choice of each stage."""
        return min(max(choice.most for choice in stage) for stage in self.choices)

    def least(self) -> Iterator[tuple[float, float, int]]:
        """(work, optimizer seconds, summed bytes) of each stage that none of its choices beats."""
        for stage in self.choices:
            yield (
                min(choice.work_s for choice in stage),
                min(choice.optimizer_s for choice in stage),
                min(choice.summed_bytes for choice in stage),
            )


def total_s(work: StageWork) -> float:
    """All that a stage does for one micro-batch, messages to its neighbours apart."""
    return work.forward_s + work.backward_s + work.communication_s + work.recompute_s


class EveryFill:
    """The fills of every template of one workload."""

    def __init__(
        self, workload: Workload, profile: Profile, sizes: Sequence[int], *, allow_ep: bool
    ) -> None:
        """Prepare for one workload.

        Args:
            workload: what is trained; its recomputation may be `auto`: each stage has its own.
            profile: supplies all costs; what it lacks is no choice.
            sizes: micro-batches.
            allow_ep: whether experts may be tiled in another way than TP cuts the rest.
        """
        self._workload = workload
        self._profile = profile
        self._sizes = sizes
        self._allow_ep = allow_ep and workload.model.experts is not None
        asked: str = workload.recompute
        self._recomputations = STAGE_RECOMPUTATIONS if asked == "auto" else (asked,)
        self._fills: dict[Outline, tuple[Fill, ...]] = {}
        self._choices: dict[tuple[StageSlot, int], tuple[StageChoice, ...]] = {}

    def of(self, structure: Structure, replicas: int) -> tuple[Fill, ...]:
        """Every fill of that many replicas of a template; empty if none fits in memory."""
        outline = (structure, replicas)
        if outline not in self._fills:
            self._fills[outline] = tuple(self._enumerate(outline))
        return self._fills[outline]

    def _enumerate(self, outline: Outline) -> Iterator[Fill]:
        structure, replicas = outline
        depth = len(structure)
        for b in self._sizes:
            for split in every_split(depth, self._workload.model.layers):
                slots, start = [], 1
                for index, layers in enumerate(split):
                    slots.append(
                        StageSlot(
                            gpu_type=structure[index][0],
                            tp=structure[index][1],
                            micro_batch=b,
                            micro_batches=1,
                            depth=depth,
                            index=index,
                            replicas=replicas,
                            start=start,
                        )
                    )
                    start += layers
                choices = tuple(map(self._of_stage, slots, split))
                if all(choices):
                    yield Fill(b, choices)

    def _of_stage(self, slot: StageSlot, layers: int) -> tuple[StageChoice, ...]:
        key = (slot, layers)
        if key not in self._choices:
            found: list[StageChoice] = []
            for ep, etp in self._tilings(slot, layers):
                alike: list[StageChoice] = []
                for how in self._recomputations:
                    stage = Stage(
                        gpu_type=slot.gpu_type,
                        tp=slot.tp,
                        layers=layers,
                        recompute=how,
                        ep=ep,
                        etp=etp,
                    )
                    choice = self._choice(slot, stage)
                    if choice and not any(_replaces(other, choice) for other in alike):
                        alike.append(choice)
                found += alike
            self._choices[key] = tuple(found)
        return self._choices[key]

    def _tilings(self, slot: StageSlot, layers: int) -> Iterator[tuple[int, int]]:
        """(EP, ETP) that cut experts and devices evenly; (1, 0) cuts experts as TP does."""
        yield 1, 0
        experts = self._workload.model.experts
        kinds = self._workload.model.kinds_of(slot.start or 0, (slot.start or 0) + layers)
        if not self._allow_ep or experts is None or "moe_block" not in kinds:
            return
        devices = slot.replicas * slot.tp
        for ep in range(1, devices + 1):
            for etp in range(1, devices // ep + 1):
                if (
                    (ep, etp) != (1, slot.tp)
                    and devices % (ep * etp) == 0
                    and experts.count % ep == 0
                    and experts.ffn % etp == 0
                ):
                    yield ep, etp

    def _choice(self, slot: StageSlot, stage: Stage) -> StageChoice | None:
        """That choice of a stage; None if the profile lacks it or it does not fit."""
        workload, profile = self._workload, self._profile
        start = slot.start or 1
        run = range(
            0 if slot.is_first else start,
            start + stage.layers + (1 if slot.is_last else 0),
        )
        try:
            work = stage_seconds(profile, workload.model, stage, slot.micro_batch, run)
            most = self._most(slot, stage)
        except UnprofiledConfiguration:
            return None
        if not most:
            return None
        held = _slot(slot, stage, 1)
        dense, experts = slot_parameters(workload.model, held, stage.layers)
        summed = dense if self._allow_ep else dense + experts
        gradient_bytes = rule_of(workload).gradient
        stepped = stepped_parameters(workload, held, stage.layers)
        gpu = profile.gpu_type(stage.gpu_type)
        blocks = workload.model.kinds_of(run.start, run.stop).get("moe_block", 0)
        exchanges = blocks * (3 if stage.recompute == "full" else 2)
        return StageChoice(
            stage=stage,
            layers=run,
            work_s=total_s(work),
            most=most,
            optimizer_s=gpu.optimizer_latency_s + gpu.optimizer_s_per_parameter * stepped,
            summed_bytes=max(0, summed - ROUNDING_ELEMENTS) * gradient_bytes,
            exchanges=exchanges,
        )

    def _most(self, slot: StageSlot, stage: Stage) -> int:
        """The largest M that fits; memory depends on M up to the stages from here to the end."""
        usable = self._profile.gpu_type(stage.gpu_type).usable_bytes
        most = 0
        for micro_batches in range(1, slot.depth - slot.index + 1):
            asked = _slot(slot, stage, micro_batches)
            peak = stage_memory(self._workload, self._profile, asked, stage.layers).peak_bytes
            if peak > usable:
                return most
            most = micro_batches
        return self._workload.global_batch


def _slot(slot: StageSlot, stage: Stage, micro_batches: int) -> StageSlot:
    return StageSlot(
        gpu_type=slot.gpu_type,
        tp=slot.tp,
        micro_batch=slot.micro_batch,
        micro_batches=micro_batches,
        depth=slot.depth,
        index=slot.index,
        recompute=stage.recompute,
        replicas=slot.replicas,
        ep=stage.ep,
        etp=stage.etp,
        start=slot.start,
    )


def _replaces(other: StageChoice, choice: StageChoice) -> bool:
    """Whether the other recomputation of that tiling is never worse.

    Full recomputation exchanges tokens once more, so it replaces no other of a tiled stage.
    """
    exchanges_more = other.stage.recompute == "full" and other.stage.is_tiled
    return other.work_s <= choice.work_s and other.most >= choice.most and not exchanges_more
