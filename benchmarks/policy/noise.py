"""Loss of a policy on a profile other than that of its training.

Every number of every layer, tile and link is changed by its own random factor; the policy plans on
the profile as it is and as it was changed, and is measured on each by a search of equal length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from random import Random
from typing import Any, TypeVar

from benchmarks.evaluation.trial import try_out
from benchmarks.policy.cases import workload_of
from benchmarks.policy.known import Say
from benchmarks.policy.rollouts import ROLLOUTS
from planner.profiles.entries import LayerCost, LinkCost
from planner.profiles.generator import find_profile
from planner.profiles.profile import Profile
from planner.request import PlanRequest
from planner.training.composition_sets import ListedComposition

MOST = 0.15
REFERENCE_S = 3.0

Entry = TypeVar("Entry", LayerCost, LinkCost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """The policy on a profile, as it is or changed.

    Attributes:
        model: its name.
        case: name of the composition.
        is_changed: which profile.
        rollouts: their number; the best counts.
        throughput_samples_s: of its plan; 0 without one.
        reference_samples_s: of a search on the same profile.
    """

    model: str
    case: str
    is_changed: bool
    rollouts: int
    throughput_samples_s: float
    reference_samples_s: float


def changed(profile: Profile, most: float, seed: int) -> Profile:
    """The profile with every number multiplied by a factor of its own within 1 -+ most."""
    random = Random(f"{profile.digest} {seed}")

    def entry(one: Entry) -> Entry:
        factors = {
            field.name: getattr(one, field.name) * random.uniform(1 - most, 1 + most)
            for field in fields(one)
            if field.name not in ("points", "staging")
        }
        whole = {n: round(v) if n.endswith("bytes") else v for n, v in factors.items()}
        if isinstance(one, LayerCost):
            whole["attention_bytes"] = min(whole["attention_bytes"], whole["activation_bytes"])
            whole["attention_s"] = min(whole["attention_s"], whole["forward_s"])
            whole["input_bytes"] = min(whole["input_bytes"], whole["activation_bytes"])
        return replace(one, **whole)

    return replace(
        profile,
        layers={key: entry(cost) for key, cost in profile.layers.items()},
        tiles={key: entry(cost) for key, cost in profile.tiles.items()},
        inside_links={key: entry(link) for key, link in profile.inside_links.items()},
        nics={key: entry(link) for key, link in profile.nics.items()},
        rings={
            name: {size: entry(link) for size, link in rings.items()}
            for name, rings in profile.rings.items()
        },
        network=entry(profile.network),
    )


def measure(
    models: Sequence[str],
    chosen: dict[str, Sequence[ListedComposition]],
    reference_s: float,
    say: Say,
) -> list[dict[str, Any]]:
    """The policy on both profiles of every composition."""
    rows = []
    for model in models:
        profile = find_profile(workload_of(model, chosen[model][0]))
        for index, one in enumerate(chosen[model]):
            for known in (profile, changed(profile, MOST, index)):
                found = _both(model, one, known, known is not profile, reference_s)
                rows += [asdict(row) for row in found]
                shares = [
                    f"{row.rollouts}: "
                    f"{100 * row.throughput_samples_s / (row.reference_samples_s or 1):.2f} %"
                    for row in found
                ]
                name = "as it is" if known is profile else "changed"
                say(f"{model} {one.name} {name}: {', '.join(shares)}")
    return rows


def _both(
    model: str, one: ListedComposition, profile: Profile, is_changed: bool, reference_s: float
) -> list[Changed]:
    workload = workload_of(model, one)
    asked = PlanRequest(
        workload=workload, composition=one.composition, method="policy", budget_evaluations=None
    )
    trials = [try_out(replace(asked, rollouts=n), profile) for n in ROLLOUTS]
    search = try_out(replace(asked, method="auto", budget_s=reference_s, seed=1), profile)
    best = max(trial.throughput_samples_s for trial in (*trials, search))
    return [
        Changed(
            model=model,
            case=one.name,
            is_changed=is_changed,
            rollouts=rollouts,
            throughput_samples_s=trial.throughput_samples_s,
            reference_samples_s=best,
        )
        for rollouts, trial in zip(ROLLOUTS, trials, strict=True)
    ]
