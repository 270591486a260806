"""Plans that are worth repeating: a buffer per depth for each composition, and search teachers'.

Invariant: a buffer holds the best plan whose first template has that depth.
Source: Heddle, section 5.5 (self-imitation with a replay buffer per depth, shared among similar
compositions); Oh et al. (2018); cloning of teachers is beyond the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.estimator.tables import Floats
from planner.policy.environment import Choice, Constructions, Environment
from planner.policy.network import Network
from planner.policy.rollouts import play
from planner.training.records import Records
from planner.training.scripts import ScriptedChooser, script_of

Script = tuple[Choice, ...]
NEIGHBOURS = 2  # similar compositions whose plans are imitated too
BEST = 2  # plans of one composition that are imitated at a time


class Buffers:
    """The best plan of each depth, for each composition."""

    def __init__(self, summaries: Floats) -> None:
        """Empty; summaries [E, Z] say which compositions are similar."""
        self._held: list[dict[int, tuple[float, Script]]] = [{} for _ in summaries]
        far = np.linalg.norm(summaries[:, None] - summaries[None], axis=2)
        self._near = np.argsort(far, axis=1, kind="stable")[:, 1 : NEIGHBOURS + 1]

    def offer(self, composition: int, throughput: float, script: Script) -> None:
        """Keep a plan if it is the best of its depth."""
        if not script or throughput <= 0:
            return
        held = self._held[composition]
        depth = script[0].depth
        if depth not in held or held[depth][0] < throughput:
            held[depth] = (throughput, script)

    def best(self, composition: int) -> float:
        """The highest throughput kept; 0 without any."""
        return max((value for value, _ in self._held[composition].values()), default=0.0)

    def best_script(self, composition: int) -> Script:
        """The plan with that throughput; empty without any."""
        held = self._held[composition]
        depth = max(held, key=lambda depth: (held[depth][0], -depth), default=0)
        return held[depth][1] if depth else ()

    def around(self, compositions: Sequence[int]) -> list[tuple[int, float, Script]]:
        """(composition, share of its best, plan) of these compositions and similar ones."""
        wanted = dict.fromkeys(int(c) for c in compositions)
        for c in compositions:
            wanted |= dict.fromkeys(int(near) for near in self._near[c])
        found = []
        for c in wanted:
            # equally fast ones by depth: their order must not depend on when they were found
            held = sorted(self._held[c].items(), key=lambda row: (-row[1][0], row[0]))
            ranked = [kept for _, kept in held[:BEST]]
            found += [(c, value / ranked[0][0], script) for value, script in ranked]
        return found

    def to_json(self) -> list[Any]:
        """As plain data."""
        return [
            [[depth, value, script] for depth, (value, script) in sorted(held.items())]
            for held in self._held
        ]

    def restore(self, data: list[Any]) -> None:
        """Take over what `to_json` wrote."""
        self._held = [
            {depth: (value, script_of(script)) for depth, value, script in rows} for rows in data
        ]


def replay(
    environments: Sequence[Environment], scripts: Sequence[Script], network: Network
) -> tuple[Records, Floats]:
    """Repeat plans, one on each environment; their decisions and throughputs [R].

    The throughput of a plan that could not be repeated is 0.
    """
    constructions = Constructions(environments, 1)
    chooser = ScriptedChooser(network, constructions, tuple(scripts))
    play(constructions, chooser)
    return chooser.records(), np.where(chooser.went_wrong, 0.0, constructions.throughput)
