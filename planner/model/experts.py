"""The mixture of experts of a model: how many there are, and how a router chooses among them.

Invariant: each fact changes a number that is computed; two routings with equal facts are one.
Source: the papers of Mixtral, Qwen3 and DeepSeek-V2 and -V3, and their code in `transformers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from planner.errors import InvalidWorkload
from planner.model.keys import require_keys

Score = Literal["softmax", "sigmoid"]
GroupScore = Literal["best", "two"]
_CHOICES: dict[str, tuple[str, ...]] = {
    "score": get_args(Score),
    "group_score": get_args(GroupScore),
}
OWN_KEYS = {name: name for name in ("per_token", "groups", "groups_kept")}
_MOST = 10**6  # of a factor; beyond it somebody has mistyped


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How a token's experts are chosen, and how much each counts.

    The defaults are Mixtral's.

    Attributes:
        score: of an expert, from its logit: softmax over all experts, or sigmoid of each.
        renormalise: whether the scores of a token's experts are divided by their sum.
        scale: by which the scores of a token's experts are multiplied.
        groups: into which the experts are cut, one after the other; 1: there are none.
        groups_kept: a token's experts are in so many groups, those with the best group score.
        group_score: of a group: its best expert's score, or the sum of its two best.
        bias: whether each expert has a bias that counts for the choice alone; it has no gradient.
    """

    score: Score = "softmax"
    renormalise: bool = True
    scale: float = 1.0
    groups: int = 1
    groups_kept: int = 1
    group_score: GroupScore = "best"
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The mixture of experts in the MoE blocks of a model.

    Attributes:
        count: E, routed experts of a block.
        per_token: k, experts that a token visits.
        ffn: width of one expert.
        shared: experts that every token visits, each as wide as a routed one.
        dense_blocks: blocks before the first MoE block.
        routing: how a token's experts are chosen.
        auxiliary: what the auxiliary loss counts for, of which each sample has its own: E times the
            sum of f P, the mean over blocks; 0: none.
    """

    count: int
    per_token: int
    ffn: int
    shared: int = 0
    dense_blocks: int = 0
    routing: Routing = Routing()
    auxiliary: float = 0.0

    def check(self, name: str, layers: int, keys: Mapping[str, str] = OWN_KEYS) -> None:
        """Refuse experts that cannot be in model `name` of so many blocks.

        Args:
            name: of the model.
            layers: its blocks.
            keys: what the model's configuration calls `per_token`, `groups` and `groups_kept`.

        Raises:
            InvalidWorkload: no block has experts, a token visits more of them than there are, or
                its groups hold too few of them.
        """
        if not (self.count >= 1 and self.ffn >= 1 and 0 <= self.dense_blocks < layers):
            raise InvalidWorkload(
                f"model {name!r} has {self.count} experts of width {self.ffn} after "
                f"{self.dense_blocks} dense blocks of {layers}; at least one block must have them",
                field="experts",
                code="OutOfRange",
            )
        count, groups, kept = self.count, self.routing.groups, self.routing.groups_kept
        has_two = self.routing.group_score == "two" and groups > 1
        most = max(1, count // 2) if has_two else count
        least = max(1, -(-self.per_token * max(1, groups) // count))
        refused = {
            "per_token": (self.per_token, not 1 <= self.per_token <= count, f"from 1 to {count}"),
            "groups": (
                groups,
                not 1 <= groups <= most or bool(count % groups),
                f"from 1 to {most}, and divide {count}",
            ),
            "groups_kept": (
                kept,
                not least <= kept <= groups,
                f"from {least} to {groups}, so that {self.per_token} experts are in them",
            ),
        }
        for fact, (value, is_wrong, wanted) in refused.items():
            if is_wrong:
                raise InvalidWorkload(
                    f"{keys[fact]} is {value} in model {name!r} of {count} experts; it must be "
                    f"{wanted}",
                    field=keys[fact],
                    code="OutOfRange",
                )

    @staticmethod
    def from_json(data: object) -> Experts:
        """Read what `dataclasses.asdict` wrote; a `routing` that is absent is Mixtral's.

        Raises:
            InvalidWorkload: a key is unknown or missing, or a value of the wrong kind.
        """
        row = require_keys(Experts, data, "the model's experts")
        _check_kinds(Experts, row, "experts.")
        if "routing" in row:
            inner = require_keys(Routing, row["routing"], "the model's experts.routing")
            _check_kinds(Routing, inner, "experts.routing.")
            row["routing"] = Routing(**inner)
        return Experts(**row)


def equal_rows(per_token: int, tokens: int, tp: int, etp: int) -> float:
    """Rows that the experts of a rank take of a micro-batch where all experts are equally busy.

    Memory is counted for them, and the worker keeps the inner results of no more rows.

    Args:
        per_token: experts that a token visits.
        tokens: of the micro-batch.
        tp: TP degree; each rank of a TP group routes its share of the tokens.
        etp: ranks that share each expert, and take the rows of all of them.
    """
    return per_token * tokens / tp * etp


def _check_kinds(part: type, row: dict[str, Any], before: str) -> None:
    for field in fields(part):
        if field.name not in row:
            continue
        value, wanted = row[field.name], ""
        if field.type == "int" and not (type(value) is int and 0 <= value <= 10**9):
            wanted = f"a whole number from 0 to {10**9:,}"
        elif field.type == "bool" and type(value) is not bool:
            wanted = "true or false"
        elif field.type == "float" and not (type(value) in (int, float) and 0 <= value <= _MOST):
            wanted = f"a number from 0 to {_MOST:,}"
        elif field.name in _CHOICES and value not in _CHOICES[field.name]:
            wanted = f"one of {', '.join(_CHOICES[field.name])}"
        if wanted:
            raise InvalidWorkload(
                f"the model's {before}{field.name} is {value!r:.40}; it must be {wanted}",
                field=field.name,
                code="Malformed",
            )
