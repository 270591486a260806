"""Purpose of a trained policy: its card, and the questions that it must refuse.

Invariant: a question that the training did not cover is refused with a reason, never answered by
guessing; another profile than the one judged by is only worth a warning, because every plan is
priced by the profile at hand.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from planner.cluster.composition import Composition
from planner.errors import FIELD, InvalidPolicy, PolicyMisfit
from planner.estimator.build_tables import Pricing
from planner.policy.schema import FeatureSchema

WORD = 16  # digits of a digest
AGAIN = "fetch it again, or train one with `heddle train-policy`"  # where a file is damaged


def card_digest(data: Mapping[str, Any]) -> str:
    """Names all that a card says; a card that somebody changed has another one."""
    text = json.dumps(data, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=WORD // 2).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCard:
    """Training and quality of a policy."""

    model: str  # name of the model
    types: tuple[str, ...]  # GPU types
    tp_degrees: tuple[int, ...]  # the paper's K
    d_max: int  # most stages
    t_max: int  # most templates
    most_types: int  # of one composition
    most_node_gpus: int  # of one node
    sees_batch: bool  # of the features
    uses_film: bool  # of the network
    temperatures: tuple[float, float]  # lowest and highest at which plans are drawn
    features: str  # digest of the feature schema
    weights: str  # digest of the weights
    training_set: str  # digest of the questions it was trained on
    num_compositions: int  # how many they are
    profile: str  # digest of the profile that priced its evaluation
    groups: int  # rollout groups of the training
    seed: int  # of the training
    commit: str  # of the code that trained it; empty where there is no repository
    settings: Mapping[str, Any]  # all others of the training
    evaluation: Mapping[str, Any]  # of the policy on compositions that it was not trained on
    seconds: Mapping[str, float]  # of the training, by clock and of processor time
    actions: tuple[str, ...]  # what it chooses, always `HEADS`; other policies are refused

    @property
    def schema(self) -> FeatureSchema:
        """The features of the network."""
        return FeatureSchema(self.types, self.tp_degrees, self.d_max, self.t_max, self.sees_batch)

    def to_json(self) -> dict[str, Any]:
        """The card as plain data, with a digest of it."""
        data = asdict(self)
        return {**data, "digest": card_digest(data)}

    @staticmethod
    def from_text(text: str, where: str) -> PolicyCard:
        """Read a card.

        Raises:
            InvalidPolicy: it is no card, or not as it was written.
        """
        names = {"digest", *(field.name for field in fields(PolicyCard))}
        try:
            data = json.loads(text)
            odd = sorted(names ^ set(data)) if isinstance(data, dict) else ["everything"]
            wrong = f"lacks or does not know the key {odd[0]!r}" if odd else ""
        except (ValueError, RecursionError) as error:
            wrong = f"is no JSON: {error}"
        if not wrong:
            written, found = data.pop("digest"), card_digest(data)
            if written == found:
                listed = ("types", "tp_degrees", "temperatures", "actions")
                return PolicyCard(**data | {name: tuple(data[name]) for name in listed})
            wrong = f"was changed since it was written (its digest is {found}, it says {written})"
        raise InvalidPolicy(f"policy card {where} {wrong}", remedy=AGAIN, code="Malformed")

    def require(self, composition: Composition, pricing: Pricing, deepest: int) -> None:
        """Check that this policy was trained for such a question, of at most so many stages.

        Raises:
            PolicyMisfit: what was asked, what was trained on, and what to do.
        """
        present = composition.gpu_types
        unknown = [name for name in present if name not in self.types]
        degrees = sorted({int(tp) for tp in pricing.tables.option_tp} - set(self.tp_degrees))
        largest = max(composition.nodes, key=lambda node: node.gpus)
        misfit, field, remedy = "", "method", "use the method search or columns, or train a policy"
        if unknown:
            misfit = f"GPU type {unknown[0]!r}, it knows {', '.join(self.types)}"
        elif degrees:
            misfit = f"TP {degrees[0]}, it knows {', '.join(map(str, self.tp_degrees))}"
        elif deepest > self.d_max:
            field = "max_stages"
            misfit = f"{deepest} stages, it knows up to {self.d_max}"
            remedy = f"give {FIELD} {self.d_max}; {remedy}"
        elif len(present) > self.most_types:
            misfit = f"{len(present)} GPU types at once, it knows up to {self.most_types}"
        elif largest.gpus > self.most_node_gpus:
            misfit = (
                f"nodes of {largest.gpus} GPUs ({largest.name}), it knows up to "
                f"{self.most_node_gpus}"
            )
        if misfit:
            raise PolicyMisfit(
                f"the policy of {self.model} was not trained for {misfit}",
                remedy=remedy,
                field=field,
                code="NotTrainedFor",
            )
