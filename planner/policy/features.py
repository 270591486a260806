"""Choices on a composition, and its features that no choice changes.

To the policy as to the estimator, nodes that are alike are a GPU type of their own: the device head
scores node classes, each by its features, so that any number of them can be scored.  Its state is
the paper's, by GPU type.
Invariant: features depend on fractions and ratios, never on names or counts beyond a log scale.
Source: Heddle, Table 2.
Legend: C node classes, O options (node class, TP), N types, K degrees, Q limits on GPUs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.estimator.build_tables import Pricing
from planner.estimator.by_reference import by_reference
from planner.estimator.tables import Floats, Ints
from planner.policy.schema import OF_TYPE, FeatureSchema


@by_reference
class ActionSpace(NamedTuple):
    """All that may be chosen on one composition, as the jitted environment reads it."""

    first_option: Ints  # [C + 1] options of class c are first_option[c] to first_option[c + 1] - 1
    tp: Ints  # [O] TP degree
    degree: Ints  # [O] its index in the schema's degrees
    room: Ints  # [O] GPUs that TP groups of that degree could take
    class_type: Ints  # [C] index in the schema's types
    type_gpus: Ints  # [N] GPUs that may be used
    limit: Ints  # [Q] GPUs that may be used of some classes together
    is_limited: Ints  # [Q, C] 1 if a class counts in that limit
    counts_all: Ints  # [Q] 1 if all classes do
    counts_alone: Ints  # [C] 1 if a class counts in no limit but such
    option_class: Ints  # [O] its node class
    largest: int  # TP degree
    speed: Floats  # [O] blocks a second, relative to the fastest option
    state_share: Floats  # [O] a block's state over the memory of a GPU
    kept_share: Floats  # [O] its activations of one sample over that memory
    sync_samples: Floats  # [O] its gradient sum, in samples whose computation takes as long
    layers: int  # L
    batch: int  # B
    gpus: int  # G, as far as they may be used
    deepest: int  # most stages here
    d_max: int  # of the schema
    sees_batch: int  # 1 if features tell how the batch is shared
    state: Floats  # [S] the state's features that no choice changes; zero where one does
    summary: Floats  # [Z] of the composition
    device: Floats  # [C, F] features of a node class that no choice changes
    option: Floats  # [O, F] features of an option that no choice changes


def action_space_of(pricing: Pricing, schema: FeatureSchema, deepest: int) -> ActionSpace:
    """Choices of at most so many stages; the schema knows all types and degrees."""
    t = pricing.tables
    classes = len(pricing.classes)
    first = np.searchsorted(t.option_type, np.arange(classes + 1))
    kinds = np.array([schema.types.index(one.gpu_type) for one in pricing.classes])
    degrees = np.array([schema.tp_degrees.index(int(tp)) for tp in t.option_tp])
    gpus = np.array([t.room[first[c] : first[c + 1]].max(initial=0) for c in range(classes)])
    type_gpus = np.bincount(kinds, weights=gpus, minlength=len(schema.types)).astype(np.int64)
    total, counts_all = int(gpus.sum()), np.all(t.is_limited == 1, axis=1)
    for most, is_limited in zip(t.limit, t.is_limited == 1, strict=True):
        there = kinds[is_limited]
        type_gpus[there] = np.minimum(type_gpus[there], most)
        total = min(total, int(most + gpus[~is_limited].sum()))
    # of a block and one sample, at the micro-batch that suits the option best
    block_s = (t.block_s[:, :, :, 1].min(axis=2) / t.sizes).min(axis=1)
    speed = np.where(np.isfinite(block_s), block_s.min() / block_s, 0.0)
    usable = t.usable_bytes[t.option_type]
    numel = t.block_numel[:, 1] + t.expert_numel.min(axis=1)
    state_share = numel * t.state_bytes[:3].sum() / usable
    kept_share = t.kept_bytes[:, 0, :, 1].min(axis=1) / usable
    sum_s = 2 * numel * t.state_bytes[1] * t.nic[t.option_type, 1]
    sync = np.where(np.isfinite(block_s), sum_s / block_s, 0.0)
    space = ActionSpace(
        first_option=first,
        tp=t.option_tp,
        degree=degrees,
        room=t.room,
        class_type=kinds,
        type_gpus=type_gpus,
        limit=t.limit,
        is_limited=t.is_limited,
        counts_all=np.array(counts_all, np.int64),
        counts_alone=1 - t.is_limited[~counts_all].max(axis=0, initial=0),
        option_class=t.option_type,
        largest=int(t.option_tp.max()),
        speed=speed,
        state_share=state_share,
        kept_share=kept_share,
        sync_samples=sync,
        layers=t.layers,
        batch=t.batch,
        gpus=total,
        deepest=min(deepest, schema.d_max, t.layers),
        d_max=schema.d_max,
        sees_batch=int(schema.sees_batch),
        state=np.zeros(0),
        summary=_summary(schema, type_gpus, gpus, t.node_gpus, t.batch, total),
        device=np.zeros(0),
        option=np.zeros(0),
    )
    kind = kinds[t.option_type]
    return space._replace(
        state=_state(schema, space, kind, usable),
        device=_device(pricing, schema, space, gpus / space.gpus),
        option=_options(schema, space, kind),
    )


def _log(samples: Floats) -> Floats:
    found: Floats = np.log2(np.maximum(samples, 1e-3)) / 12
    return found


def _state(schema: FeatureSchema, m: ActionSpace, kind: Ints, usable: Floats) -> Floats:
    degrees = len(schema.tp_degrees)
    width = OF_TYPE + 4 * degrees
    state = np.zeros(schema.widths["state"])
    alone = m.speed[m.tp == m.tp.min()].max()
    for i in range(len(schema.types)):
        of_type = state[i * width : (i + 1) * width]
        own = np.flatnonzero(kind == i)
        if not len(own):
            continue
        of_type[2] = m.type_gpus[i] / m.gpus
        of_type[3] = m.speed[own[0]] / alone
        of_type[4] = usable[own[0]] / 1e11
        if schema.sees_batch:
            of_type[5] = float(_log(m.sync_samples[own]).mean())
        for o in own:
            k = OF_TYPE + m.degree[o]
            of_type[k] = m.speed[o]
            of_type[k + degrees] = m.speed[o] / m.tp[o] / alone
            of_type[k + 2 * degrees] = min(4.0, m.state_share[o])
    state[len(schema.types) * width] = np.log2(m.gpus) / 12
    return state


def _summary(
    schema: FeatureSchema, type_gpus: Ints, gpus: Ints, size: Ints, batch: int, total: int
) -> Floats:
    """Size, batch, the share of each type, and how uneven the mix is."""
    shares = type_gpus / type_gpus.sum()
    present = shares[shares > 0]
    return np.array(
        [
            *shares,
            np.log2(total) / 12,
            np.log2(batch) / 16,
            np.log2(batch / total) / 12,
            float(-(present * np.log(present)).sum()),
            float((gpus * np.log2(size)).sum() / gpus.sum() / 3),
            float((gpus * np.log2(size) ** 2).sum() / gpus.sum() / 9),
            len(schema.types) and len(present) / 4,
        ]
    )


def _device(pricing: Pricing, schema: FeatureSchema, m: ActionSpace, shares: Floats) -> Floats:
    features = np.zeros((len(pricing.classes), schema.widths["device"]))
    n = len(schema.types)
    for c, one in enumerate(pricing.classes):
        o = m.first_option[c]
        features[c, m.class_type[c]] = 1
        features[c, n : n + 6] = (
            np.log2(one.gpus) / 3,
            m.speed[o],
            np.log2(1 + 1 / max(m.state_share[o], 1e-6)) / 6,
            -np.log2(pricing.tables.nic[c, 1] * 1e9) / 6,
            shares[c],
            float(_log(m.sync_samples[o : o + 1])[0]),
        )
    return features


def _options(schema: FeatureSchema, m: ActionSpace, kind: Ints) -> Floats:
    features = np.zeros((len(m.tp), schema.widths["degree"]))
    n, k = len(schema.types), len(schema.tp_degrees)
    every = np.arange(len(m.tp))
    features[every, kind] = 1
    features[every, n + m.degree] = 1
    features[:, n + k] = m.speed
    features[:, n + k + 1] = m.speed / m.tp
    features[:, n + k + 2] = np.log2(1 + 1 / np.maximum(m.state_share, 1e-6)) / 6
    features[:, n + k + 3] = _log(m.sync_samples)
    return features
