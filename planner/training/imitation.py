"""Plans that are worth repeating: how a plan is repeated decision by decision, and which are kept.

Invariants: a trajectory that can be repeated gives the plan it was taken from, and of one that
cannot, every decision is possible all the same and it is marked; a buffer holds the best plan whose
first template has that depth.
Source: Heddle, section 5.5 (self-imitation with a replay buffer per depth, shared among similar
compositions); Oh et al. (2018); cloning of teachers is beyond the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from planner.estimator.tables import Floats, Ints
from planner.policy.environment import Choice, DepthView, Environment, Episodes, StageView
from planner.policy.network import Network
from planner.policy.rollouts import play
from planner.policy.schema import Bools
from planner.training.records import Forcing, RecordingActor, Records
from planner.training.teacher import Templates

Trajectory: TypeAlias = tuple[Choice, ...]
NEIGHBOURS = 2  # similar compositions whose plans are imitated too
BEST = 2  # plans of one composition that are imitated at a time


def read_trajectory(data: Sequence[Sequence[Any]]) -> Trajectory:
    """Decisions of a plan as JSON gives them back."""
    return tuple(Choice(depth, tuple((c, k) for c, k in stages)) for depth, stages in data)


def trajectory_from(one: Environment, templates: Templates) -> Trajectory:
    """The decisions that build the templates of a demonstration."""
    classes, degrees = one.pricing.tables.option_type, one.space.degree
    return tuple(
        Choice(len(row), tuple((int(classes[o]), int(degrees[o])) for o in row))
        for row in templates
    )


def templates_from(one: Environment, trajectory: Trajectory) -> Templates:
    """The templates that decisions build."""
    classes, degrees = one.pricing.tables.option_type, one.space.degree
    options = {(int(c), int(k)): o for o, (c, k) in enumerate(zip(classes, degrees, strict=True))}
    return tuple(tuple(options[stage] for stage in choice.stages) for choice in trajectory)


class DemonstratingActor(RecordingActor):
    """Repeats given decisions, and records them as if the policy had made them.

    Attributes:
        went_wrong: [R] a decision was not possible; another one was taken.
    """

    def __init__(
        self, network: Network, episodes: Episodes, trajectories: Sequence[Trajectory]
    ) -> None:
        """One trajectory per episode: its templates, in order; then it stops."""
        none = np.zeros(episodes.rows, bool)
        super().__init__(network, episodes, np.random.default_rng(0), Forcing(none, none))
        self._trajectories = trajectories
        self._template = np.full(episodes.rows, -1)
        self._next = np.zeros(episodes.rows, np.int64)
        self.went_wrong = np.zeros(episodes.rows, bool)

    def depths(self, view: DepthView) -> Ints:
        """The depths of the trajectories."""
        self._template[view.rows] += 1
        self._next[view.rows] = 0
        chosen = np.zeros(len(view.rows), np.int64)
        for i, row in enumerate(view.rows):
            trajectory = self._trajectories[row]
            if self._template[row] < len(trajectory):
                chosen[i] = trajectory[self._template[row]].depth
        chosen = self._possible(view.rows, chosen, view.mask)
        free = np.ones(len(chosen), np.bool_)
        self._record_depths(view, chosen, np.zeros(len(chosen)), free)
        return chosen

    def stages(self, view: StageView) -> tuple[Ints, Ints]:
        """The node classes and degrees of the trajectories."""
        degrees = view.mask.shape[2]
        wanted = np.full(len(view.rows), -1)
        for i, row in enumerate(view.rows):
            stages = self._now(row).stages
            if self._next[row] < len(stages):
                node_class, degree = stages[self._next[row]]
                wanted[i] = node_class * degrees + degree
        self._next[view.rows] += 1
        chosen = self._possible(view.rows, wanted, view.mask.reshape(len(view.rows), -1))
        nothing, free = np.zeros(len(chosen)), np.ones(len(chosen), np.bool_)
        self._record_stages(view, chosen // degrees, chosen % degrees, (nothing, nothing), free)
        return chosen // degrees, chosen % degrees

    def _possible(self, rows: Ints, wanted: Ints, mask: Bools) -> Ints:
        """The wanted candidates where the mask keeps them, else the first that it keeps."""
        beyond = (wanted < 0) | (wanted >= mask.shape[1])
        chosen = np.where(beyond, 0, wanted)
        wrong = beyond | ~mask[np.arange(len(chosen)), chosen]
        chosen[wrong] = mask[wrong].argmax(axis=1)
        self.went_wrong[rows[wrong]] = True
        return chosen

    def _now(self, row: int) -> Choice:
        """The trajectory's template that is open; its last one if it has no more."""
        trajectory = self._trajectories[row]
        return trajectory[min(int(self._template[row]), len(trajectory) - 1)]


def replay(
    environments: Sequence[Environment], trajectories: Sequence[Trajectory], network: Network
) -> tuple[Records, Floats]:
    """Repeat plans, one on each environment; their decisions and throughputs [R].

    The throughput of a plan that could not be repeated is 0.
    """
    episodes = Episodes(environments, 1)
    actor = DemonstratingActor(network, episodes, trajectories)
    play(episodes, actor)
    return actor.records(), np.where(actor.went_wrong, 0.0, episodes.throughput)


class Buffers:
    """The best plan of each depth, for each composition."""

    def __init__(self, summaries: Floats) -> None:
        """Empty; summaries [E, Z] say which compositions are similar."""
        self._held: list[dict[int, tuple[float, Trajectory]]] = [{} for _ in summaries]
        far = np.linalg.norm(summaries[:, None] - summaries[None], axis=2)
        self._near = np.argsort(far, axis=1, kind="stable")[:, 1 : NEIGHBOURS + 1]

    def offer(self, composition: int, throughput: float, trajectory: Trajectory) -> None:
        """Keep a plan if it is the best of its depth."""
        if not trajectory or throughput <= 0:
            return
        held = self._held[composition]
        depth = trajectory[0].depth
        if depth not in held or held[depth][0] < throughput:
            held[depth] = (throughput, trajectory)

    def best(self, composition: int) -> tuple[float, Trajectory]:
        """The highest throughput kept and its plan, of equals the shallowest; (0, ()) without."""
        held = self._held[composition]
        depth = max(held, key=lambda depth: (held[depth][0], -depth), default=0)
        return held[depth] if depth else (0.0, ())

    def around(self, compositions: Sequence[int]) -> list[tuple[int, float, Trajectory]]:
        """(composition, share of its best, plan) of these compositions and similar ones."""
        wanted = dict.fromkeys(int(c) for c in compositions)
        for c in compositions:
            wanted |= dict.fromkeys(int(near) for near in self._near[c])
        found = []
        for c in wanted:
            # equally fast ones by depth: their order must not depend on when they were found
            held = sorted(self._held[c].items(), key=lambda row: (-row[1][0], row[0]))
            ranked = [kept for _, kept in held[:BEST]]
            found += [(c, value / ranked[0][0], trajectory) for value, trajectory in ranked]
        return found

    def to_json(self) -> list[Any]:
        """As plain data."""
        return [
            [[depth, value, trajectory] for depth, (value, trajectory) in sorted(held.items())]
            for held in self._held
        ]

    def restore(self, data: list[Any]) -> None:
        """Take over what `to_json` wrote."""
        self._held = [
            {depth: (value, read_trajectory(trajectory)) for depth, value, trajectory in rows}
            for rows in data
        ]
