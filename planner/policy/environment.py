"""Build many plans side by side: observe, choose, fill, price.

The learned policy, the uniform one (`--method random`) and the training drive the same environment,
so that they differ in nothing but their choices.
Invariant: the same choices give the same plans.
Source: Heddle, Algorithm 1 and equation 1.
Legend: R episodes in all, C node classes, K TP degrees, D most stages, F features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from planner.estimator.build_tables import Pricing
from planner.estimator.objective import SearchLimits
from planner.estimator.tables import Floats, Ints
from planner.estimator.top_k import TopK, new_top_k
from planner.estimator.workspace import new_workspace
from planner.policy.closing import close_templates
from planner.policy.features import ActionSpace, action_space_of
from planner.policy.memory_left import keep_depths, keep_stages
from planner.policy.partial_plans import (
    Templates,
    new_partial_plans,
    observe_depths,
    observe_stages,
    observe_states,
    open_templates,
    place_stages,
)
from planner.policy.schema import Array, Bools, FeatureSchema


@dataclass(frozen=True)
class Environment:
    """One composition to plan for."""

    pricing: Pricing  # the estimator's tables
    space: ActionSpace  # what may be chosen
    schema: FeatureSchema  # of the features
    limits: SearchLimits  # limits and objective of the plans that are kept
    # whether choices that cannot be packed, or cannot hold the model, are left out; else they end
    # the episode
    has_masks: bool = True

    @staticmethod
    def of(pricing: Pricing, schema: FeatureSchema, limits: SearchLimits) -> Environment:
        """The environment of a pricing; depth and templates are limited by schema and limits."""
        space = action_space_of(pricing, schema, limits.deepest)
        return Environment(pricing, space, schema, limits)

    @property
    def t_max(self) -> int:
        """Most templates."""
        return min(self.schema.t_max, self.limits.max_templates)


@dataclass(frozen=True)
class DepthView:
    """Facts that a choice of depths may depend on."""

    rows: Ints  # [R] which episodes
    state: Array  # [R, S]
    features: Array  # [R, D + 1, F] of STOP and every depth
    mask: Bools  # [R, D + 1] what is possible


@dataclass(frozen=True)
class StageView:
    """Facts for the choice of a stage, besides the state when its template was opened."""

    rows: Ints  # [R] which episodes
    context: Array  # [R, F] of what the template has so far
    device: Array  # [R, C, F]
    degree: Array  # [R, C, K, F]
    mask: Bools  # [R, C, K]

    @property
    def class_mask(self) -> Bools:
        """[R, C] node classes with a degree that is possible."""
        found: Bools = np.logical_or.reduce(self.mask, axis=2)
        return found


class Episodes:
    """R episodes, equally many on each of some compositions, composition by composition."""

    def __init__(self, environments: Sequence[Environment], each: int) -> None:
        """Start `each` episodes per environment; all share one schema."""
        self.environments = tuple(environments)
        self.each = each
        self.rows = len(self.environments) * each
        self.classes = max(len(one.space.class_type) for one in self.environments)
        self.evaluations = 0
        self.top_k: tuple[TopK, ...] = tuple(new_top_k() for _ in self.environments)
        self._partial = [new_partial_plans(each, len(one.space.tp)) for one in self.environments]
        self._benches = [new_workspace(one.pricing.tables) for one in self.environments]
        self._left = [np.zeros(len(one.space.tp), np.int64) for one in self.environments]
        self._scratch = [np.zeros((2, len(one.space.tp)), np.int64) for one in self.environments]
        self._options = [_option_table(one) for one in self.environments]
        self._widths = self.environments[0].schema.widths

    @property
    def summary(self) -> Floats:
        """[R, Z] of each row's composition."""
        return np.repeat(
            np.array([one.space.summary for one in self.environments]), self.each, axis=0
        )

    @property
    def live(self) -> Ints:
        """Rows to which a template may be added."""
        ended = np.concatenate([plans.ended for plans in self._partial])
        return np.flatnonzero(ended == 0)

    @property
    def seconds(self) -> Floats:
        """[R] an iteration of each plan so far; infinite where there is none."""
        return np.concatenate([plans.seconds for plans in self._partial])

    @property
    def throughput(self) -> Floats:
        """[R] samples a second of each plan so far; 0 where there is none."""
        batches = np.repeat([float(one.space.batch) for one in self.environments], self.each)
        return np.where(np.isfinite(self.seconds), batches / self.seconds, 0.0)

    @property
    def best(self) -> Floats:
        """[E] samples a second of the best plan on each composition; 0 where there is none."""
        values = [one.value[: one.number[0]].min(initial=math.inf) for one in self.top_k]
        batches = np.array([one.space.batch for one in self.environments])
        found: Floats = batches / np.array(values)
        return found

    def observe_depths(self, rows: Ints) -> DepthView:
        """State, candidates and mask before a template of these rows, which ascend."""
        schema = self.environments[0].schema
        state = np.empty((len(rows), self._widths["state"]), np.float32)
        features = np.zeros((len(rows), schema.d_max + 1, self._widths["depth"]), np.float32)
        mask = np.zeros((len(rows), schema.d_max + 1), np.bool_)
        for e, span, own in self._parts(rows):
            one, plans, left = self.environments[e], self._partial[e], self._left[e]
            state[span] = one.space.state
            observe_states(one.space, plans, own, schema.t_max, left, state[span])
            observe_depths(one.space, plans, own, left, features[span], mask[span])
            if one.has_masks:
                tables, scratch = one.pricing.tables, self._scratch[e]
                keep_depths(tables, one.space, plans, own, left, scratch[0], mask[span])
            else:
                mask[span, : one.limits.deepest + 1] = True
        return DepthView(rows, state, features, mask)

    def open(self, rows: Ints, depths: Ints) -> None:
        """Open a template of that depth in each of these rows; 0 stops the row."""
        for e, span, own in self._parts(rows):
            open_templates(self._partial[e], own, depths[span])

    def observe_stages(self, rows: Ints) -> StageView:
        """Candidates and mask of the next stage of these rows, which ascend."""
        degrees = len(self.environments[0].schema.tp_degrees)
        grid = (len(rows), self.classes)
        context = np.zeros((len(rows), self._widths["stage"]), np.float32)
        device = np.zeros((*grid, self._widths["device"]), np.float32)
        degree = np.zeros((*grid, degrees, self._widths["degree"]), np.float32)
        mask = np.zeros((*grid, degrees), np.bool_)
        for e, span, own in self._parts(rows):
            one = self.environments[e]
            space = one.space
            known = self._options[e] >= 0
            device[span, : len(known)] = space.device
            degree[span, : len(known)][:, known] = space.option
            observe_stages(
                space,
                self._partial[e],
                own,
                self._left[e],
                context[span],
                device[span],
                degree[span],
                mask[span],
            )
            if one.has_masks:
                added, held = self._scratch[e]
                keep_stages(
                    one.pricing.tables,
                    space,
                    self._partial[e],
                    own,
                    self._left[e],
                    added,
                    held,
                    mask[span],
                )
            else:
                mask[span, : len(known)] = known
                for found in (context, device, degree):  # of more GPUs than there are
                    np.nan_to_num(found[span], copy=False, neginf=0.0)
        return StageView(rows, context, device, degree, mask)

    def place(self, rows: Ints, classes: Ints, degrees: Ints) -> None:
        """Give the next stage of these rows a node class and a TP degree, both as indices."""
        for e, span, own in self._parts(rows):
            options = self._options[e][classes[span], degrees[span]]
            place_stages(self._partial[e], own, options)

    def close(self, rows: Ints) -> None:
        """Fill and price the open templates of these rows."""
        for e, _, own in self._parts(rows):
            one = self.environments[e]
            self.evaluations += close_templates(
                one.pricing.tables,
                one.limits,
                self._partial[e],
                own,
                one.t_max,
                self._benches[e],
                self.top_k[e],
            )

    def templates(self, row: int) -> Templates:
        """The closed templates of a row."""
        e, own = divmod(row, self.each)
        plans = self._partial[e].plans
        return tuple(
            tuple(int(o) for o in plans.options[own, k, : plans.depth[own, k]])
            for k in range(int(plans.number[own, 0]))
        )

    def _parts(self, rows: Ints) -> list[tuple[int, slice, Ints]]:
        """For each environment with rows: its index, where they stand, their own numbers."""
        if len(self.environments) == 1:
            return [(0, slice(None), rows)]
        cuts = np.searchsorted(rows, np.arange(len(self.environments) + 1) * self.each)
        return [
            (e, slice(int(a), int(b)), rows[a:b] - e * self.each)
            for e, (a, b) in enumerate(pairwise(cuts))
            if b > a
        ]


def _option_table(one: Environment) -> Ints:
    """[C, K] the option of a node class and a degree; -1 where there is none."""
    space = one.space
    table = np.full((len(space.class_type), len(one.schema.tp_degrees)), -1)
    table[one.pricing.tables.option_type, space.degree] = np.arange(len(space.tp))
    return table


def no_limits(deepest: int, max_templates: int) -> SearchLimits:
    """SearchLimits of the training: throughput alone."""
    return SearchLimits(deepest, max_templates, 0, math.inf, math.inf)
