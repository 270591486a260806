"""How a template gets its layers, replicas and micro-batch: by the fill, or chosen like all else.

The second is the ablation `flat`: the raw six dimensions are decisions, and every one of them has a
head of the network.
Invariant: a choice that a mask keeps leaves at least one choice for everything that comes later.
Source: Heddle, section 5.3 (fill) and section 6.4 ("Search efficiency", flat-RL).
Legend: R constructions, A candidates, F features, D stages, L layers, K templates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.estimator.bag import Bag
from planner.estimator.tables import Floats, Ints, Tables
from planner.policy.closing import close_as_chosen, close_templates
from planner.policy.drafts import Drafts, replicas_now
from planner.policy.features import Menu
from planner.policy.layer_choices import observe_layers
from planner.policy.schema import OF_LAYERS, Array, Bools, FeatureSchema

LARGEST = 4.0  # of ratios in features


class FillHead(NamedTuple):
    """One choice of the fill: what may be chosen, and where it is kept.

    Attributes:
        observe: (menu, tables, drafts, rows with an open template) to candidates [R, A, F] and
            mask [R, A].
        take: (drafts, rows, chosen [R]) keeps the chosen candidates in the drafts.
    """

    observe: Callable[[Menu, Tables, Drafts, Ints], tuple[Array, Bools]]
    take: Callable[[Drafts, Ints, Ints], None]


@dataclass(frozen=True)
class Fill:
    """What of a template's fill is chosen, and how the template is closed.

    Attributes:
        stage_heads: choices after each stage, by the head of the network.
        template_heads: choices after the last stage.
        observe_context: (menu, drafts, rows, context [R, F]) tells the choice of the next stage
            what is known of the fill.
        close: prices open templates as `close_templates` does; returns how many plans were priced.
        choices: (plans, row, k) to what was chosen for a closed template, in the order of play.
    """

    stage_heads: Mapping[str, FillHead]
    template_heads: Mapping[str, FillHead]
    observe_context: Callable[[Menu, Drafts, Ints, Array], None]
    close: Callable[..., int]
    choices: Callable[[Bag, int, int], tuple[int, ...]]

    def head(self, name: str) -> FillHead:
        """The choice of that name."""
        return self.stage_heads[name] if name in self.stage_heads else self.template_heads[name]


def fill_of(schema: FeatureSchema) -> Fill:
    """The fill that a network of that schema was built for.

    The ablation's puts the layers of each stage, then replicas and micro-batch, into the slot.
    Memory is that of a pipeline that is full: no filling for few micro-batches, as the fill has.
    """
    if not schema.learns_fill:
        return Fill({}, {}, _keep_context, close_templates, _nothing)
    return Fill(
        {"layers": FillHead(_layers, _take_layers)},
        {
            "replicas": FillHead(_replicas, _take_replicas),
            "micro_batch": FillHead(_micro_batches, _take_micro_batch),
        },
        _tell_layers,
        close_as_chosen,
        _choices,
    )


def _keep_context(menu: Menu, drafts: Drafts, rows: Ints, context: Array) -> None:
    """The context's own estimates stay."""


def _nothing(plans: Bag, row: int, k: int) -> tuple[int, ...]:
    """Nothing was chosen."""
    del plans, row, k
    return ()


def _tell_layers(menu: Menu, drafts: Drafts, rows: Ints, context: Array) -> None:
    """Layers that are placed, and to be placed on each later stage, in place of estimates."""
    k, depth = _open(drafts, rows)
    j = drafts.stage[rows]
    placed = _placed(drafts, rows, k, j)
    context[:, 5] = placed / menu.layers
    context[:, 6] = (menu.layers - placed) / (depth - j) / menu.layers


def _choices(plans: Bag, row: int, k: int) -> tuple[int, ...]:
    """Layers less one of each stage, replicas less one, index of the micro-batch."""
    blocks = plans.blocks[row, k, 0, : plans.depth[row, k]]
    replicas, size = plans.replicas[row, k], plans.size[row, k, 0]
    return (*(int(n) - 1 for n in blocks), int(replicas) - 1, int(size))


def _take_layers(drafts: Drafts, rows: Ints, chosen: Ints) -> None:
    plans = drafts.plans
    plans.blocks[rows, plans.number[rows, 0], 0, drafts.stage[rows] - 1] = 1 + chosen


def _take_replicas(drafts: Drafts, rows: Ints, chosen: Ints) -> None:
    drafts.plans.replicas[rows, drafts.plans.number[rows, 0]] = 1 + chosen


def _take_micro_batch(drafts: Drafts, rows: Ints, chosen: Ints) -> None:
    drafts.plans.size[rows, drafts.plans.number[rows, 0], 0] = chosen


def _open(drafts: Drafts, rows: Ints) -> tuple[Ints, Ints]:
    """[R] slot and [R] depth of the open template of each row."""
    k = drafts.plans.number[rows, 0]
    return k, drafts.plans.depth[rows, k]


def _placed(drafts: Drafts, rows: Ints, k: Ints, stages: Ints) -> Ints:
    """[R] layers on the first stages of the open template of each row."""
    blocks = drafts.plans.blocks[rows, k, 0]
    found: Ints = np.where(np.arange(blocks.shape[1]) < stages[:, None], blocks, 0).sum(axis=1)
    return found


def _column(values: Floats | Ints) -> Floats:
    column: Floats = values[:, None].astype(np.float64)
    return column


def _stacked(rows: Ints, candidates: int, features: list[Floats | Bools]) -> Array:
    """[R, A, F] of features that broadcast to [R, A] each."""
    shape = (len(rows), candidates)
    return np.stack([np.broadcast_to(one, shape) for one in features], axis=2).astype(np.float32)


def _layers(menu: Menu, tables: Tables, drafts: Drafts, rows: Ints) -> tuple[Array, Bools]:
    """One layer to as many as leave one for each stage to come; the last stage takes the rest."""
    del tables
    features = np.zeros((len(rows), menu.layers, OF_LAYERS), np.float32)
    mask = np.zeros((len(rows), menu.layers), np.bool_)
    observe_layers(menu, drafts, rows, features, mask)
    return features, mask


def _replicas(menu: Menu, tables: Tables, drafts: Drafts, rows: Ints) -> tuple[Array, Bools]:
    """One replica to as many as can be packed beside the closed templates."""
    del tables
    _, depth = _open(drafts, rows)
    most = np.zeros(len(rows), np.int64)
    replicas_now(menu, drafts, rows, most)
    n = np.arange(1, int(most.max()) + 1)[None, :].astype(np.float64)
    mask = n <= _column(most)
    share = menu.batch / n
    octaves = np.log2(n)
    ahead = _column(depth - 1)
    sees = float(menu.sees_batch)
    features = [
        octaves / 12,
        n / _column(most),
        n == _column(most),
        sees * (octaves - np.floor(octaves)),
        sees * np.log2(share) / 16,
        sees * (menu.batch % n == 0),
        sees * ahead / (ahead + share),
    ]
    return _stacked(rows, n.shape[1], features), mask


def _micro_batches(menu: Menu, tables: Tables, drafts: Drafts, rows: Ints) -> tuple[Array, Bools]:
    """The profile's sizes, none larger than the batch."""
    k, depth = _open(drafts, rows)
    plans = drafts.plans
    stage = np.arange(plans.options.shape[2])
    options, blocks = plans.options[rows, k], plans.blocks[rows, k, 0]
    own = np.where(stage < depth[:, None], blocks, 0)
    kept = menu.kept_share[options] * np.maximum(0, depth[:, None] - stage)
    sizes = tables.sizes[None, :].astype(np.float64)
    held = own[:, :, None] * (menu.state_share[options][:, :, None] + kept[:, :, None] * sizes)
    share = menu.batch / (_column(plans.replicas[rows, k]) * sizes)
    ahead = _column(depth - 1)
    sees = float(menu.sees_batch)
    features = [
        np.log2(sizes) / 4,
        np.minimum(LARGEST, held.max(axis=1)),
        sees * np.log2(share) / 12,
        sees * (share == np.floor(share)),
        sees * ahead / (ahead + np.maximum(1, share)),
    ]
    mask = (sizes <= max(menu.batch, int(tables.sizes[0]))) & np.ones((len(rows), 1), bool)
    return _stacked(rows, sizes.shape[1], features), mask
