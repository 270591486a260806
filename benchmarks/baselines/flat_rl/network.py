"""Heddle's policy network with further heads on its stage layer, and the records of its decisions.

There is one composition, so FiLM is left out.
Invariant: without further heads decisions and objective are those of Heddle's own policy.
Source: Heddle, sections 5.4, 5.5 and 6.4.
Legend: N templates begun, S stages, D decisions of a head, R episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.baselines.flat_rl.raw_choices import WIDTHS, Candidates
from planner.estimator.tables import Ints
from planner.policy.environment import Episodes, StageView
from planner.policy.network import HEAD, STAGE, Film, Network, shapes, shapes_of_head
from planner.policy.schema import HEADS, FeatureSchema
from planner.training.objective import Judged, log_and_entropy
from planner.training.records import Decisions, Forcing, RecordingActor, Records
from planner.training.torch_network import TorchNetwork


def shapes_with(schema: FeatureSchema, heads: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shape of every weight by its name, for networks with these further heads."""
    found = shapes(schema)
    for head in heads:
        found |= shapes_of_head(head, STAGE, WIDTHS[head])
    return found


def film_with(film: Film, heads: Sequence[str]) -> Film:
    """A FiLM that leaves further heads as they are."""
    like = film.of["depth"][0]
    plain = (like[:, :HEAD] * 0 + 1, like[:, :HEAD] * 0)
    return Film({**film.of, **dict.fromkeys(heads, plain)})


class Made(NamedTuple):
    """Decisions of some episodes, further heads included."""

    records: Records  # of all heads, the further ones last
    after: tuple[Ints, ...]  # of each further head [D] the stage of `records` that it followed

    def of_row(self, row: int) -> Made:
        """The decisions of one episode."""
        made = self.records.decisions
        stages = np.cumsum(made[1].row == row) - 1
        further = zip(self.after, made[len(HEADS) :], strict=True)
        after = tuple(stages[stage[one.row == row]] for stage, one in further)
        return Made(self.records.of_rows(row, row + 1), after)


def joined(parts: Sequence[Made]) -> Made:
    """Decisions of episodes as those of one batch, numbered in this order."""
    stages = np.cumsum([0, *(len(one.records.opened) for one in parts)])
    templates = np.cumsum([0, *(len(one.records.state) for one in parts)])
    decisions = []
    for of_head in zip(*(one.records.decisions for one in parts), strict=True):
        rows = np.concatenate([np.full_like(one.row, i) for i, one in enumerate(of_head)])
        columns = [np.concatenate(column) for column in zip(*of_head, strict=True)]
        decisions.append(Decisions(*columns)._replace(row=rows))
    opened = [one.records.opened + first for one, first in zip(parts, templates, strict=False)]
    records = Records(
        np.concatenate([one.records.state for one in parts]),
        np.concatenate(opened),
        np.concatenate([one.records.context for one in parts]),
        tuple(decisions),
    )
    after = zip(*(one.after for one in parts), strict=True)
    return Made(
        records,
        tuple(
            np.concatenate([stage + first for stage, first in zip(of_head, stages, strict=False)])
            for of_head in after
        ),
    )


class Actor(RecordingActor):
    """The policy with its further heads; every decision is recorded."""

    def __init__(
        self,
        network: Network,
        episodes: Episodes,
        generator: np.random.Generator,
        forcing: Forcing,
        candidates: Mapping[str, int],
    ) -> None:
        """Start recording; `candidates` has how many each further head scores."""
        super().__init__(network, episodes, generator, forcing)
        self._further = tuple(candidates)
        self._film = film_with(self._film, self._further)
        self._hidden = np.zeros((episodes.rows, STAGE), np.float32)
        self._stage_of = np.full(episodes.rows, -1)
        self._placed = 0
        # Where nothing is decided there are records all the same, of no rows.
        schema, nobody = episodes.environments[0].schema, np.zeros(0, np.int64)
        self._after = {head: [nobody] for head in self._further}
        self._stages.append((nobody, np.zeros((0, schema.widths["stage"]), np.float32)))
        sizes = {"device": episodes.classes, "degree": len(schema.tp_degrees), **candidates}
        for head, size in sizes.items():
            width = (schema.widths | WIDTHS)[head]
            features = np.zeros((0, size, width), np.float32)
            mask, free = np.zeros((0, size), bool), np.zeros(0, bool)
            self.made[head] = [Decisions(nobody, features, mask, nobody, np.zeros(0), free)]

    def stages(self, view: StageView) -> tuple[Ints, Ints]:
        """A node class of each row, and then a degree of it."""
        rows = view.rows
        self._stage_of[rows] = self._placed + np.arange(len(rows))
        self._placed += len(rows)
        trunk, film = self._trunk[rows], self._film.rows(rows)
        self._hidden[rows] = self._network.stage(trunk, view.context, film)
        return super().stages(view)

    def further(self, head: str, rows: Ints, candidates: Candidates) -> Ints:
        """[R] a candidate of each row, after the stage that was placed last."""
        film = self._film.rows(rows)
        logits = self._network.score(head, self._hidden[rows], candidates.features, film)
        self._after[head].append(self._stage_of[rows])
        return self.choose(head, rows, logits, candidates.features, candidates.mask)

    def all_made(self) -> Made:
        """All decisions so far."""
        after = tuple(np.concatenate(self._after[head]) for head in self._further)
        return Made(self.records(), after)


def judge_made(network: TorchNetwork, made: Made, summary: Tensor, heads: Sequence[str]) -> Judged:
    """Run the network on recorded decisions of one composition, its summary [1, Z]."""
    records = made.records
    film = film_with(network.film(summary), heads)
    opened = torch.from_numpy(records.opened)
    trunk = network.trunk(torch.from_numpy(records.state), film)
    hidden = network.stage(trunk[opened], torch.from_numpy(records.context), film)
    after = [torch.from_numpy(stage) for stage in made.after]
    inputs = (trunk, hidden, hidden, *(hidden[stage] for stage in after))
    templates = (torch.arange(len(trunk)), opened, opened, *(opened[stage] for stage in after))
    logs, total, number = [], torch.zeros(len(trunk)), torch.zeros(len(trunk))
    decided = zip((*HEADS, *heads), records.decisions, inputs, templates, strict=True)
    for head, one, inner, template in decided:
        logits = network.score(head, inner, torch.from_numpy(one.candidates), film)
        log, entropy = log_and_entropy(logits, one.mask, one.choice)
        logs.append(log)
        total = total.index_add(0, template, entropy)
        number = number.index_add(0, template, torch.ones(len(template)))
    return Judged(tuple(logs), (total / number).mean())
