"""Plans that are worth repeating: how a plan is repeated decision by decision, and which are kept.

Invariants: templates that can be repeated give the plan they were taken from, and of those that
cannot, every decision is possible all the same and the plan is marked; a buffer holds the best plan
whose first template has that depth.
Source: Heddle, section 5.5 (self-imitation with a replay buffer per depth, shared among similar
compositions); Oh et al. (2018); cloning of teachers is beyond the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from planner.estimator.tables import Floats, Ints
from planner.policy.environment import Environment, Episodes
from planner.policy.network import Network
from planner.policy.partial_plans import Templates
from planner.policy.rollouts import play
from planner.policy.schema import Array, Bools
from planner.training.records import Decisions, Forcing, RecordingActor, Records

NEIGHBOURS = 2  # similar compositions whose plans are imitated too
BEST = 2  # plans of one composition that are imitated at a time


def decisions_of(one: Environment, templates: Templates) -> Iterator[int]:
    """Decisions, one after the other, that build these templates and then stop."""
    classes, degrees = one.pricing.tables.option_type, one.space.degree
    for options in templates:
        yield len(options)
        for option in options:
            yield int(classes[option])
            yield int(degrees[option])
    yield 0


class DemonstratingActor(RecordingActor):
    """Repeats given decisions, and records them as if the policy had made them.

    Attributes:
        went_wrong: [R] a decision was not possible; another one was taken.
    """

    def __init__(
        self, network: Network, episodes: Episodes, decisions: Sequence[Iterator[int]]
    ) -> None:
        """The decisions of each episode; where they end, 0 is decided."""
        none = np.zeros(episodes.rows, bool)
        super().__init__(network, episodes, np.random.default_rng(0), Forcing(none, none))
        self._decisions = decisions
        self.went_wrong = np.zeros(episodes.rows, bool)

    def choose(self, head: str, rows: Ints, logits: Array, candidates: Array, mask: Bools) -> Ints:
        """[R] what was decided where the mask keeps it, else the first that it keeps."""
        del logits
        wanted = np.array([next(self._decisions[row], 0) for row in rows])
        known = np.minimum(wanted, mask.shape[1] - 1)
        is_possible = (known == wanted) & mask[np.arange(len(rows)), known]
        chosen: Ints = np.where(is_possible, known, mask.argmax(axis=1))
        self.went_wrong[rows[~is_possible]] = True
        nothing, free = np.zeros(len(rows)), np.ones(len(rows), bool)
        self.made[head].append(Decisions(rows, candidates, mask, chosen, nothing, free))
        return chosen


def replay(
    environments: Sequence[Environment], plans: Sequence[Templates], network: Network
) -> tuple[Records, Floats]:
    """Repeat plans, one on each environment; their decisions and throughputs [R].

    The throughput of a plan that could not be repeated is 0.
    """
    episodes = Episodes(environments, 1)
    decisions = [decisions_of(*pair) for pair in zip(environments, plans, strict=True)]
    actor = DemonstratingActor(network, episodes, decisions)
    play(episodes, actor)
    return actor.records(), np.where(actor.went_wrong, 0.0, episodes.throughput)


class Buffers:
    """The best plan of each depth, for each composition.

    Attributes:
        held: of each composition {depth: (samples a second, plan)}.
    """

    def __init__(self, summaries: Floats) -> None:
        """Empty; summaries [E, Z] say which compositions are similar."""
        self.held: list[dict[int, tuple[float, Templates]]] = [{} for _ in summaries]
        far = np.linalg.norm(summaries[:, None] - summaries[None], axis=2)
        self._near = np.argsort(far, axis=1, kind="stable")[:, 1 : NEIGHBOURS + 1]

    def offer(self, composition: int, throughput: float, templates: Templates) -> None:
        """Keep a plan if it is the best of its depth."""
        if not templates or throughput <= 0:
            return
        held = self.held[composition]
        depth = len(templates[0])
        if depth not in held or held[depth][0] < throughput:
            held[depth] = (throughput, templates)

    def best(self, composition: int) -> tuple[float, Templates]:
        """The highest throughput kept and its plan, of equals the shallowest; (0, ()) without."""
        held = self.held[composition]
        depth = max(held, key=lambda depth: (held[depth][0], -depth), default=0)
        return held[depth] if depth else (0.0, ())

    def around(self, compositions: Sequence[int]) -> list[tuple[int, float, Templates]]:
        """(composition, share of its best, plan) of these compositions and similar ones."""
        wanted = dict.fromkeys(int(c) for c in compositions)
        for c in compositions:
            wanted |= dict.fromkeys(int(near) for near in self._near[c])
        found = []
        for c in wanted:
            # equally fast ones by depth: their order must not depend on when they were found
            held = sorted(self.held[c].items(), key=lambda row: (-row[1][0], row[0]))
            ranked = [kept for _, kept in held[:BEST]]
            found += [(c, value / ranked[0][0], templates) for value, templates in ranked]
        return found
