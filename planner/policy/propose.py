"""Propose plans by rollouts: the best of a batch that is built side by side.

It enumerates nothing and searches nothing: every plan comes from the choices of one episode.
Invariant: the same pricing, policy, limits and seed propose the same plans, unless seconds cut the
rollouts short.
Source: Heddle, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from planner.cluster.composition import Composition
from planner.estimator.build_tables import Pricing
from planner.estimator.objective import SearchLimits
from planner.estimator.top_k import TopK
from planner.policy.environment import Environment, Episodes
from planner.policy.rollouts import Actor, PolicyActor, UniformActor, always, play
from planner.policy.schema import FeatureSchema
from planner.policy.weights import POLICY_OF, Policy, find_policy
from planner.profiles.profile import Profile
from planner.request import PlanRequest

STARTS = 64  # rollouts before other engines go on; 32 are behind annealing in 50 ms, on two cores


class Proposal(NamedTuple):
    """Findings of rollouts."""

    top_k: TopK  # the best plans, by the estimator's price
    evaluations: int  # plans that were priced
    # a sentence if the policy was trained on other prices or for another model, else empty
    warning: str = ""


def rollouts_of(
    request: PlanRequest,
    composition: Composition,
    profile: Profile,
    pricing: Pricing,
    limits: SearchLimits,
    fits: Callable[[int], bool] = always,
) -> Proposal:
    """The best plans of the rollouts that a request asks for, of `auto` a few good starts.

    They may price as many plans in all as `fits` says.

    Raises:
        NoPolicy: the model has none.
        InvalidPolicy: its files are damaged.
        PolicyMisfit: it was not trained for this question.
    """
    policy, warning, model = None, "", request.workload.model.name
    if request.method != "random":
        policy = find_policy(model, request.policy)
        card = policy.card
        card.require(composition, pricing, request.deepest)
        if card.model != POLICY_OF.get(model, model):
            warning = f"trained for another model, {card.model}; its plans are priced for {model}"
        elif card.profile != profile.digest:
            that = f"that of {card.model} then"
            warning = f"judged by another profile ({that}); its plans are priced by this one"
    rollouts = STARTS if request.method == "auto" else request.rollouts
    found = propose(policy, pricing, limits, rollouts, request.seed, fits)
    return found._replace(warning=f"the policy was {warning}" if warning else "")


def propose(
    policy: Policy | None,
    pricing: Pricing,
    limits: SearchLimits,
    rollouts: int,
    seed: int,
    fits: Callable[[int], bool] = always,
) -> Proposal:
    """The best plans of so many rollouts, or of as many as `fits` lets be priced.

    The policy chooses, whose card fits the pricing; without one every choice is drawn uniformly.
    """
    schema = _schema_of(pricing, limits) if policy is None else policy.schema
    environment = Environment.of(pricing, schema, limits)
    episodes = Episodes([environment], rollouts)
    generator = np.random.default_rng(seed)
    actor: Actor = UniformActor(generator)
    if policy is not None:
        actor = PolicyActor(policy.network, episodes, generator, policy.card.temperatures)
    play(episodes, actor, fits)
    return Proposal(episodes.top_k[0], episodes.evaluations)


def _schema_of(pricing: Pricing, limits: SearchLimits) -> FeatureSchema:
    """Features of whatever is there; nobody reads them."""
    types = tuple(sorted({one.gpu_type for one in pricing.classes}))
    degrees = tuple(sorted({int(tp) for tp in pricing.tables.option_tp}))
    return FeatureSchema(types, degrees, limits.deepest, limits.max_templates, sees_batch=False)
