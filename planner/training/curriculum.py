"""The questions that a policy is trained on: generated compositions, each with a batch.

Invariant: the same model, types and settings give the same questions in the same order.
Source: Heddle, section 6 (94 synthetic clusters); batches other than the usual one are beyond it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from itertools import zip_longest
from random import Random

from planner.cluster.composition import Composition
from planner.estimator.build_tables import pricing_of
from planner.estimator.tables import MAX_TEMPLATES
from planner.model.shape import ModelShape
from planner.model.workload import usual_workload
from planner.policy.environment import Environment, no_limits
from planner.policy.schema import FeatureSchema
from planner.profiles.generator import find_profile
from planner.profiles.profile import Profile
from planner.training.compositions import (
    HARDWARE,
    TrainingRange,
    training_compositions,
    training_sets,
)
from planner.training.settings import TrainingSettings

D_MAX = 24
VALIDATION = 12  # compositions that are never trained on
VALIDATION_SEED = 1_000_003
MOST_SETS = 50  # of generated compositions; small ranges hold no more
USUAL_SHARE = 0.7  # of the questions have the model's usual batch
BATCH_FACTORS = (0.5, 2, 4, 8)  # the others', in terms of it
TESTBED_BATCH = 128  # usual on the paper's hardware, whatever is usual in its simulations
TESTBED_FACTORS = (0.5, 2, 4, 16)


@dataclass(frozen=True, slots=True)
class Question:
    """A composition and the batch that is trained on it."""

    composition: Composition
    batch: int


@dataclass(frozen=True, kw_only=True)
class Curriculum:
    """All questions of one training."""

    model: ModelShape  # that is planned for
    types: tuple[str, ...]  # GPU types
    schema: FeatureSchema  # of the features
    profile: Profile  # of the usual workload
    training: tuple[Question, ...]  # questions to train on
    validation: tuple[Question, ...]  # questions to judge by
    has_masks: bool = True  # whether choices that cannot be packed, or hold no model, are left out

    @property
    def digest(self) -> str:
        """12 hex digits that name the questions trained on."""
        rows = [f"{one.composition.digest} {one.batch}" for one in self.training]
        return hashlib.blake2b("\n".join(rows).encode(), digest_size=6).hexdigest()

    def environment(self, question: Question) -> Environment:
        """The environment of a question."""
        workload = replace(usual_workload(self.model), global_batch=question.batch)
        pricing = pricing_of(workload, question.composition, self.profile)
        assert pricing is not None
        one = Environment.of(pricing, self.schema, no_limits(D_MAX, MAX_TEMPLATES))
        return replace(one, has_masks=self.has_masks)


def curriculum_of(
    model: ModelShape, types: tuple[str, ...], settings: TrainingSettings
) -> Curriculum:
    """The questions of one training.

    Raises:
        UnprofiledConfiguration: a type has no profile.
        InvalidComposition: there are too few different compositions.
    """
    workload = usual_workload(model)
    profile = find_profile(workload)
    for name in types:
        profile.gpu_type(name)  # which says what is profiled
    degrees = tuple(sorted({tp for name in types for tp in profile.tp_degrees(name)}))
    d_max = min(D_MAX, model.layers)
    schema = FeatureSchema(types, degrees, d_max, MAX_TEMPLATES, settings.sees_batch)
    sets = training_sets(model.name, types)
    share = -(-settings.compositions // len(sets))
    asked = [_questions(model, own, within, share) for own, within in sets]
    training = [one for row in zip_longest(*(rows[VALIDATION:] for rows in asked)) for one in row]
    return Curriculum(
        model=model,
        types=types,
        schema=schema,
        profile=profile,
        training=tuple([one for one in training if one][: settings.compositions]),
        validation=tuple(one for rows in asked for one in rows[:VALIDATION]),
        has_masks=settings.uses_masks,
    )


def _questions(
    model: ModelShape, types: tuple[str, ...], within: TrainingRange, number: int
) -> tuple[Question, ...]:
    """Those of the validation, then as many others as there are of the number that is asked for."""
    judged_by = training_compositions(types, VALIDATION_SEED, within)[:VALIDATION]
    found: list[Composition] = []
    for seed in range(MOST_SETS):  # the first is the standard set, whatever the training's seed
        known = {*found, *judged_by}
        found += [one for one in training_compositions(types, seed, within) if one not in known]
        if len(found) >= number:
            break
    random = Random(f"{model.name} {' '.join(types)}")
    usual, factors = usual_workload(model).global_batch, BATCH_FACTORS
    if within == HARDWARE:
        usual, factors = TESTBED_BATCH, TESTBED_FACTORS
    return tuple(
        Question(one, _batch(usual, factors, random)) for one in (*judged_by, *found[:number])
    )


def _batch(usual: int, factors: tuple[float, ...], random: Random) -> int:
    if random.random() < USUAL_SHARE:
        return usual
    return int(usual * random.choice(factors))
