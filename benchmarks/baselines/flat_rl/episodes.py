"""Episodes of flat-RL: plans built side by side, every decision of a template chosen.

They are Heddle's own episodes with three decisions more, and with or without its masks.  Without
masks a choice that cannot be packed ends its episode at once: no later choice mends it, and the
plan that it would have become counts as priced.
Source: Heddle, sections 4 ("Directly learning the raw plan space"), 5.1 and 6.4.
Legend: R episodes, C node classes, K TP degrees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.baselines.flat_rl.network import Actor
from benchmarks.baselines.flat_rl.raw_choices import (
    LAYERS,
    MICRO_BATCH,
    REPLICAS,
    Candidates,
    close_as_chosen,
    layer_choices,
    micro_batch_choices,
    numbers_of_candidates,
    replica_choices,
)
from planner.estimator.tables import Ints
from planner.policy.environment import DepthView, Environment, Episodes, StageView
from planner.policy.rollouts import always
from planner.policy.schema import Bools


@dataclass(frozen=True, slots=True)
class Decided:
    """Which decisions of a plan are learned, and which choices are left out before."""

    raw: bool  # layers, replicas and micro-batch are chosen; else Heddle's fill derives them
    masked: bool  # choices that cannot be packed are left out

    @property
    def after_stage(self) -> tuple[str, ...]:
        """Heads that choose once a stage is placed."""
        return (LAYERS,) if self.raw else ()

    @property
    def after_template(self) -> tuple[str, ...]:
        """Heads that choose once all stages are."""
        return (REPLICAS, MICRO_BATCH) if self.raw else ()

    @property
    def heads(self) -> tuple[str, ...]:
        """Both, in this order."""
        return (*self.after_stage, *self.after_template)


class RawEpisodes(Episodes):
    """R episodes on one composition.

    Attributes:
        decided: which decisions there are.
        invalid: plans so far that could not run, of those that were evaluated.
    """

    def __init__(self, environment: Environment, each: int, decided: Decided) -> None:
        """Start `each` episodes."""
        super().__init__([environment], each)
        self.decided, self.invalid = decided, 0
        self._here, self._plans = environment, self._partial[0]
        numbers = numbers_of_candidates(environment.space, environment.pricing.tables)
        self.candidates = {head: numbers[head] for head in decided.heads}

    def observe_depths(self, rows: Ints) -> DepthView:
        """State and candidates before a template of these rows."""
        view = super().observe_depths(rows)
        self._depths = view.mask
        return view if self.decided.masked else replace(view, mask=np.ones_like(view.mask))

    def observe_stages(self, rows: Ints) -> StageView:
        """Candidates of the next stage of these rows."""
        view = super().observe_stages(rows)
        self._stages = view.mask
        return view if self.decided.masked else replace(view, mask=np.ones_like(view.mask))

    def choose_depths(self, rows: Ints, depths: Ints) -> Bools:
        """Open a template of that depth in each row, or stop it; [R] whether one is open now."""
        possible = self._depths[np.arange(len(rows)), depths]
        self.open(rows, np.where(possible, depths, 0))
        self._give_up(rows[~possible])
        opened: Bools = possible & (depths > 0)
        return opened

    def choose_stages(self, rows: Ints, classes: Ints, degrees: Ints) -> Bools:
        """Place the next stage of each row, where that is possible; [R] whether it is."""
        possible: Bools = self._stages[np.arange(len(rows)), classes, degrees]
        self.place(rows[possible], classes[possible], degrees[possible])
        self._give_up(rows[~possible])
        return possible

    def observe(self, head: str, rows: Ints) -> Candidates:
        """Candidates of a further head for these rows, which have an open template."""
        space, tables = self._here.space, self._here.pricing.tables
        if head == LAYERS:
            return layer_choices(space, self._plans, rows)
        if head == MICRO_BATCH:
            return micro_batch_choices(space, tables, self._plans, rows)
        found = replica_choices(space, self._plans, rows)
        return found if self.decided.masked else found._replace(mask=np.ones_like(found.mask))

    def choose(self, head: str, rows: Ints, chosen: Ints) -> None:
        """Keep the chosen candidate [R] of each row in its open template."""
        plans = self._plans.plans
        k = plans.number[rows, 0]
        if head == LAYERS:
            plans.blocks[rows, k, 0, self._plans.stage[rows] - 1] = 1 + chosen
        elif head == REPLICAS:
            plans.replicas[rows, k] = 1 + chosen
        else:
            plans.size[rows, k, 0] = chosen

    def close(self, rows: Ints) -> None:
        """Price the open templates of these rows."""
        before = self._plans.plans.number[rows, 0]
        if self.decided.raw:
            self.evaluations += close_as_chosen(
                self._here.pricing.tables,
                self._here.limits,
                self._plans,
                rows,
                self._here.t_max,
                self._benches[0],
                self.top_k[0],
            )
        else:
            super().close(rows)
        self.invalid += int(np.count_nonzero(self._plans.plans.number[rows, 0] == before))

    def _give_up(self, rows: Ints) -> None:
        """End rows whose choice cannot be packed."""
        self._plans.ended[rows] = 1
        self.evaluations += len(rows)
        self.invalid += len(rows)


def play(episodes: RawEpisodes, actor: Actor, fits: Callable[[int], bool] = always) -> None:
    """Build every plan to its end, or as far as `fits` lets so many plans be evaluated in all."""
    decided = episodes.decided
    while len(rows := episodes.live) and fits(episodes.evaluations + len(rows)):
        depths = actor.depths(episodes.observe_depths(rows))
        opened = episodes.choose_depths(rows, depths)
        rows, depths, stage = rows[opened], depths[opened], 0
        while len(placing := rows[depths > stage]):
            view = episodes.observe_stages(placing)
            placed = episodes.choose_stages(placing, *actor.stages(view))
            kept = np.isin(rows, placing[~placed], invert=True)
            rows, depths, placing = rows[kept], depths[kept], placing[placed]
            for head in decided.after_stage:
                _decide(episodes, actor, head, placing)
            stage += 1
        for head in decided.after_template:
            _decide(episodes, actor, head, rows)
        if len(rows):
            episodes.close(rows)


def _decide(episodes: RawEpisodes, actor: Actor, head: str, rows: Ints) -> None:
    if len(rows):
        episodes.choose(head, rows, actor.further(head, rows, episodes.observe(head, rows)))
