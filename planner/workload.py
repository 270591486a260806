"""What is trained: the model's shape, and the settings that a plan's cost and memory depend on.

Legend: L blocks; layer index 0 is the embedding, 1..L the blocks, L + 1 the head.
Source: Heddle, section 5.1 (Workload).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from planner.errors import InvalidWorkload

Precision = Literal["fp32"]
Recompute = Literal["none"]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A LLaMA-like decoder.

    RMS norm, rotary positions, grouped-query attention, SwiGLU, untied head.

    Attributes:
        name: as users write it in `spec.model.name`.
        layers: L, the number of decoder blocks; embedding and head come on top.
        hidden: width of the residual stream.
        heads: query heads; `hidden` is divisible by it.
        kv_heads: key and value heads; divides `heads`.
        ffn: width of the feed-forward layer.
        vocab: rows of the embedding.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int

    def __post_init__(self) -> None:
        if min(self.layers, self.hidden, self.heads, self.kv_heads, self.ffn, self.vocab) < 1:
            raise InvalidWorkload(
                f"model {self.name!r} has a size below 1; every size must be positive"
            )
        if self.hidden % self.heads or self.heads % self.kv_heads:
            raise InvalidWorkload(
                f"model {self.name!r} has hidden {self.hidden}, heads {self.heads}, kv_heads "
                f"{self.kv_heads}; "
                "heads must divide hidden and kv_heads must divide heads"
            )

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    def allows_tp(self, tp: int) -> bool:
        """Whether TP degree `tp` cuts every sharded tensor of this model evenly."""
        return tp >= 1 and not any(
            size % tp for size in (self.kv_heads, self.heads, self.ffn, self.vocab)
        )


MODELS: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        ModelShape("tiny-llama", layers=6, hidden=64, heads=4, kv_heads=4, ffn=128, vocab=256),
    )
}


def find_model(name: str) -> ModelShape:
    """The model of that name.

    Raises:
        InvalidWorkload: there is none; the message lists those there are.
    """
    if name not in MODELS:
        raise InvalidWorkload(
            f"model {name!r} is unknown; the models are {', '.join(sorted(MODELS))}"
        )
    return MODELS[name]


@dataclass(frozen=True, slots=True)
class Workload:
    """A model with the training settings that a plan depends on.

    Attributes:
        model: the shape.
        global_batch: B, samples a step over all replicas.
        sequence_length: tokens a sample.
        precision: of weights and gradients.
        zero: ZeRO stage inside a template's replica group.
    """

    model: ModelShape
    global_batch: int
    sequence_length: int
    precision: Precision = "fp32"
    zero: int = 0

    def __post_init__(self) -> None:
        if self.global_batch < 1 or self.sequence_length < 1:
            raise InvalidWorkload(
                f"global batch {self.global_batch} and sequence length {self.sequence_length} "
                f"must both be at least 1"
            )
        if self.precision != "fp32":
            raise InvalidWorkload(f"precision {self.precision!r} is not supported; use fp32")
        if self.zero != 0:
            raise InvalidWorkload(f"ZeRO stage {self.zero} is not supported; use 0")

    def to_json(self) -> dict[str, Any]:
        """The workload as plain data, for files and answers."""
        return asdict(self)
