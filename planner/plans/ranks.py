"""Seat of each rank under a placed plan.

Ranks count through templates, replicas, stages and slots in plan order, so that a TP group is a run
of consecutive ranks.  A rank is an index into one epoch's plan; a process is known by its GPU for
life.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, pairwise

from planner.plans.plan import FilledTemplate, Plan

RankSets = tuple[tuple[int, ...], ...]
Share = tuple[int, int]  # (index, of so many equal ones)
# Of a model: first layer and the one behind its last, TP degree and slot, `expert_block`,
# `expert_part`, `owner`, `expert_owner`.
Part = tuple[int, int, int, int, Share, Share, Share, Share]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One running replica of a template."""

    template_index: int  # of its template in the plan
    replica: int  # r, its index among the replicas of the template
    template: FilledTemplate  # the filled template
    ranks: tuple[tuple[int, ...], ...]  # `ranks[stage][slot]`
    nodes: tuple[str, ...]  # of each stage
    first_sample: int  # where its run of the global batch starts

    @property
    def num_micro_batches(self) -> int:
        """M_r."""
        return self.template.micro_batches[self.replica]

    @property
    def rounds(self) -> int:
        """Micro-batches that pass through it in a step: M_r, and empty ones in lock-step."""
        template = self.template
        own = self.num_micro_batches
        return max(template.micro_batches) if template.is_in_lock_step else own

    @property
    def samples(self) -> int:
        """Samples of the global batch that this replica trains each step."""
        return self.num_micro_batches * self.template.micro_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where one rank sits: pipeline, stage, slot in the TP group, and the GPU that it runs on."""

    rank: int
    pipeline: Pipeline
    stage: int
    slot: int
    node: str
    gpu: int

    @property
    def tp(self) -> int:
        """TP degree of its stage."""
        return self.pipeline.template.stages[self.stage].tp

    @property
    def recompute(self) -> str:
        """Recomputation of its stage's backward pass."""
        return self.pipeline.template.stages[self.stage].recompute

    @property
    def gpu_type(self) -> str:
        """Device type of its stage."""
        return self.pipeline.template.stages[self.stage].gpu_type

    @property
    def expert_block(self) -> tuple[int, int]:
        """(index, EP): which share of the experts it holds.

        The devices of a stage, replica by replica and slot by slot, are cut into runs of ETP; EP
        runs hold all experts once, and the next EP runs hold them again.
        """
        stage = self.pipeline.template.stages[self.stage]
        return self._device // stage.expert_tp % stage.ep, stage.ep

    @property
    def expert_part(self) -> tuple[int, int]:
        """(index, ETP): which share of each of its experts it holds."""
        etp = self.pipeline.template.stages[self.stage].expert_tp
        return self._device % etp, etp

    @property
    def owner(self) -> Share:
        """(index, of so many): which share of what it holds, but experts, it owns.

        An owner has master weight and moments.  With ZeRO 1 the replicas of a template share what
        each of them holds; the slots of a TP group own alike what all of them hold.
        """
        template = self.pipeline.template
        return (self.pipeline.replica, template.replicas) if template.zero else (0, 1)

    @property
    def expert_owner(self) -> Share:
        """(index, EDP): which share of the experts that it holds it owns, likewise."""
        template = self.pipeline.template
        if not template.zero:
            return 0, 1
        stage = template.stages[self.stage]
        ways = stage.ep * stage.expert_tp
        return self._device // ways, template.replicas * stage.tp // ways

    @property
    def _device(self) -> int:
        """Its number among the devices of its stage in all replicas of the template."""
        return self.pipeline.replica * self.tp + self.slot

    @property
    def is_first_copy(self) -> bool:
        """Whether it is one of the EP x ETP devices that hold all experts of its stage first."""
        stage = self.pipeline.template.stages[self.stage]
        return self._device < stage.ep * stage.expert_tp

    @property
    def expert_ranks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ranks among which its tokens travel, each of them ascending.

        One rank of each EP run, which together hold all experts and have one ETP part of them; and
        the ETP run, whose ranks share each of their experts.
        """
        (block, ep), (part, etp) = self.expert_block, self.expert_part
        run = self._device - part
        first = run - block * etp
        return (
            self._ranks_of(range(first + part, first + part + ep * etp, etp)),
            self._ranks_of(range(run, run + etp)),
        )

    @property
    def owner_ranks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ranks among which ZeRO 1 cuts its state, in order of shares.

        Of all but experts, its slot of each replica; of experts, those that hold the same.
        """
        stage = self.pipeline.template.stages[self.stage]
        devices, ways = self.pipeline.template.replicas * stage.tp, stage.ep * stage.expert_tp
        return (
            self._ranks_of(range(self.slot, devices, stage.tp)),
            self._ranks_of(range(self._device % ways, devices, ways)),
        )

    def _ranks_of(self, devices: range) -> tuple[int, ...]:
        """Ranks of devices of its stage: those of each replica follow `stride` behind the last."""
        groups, tp = self.pipeline.ranks, self.tp
        stride = groups[-1][-1] + 1 - groups[0][0]
        first = groups[self.stage][0] - self.pipeline.replica * stride
        if devices.step % tp == 0:  # one slot: no device is looked at alone
            start = first + devices.start // tp * stride + devices.start % tp
            step = devices.step // tp * stride
            return tuple(range(start, start + len(devices) * step, step))
        return tuple(first + device // tp * stride + device % tp for device in devices)

    @property
    def tp_ranks(self) -> tuple[int, ...]:
        """Ranks of its TP group, in slot order."""
        return self.pipeline.ranks[self.stage]

    @property
    def part(self) -> Part:
        """Its part of the model: seats with an equal part hold and own the same."""
        layers = self.layers
        ends = (layers.start, layers.stop, self.tp, self.slot)
        owners = self.owner, self.expert_owner
        return (*ends, self.expert_block, self.expert_part, *owners)

    @property
    def layers(self) -> range:
        """Indices of its layers in [embedding, block 1..L, head]."""
        cuts = self.pipeline.template.layer_bounds()
        return range(cuts[self.stage], cuts[self.stage + 1])


@dataclass(frozen=True, slots=True)
class RankMap:
    """All pipelines and all seats of a plan; `seats[rank].rank == rank`."""

    pipelines: tuple[Pipeline, ...]
    seats: tuple[Seat, ...]

    def stage_ranks(self, template: int, stage: int) -> list[int]:
        """The ranks of a stage over all replicas of its template."""
        own = (one for one in self.pipelines if one.template_index == template)
        return [rank for pipeline in own for rank in pipeline.ranks[stage]]

    def owner_sets(self, template: int, stage: int) -> tuple[RankSets, RankSets]:
        """The sets of ranks among which ZeRO 1 cuts the state of a stage, in order of shares.

        Returns:
            One for each slot, with its rank of each replica of the template; and one for each of
            the EP x ETP parts of the experts, with those that hold it.
        """
        seats = [self.seats[rank] for rank in self.stage_ranks(template, stage)]
        one = seats[0].pipeline.template.stages[stage]
        return (
            tuple(seat.owner_ranks[0] for seat in seats[: one.tp]),
            tuple(seat.owner_ranks[1] for seat in seats[: one.ep * one.expert_tp]),
        )

    @staticmethod
    def of(plan: Plan) -> RankMap:
        """Number the ranks of a plan; its placement is in plan order."""
        pipelines: list[Pipeline] = []
        seats: list[Seat] = []
        placed = iter(plan.placement)
        sample = 0
        for index, template in enumerate(plan.templates):
            for replica in range(template.replicas):
                first = [len(seats)]
                for stage in template.stages:
                    first.append(first[-1] + stage.tp)
                ranks = tuple(tuple(range(*ends)) for ends in pairwise(first))
                spots = tuple(islice(placed, len(ranks)))
                pipeline = Pipeline(
                    template_index=index,
                    replica=replica,
                    template=template,
                    ranks=ranks,
                    nodes=tuple(spot.node for spot in spots),
                    first_sample=sample,
                )
                pipelines.append(pipeline)
                sample += pipeline.samples
                for s, (group, spot) in enumerate(zip(ranks, spots, strict=True)):
                    seats += [
                        Seat(
                            rank=rank,
                            pipeline=pipeline,
                            stage=s,
                            slot=slot,
                            node=spot.node,
                            gpu=spot.gpus[slot],
                        )
                        for slot, rank in enumerate(group)
                    ]
        return RankMap(tuple(pipelines), tuple(seats))
