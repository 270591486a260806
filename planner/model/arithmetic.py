"""How the numbers of a model are computed, as far as no cost depends on it.

Invariant: what stands here and what the worker computes are the same; a request that has no field
here is named in `lacking`, so that the model can be priced but is never trained as another one.
Source: configurations of Hugging Face's models, whose words these are where there are any.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from planner.errors import InvalidWorkload
from planner.model.keys import require_keys

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
ScalingKind = Literal["linear", "llama3", "yarn"]
INITIAL_DEVIATION = 0.02  # of all matrices, as GPT-2's published initialisation
MOST_DEVIATION = 100.0  # beyond it somebody has mistyped


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryScaling:
    """How rotary positions are stretched beyond those of the first training.

    Attributes:
        kind: `linear` divides every frequency by `factor`; `llama3` divides low ones, keeps high
            ones and goes smoothly from one to the other; `yarn` does so by other bounds, and scales
            what is rotated, and scores of latent attention.
        factor: by which frequencies are divided.
        low_frequency_factor: wavelengths above `original_positions` / this are low frequencies.
        high_frequency_factor: wavelengths below `original_positions` / this are high frequencies.
        original_positions: tokens of a sample in the first training.
        fast_turns: frequencies that turn more often in these positions are kept; of yarn.
        slow_turns: frequencies that turn less often are divided; of yarn.
        magnitude: `mscale` of configurations: what is rotated grows with it; 0: none is stated.
        score_magnitude: `mscale_all_dim`: the same for scores; 0: none is stated.
    """

    kind: ScalingKind
    factor: float
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_positions: int = 8192
    fast_turns: float = 32.0
    slow_turns: float = 1.0
    magnitude: float = 0.0
    score_magnitude: float = 0.0

    @property
    def rotated_scale(self) -> float:
        """By what queries and keys are multiplied when they are rotated."""
        if self.kind != "yarn":
            return 1.0
        if self.magnitude and self.score_magnitude:
            return self._grown(self.magnitude) / self._grown(self.score_magnitude)
        return self._grown(1.0)

    @property
    def score_scale(self) -> float:
        """By what scores of latent attention are multiplied."""
        is_stated = self.kind == "yarn" and self.score_magnitude
        return self._grown(self.score_magnitude) ** 2 if is_stated else 1.0

    def _grown(self, magnitude: float) -> float:
        """YaRN's temperature: 1 + 0.1 x magnitude x ln(factor)."""
        return 1.0 if self.factor <= 1 else 0.1 * magnitude * math.log(self.factor) + 1.0


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotary positions; halves of a head are rotated against each other.

    Attributes:
        base: of the frequencies, the `rope_theta` of configurations.
        scaling: of the frequencies, if any.
    """

    base: float = 10000.0
    scaling: RotaryScaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """Arithmetic of a model; the defaults are those of a plain LLaMA.

    Attributes:
        norm_epsilon: added to the variance in norms.
        activation: of the feed-forward layers; `gelu_tanh` is GELU's approximation by tanh.
        rotary: of a model whose shape has rotary positions; nobody asks where it has others.
        position_offset: row of the learned positions that the first token of a sample gets.
        windows: how many tokens back, itself included, a token sees in each block, cyclic; 0: all.
        scale_scores: whether attention scores are divided by the square root of the head's width.
        embedding_dropout: share of the embedding's output that is dropped in training.
        attention_dropout: share of the attention probabilities.
        residual_dropout: share of what each branch adds to the residual stream.
        lacking: what the model's configuration asks for and the worker does not compute.
        padding_token: whose row of the embedding learns nothing as an input; None: all rows learn.
        initial_deviation: standard deviation of the first weights of all matrices, where a seed
            gives them.
    """

    norm_epsilon: float = 1e-6
    activation: Activation = "silu"
    rotary: Rotary = Rotary()
    position_offset: int = 0
    windows: tuple[int, ...] = (0,)
    scale_scores: bool = True
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    residual_dropout: float = 0.0
    lacking: tuple[str, ...] = ()
    padding_token: int | None = None
    initial_deviation: float = INITIAL_DEVIATION

    def window(self, block: int) -> int:
        """How many tokens back block `block` (from 1) sees; 0: all."""
        return self.windows[(block - 1) % len(self.windows)]

    @property
    def has_dropout(self) -> bool:
        """Whether anything is dropped."""
        rates = self.embedding_dropout, self.attention_dropout, self.residual_dropout
        return any(rates)

    @staticmethod
    def from_json(data: object) -> Arithmetic:
        """Read what `dataclasses.asdict` wrote.

        Raises:
            InvalidWorkload: a key is unknown or missing, or a value of the wrong kind.
        """
        row = require_keys(Arithmetic, data, "the model's arithmetic")
        if row.get("rotary") is not None:
            where = "arithmetic.rotary"
            inner = require_keys(Rotary, row["rotary"], f"the model's {where}")
            if inner.get("scaling") is not None:
                below = f"{where}.scaling"
                scaling = require_keys(RotaryScaling, inner["scaling"], f"the model's {below}")
                inner["scaling"] = _checked(RotaryScaling, scaling, below)
            row["rotary"] = _checked(Rotary, inner, where)
        for key in ("windows", "lacking"):
            if isinstance(row.get(key), list):
                row[key] = tuple(row[key])
        found: Arithmetic = _checked(Arithmetic, row, "arithmetic")
        return found


PLAIN = Arithmetic()  # of a LLaMA


def _is_number(value: object, least: float = 0.0, most: float = math.inf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_RULES: Mapping[str, tuple[Any, str]] = {
    "base": (lambda v: _is_number(v, 1.0), "a number of at least 1"),
    "factor": (lambda v: _is_number(v, 1e-6), "a number above 0"),
    "low_frequency_factor": (lambda v: _is_number(v, 1e-6), "a number above 0"),
    "high_frequency_factor": (lambda v: _is_number(v, 1e-6), "a number above 0"),
    "original_positions": (_is_whole, "a whole number"),
    "fast_turns": (lambda v: _is_number(v, 1e-6), "a number above 0"),
    "slow_turns": (lambda v: _is_number(v, 1e-6), "a number above 0"),
    "magnitude": (_is_number, "a number from 0"),
    "score_magnitude": (_is_number, "a number from 0"),
    "kind": (lambda v: v in get_args(ScalingKind), f"one of {', '.join(get_args(ScalingKind))}"),
    "activation": (
        lambda v: v in get_args(Activation),
        f"one of {', '.join(get_args(Activation))}",
    ),
    "norm_epsilon": (lambda v: _is_number(v, 0.0, 1.0), "a number from 0 to 1"),
    "position_offset": (_is_whole, "a whole number"),
    "padding_token": (lambda v: v is None or _is_whole(v), "a whole number or null"),
    "initial_deviation": (
        lambda v: _is_number(v, 0.0, MOST_DEVIATION),
        f"a number from 0 to {MOST_DEVIATION:g}",
    ),
    "windows": (
        lambda v: isinstance(v, tuple) and bool(v) and all(map(_is_whole, v)),
        "a list of whole numbers",
    ),
    "scale_scores": (lambda v: isinstance(v, bool), "true or false"),
    "embedding_dropout": (lambda v: _is_number(v, 0.0, 0.99), "a number from 0 to 0.99"),
    "attention_dropout": (lambda v: _is_number(v, 0.0, 0.99), "a number from 0 to 0.99"),
    "residual_dropout": (lambda v: _is_number(v, 0.0, 0.99), "a number from 0 to 0.99"),
    "lacking": (
        lambda v: isinstance(v, tuple) and all(isinstance(one, str) for one in v),
        "a list of texts",
    ),
}


def _checked(part: Any, row: Mapping[str, Any], where: str) -> Any:
    """`part(**row)` once every value is of its kind.

    Raises:
        InvalidWorkload: the first that is not.
    """
    for key, value in row.items():
        is_right, wanted = _RULES.get(key, (lambda _: True, ""))
        if not is_right(value):
            raise InvalidWorkload(
                f"the model's {where}.{key} is {reprlib.repr(value)}; it must be {wanted}",
                field=key,
                code="Malformed",
            )
    return part(**row)
