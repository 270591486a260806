"""The shape of a decoder, as far as its cost, its memory and its tensors depend on it.

Layers come in kinds; the blocks of one kind are identical, so that one of each is profiled.
Invariant: layer index 0 is the embedding, 1..L the blocks, L + 1 the head.
Source: Heddle, section 5.1; names of sizes are those of Megatron and of Hugging Face
configurations.
"""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from planner.errors import InvalidWorkload
from planner.model.arithmetic import PLAIN, Arithmetic
from planner.model.experts import Experts
from planner.model.keys import require_keys
from planner.model.own import OwnTensors

Kind = Literal["embedding", "block", "moe_block", "head"]
# How attention scores are computed: `flash` never writes them to memory; `fused` is Megatron's
# softmax kernel, `eager` its scale, mask and softmax one by one; `fp32` is GPT-Neo's own code,
# which casts queries and keys to fp32 first.
Scores = Literal["flash", "fused", "eager", "fp32"]
StageRecompute = Literal["none", "selective", "full"]  # what a backward pass computes again
_NO_COST = ("name", "layers", "recompute", "arithmetic")  # on which no cost of a layer depends
LARGEST = 10**9  # of a model's sizes; beyond it somebody has mistyped
# The deepest that were ever trained have a thousand (Wang et al., "DeepNet", 2022); planner and
# operator look at each of them.
MOST_LAYERS = 1024
LONGEST = 200  # characters of a name: it is part of the names of files
VOCABULARY_MULTIPLE = 128  # Megatron's --make-vocab-size-divisible-by


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention: queries, keys and values through low-rank projections.

    Attributes:
        query_rank: width of the compressed queries; 0: they are not compressed.
        kv_rank: width of the compressed keys and values.
        rope: width of a head's rotary part, whose key is shared by all heads.
        value: width of a head's values.
    """

    query_rank: int
    kv_rank: int
    rope: int
    value: int

    def check(self, name: str, head_dim: int) -> None:
        """Whether heads of that width can be cut so; `name` is that of the model.

        Raises:
            InvalidWorkload: a part is missing, or values are wider than keys.
        """
        if min(self.kv_rank, self.value, head_dim - self.rope) < 1 or self.value > head_dim:
            raise InvalidWorkload(
                f"model {name!r} has latent attention with kv_rank {self.kv_rank}, heads of "
                f"{head_dim}, rope {self.rope} and value {self.value}; kv_rank and value must be "
                "positive, rope below the width of a head, and value at most that width",
                field="latent",
                code="OutOfRange",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer.

    Attributes:
        name: as users write it in `spec.model.name`.
        layers: L, the number of decoder blocks; embedding and head come on top.
        hidden: width of the residual stream.
        heads: query heads.
        kv_heads: key and value heads; divides `heads`.
        ffn: width of the feed-forward layer of a dense block.
        vocab: rows of the embedding.
        head_width: width of one head; 0: hidden / heads.
        gated: the feed-forward layer has a gate (three matrices) or none (two).
        rotary: rotary positions, else learned ones.
        max_positions: rows of the learned positions.
        tied_head: the head shares the weight of the embedding; both ends hold it.
        bias: norms are LayerNorm with a bias instead of RMS norm; the output projection and the
            feed-forward layers have a bias.
        qkv_bias: queries, keys and values have a bias.
        o_bias: the output projection has a bias, whatever the norms are.
        ffn_bias: the feed-forward layers have biases, whatever the norms are.
        query_key_norm: queries and keys are normalised per head.
        dropout: whether residual branches and attention have it, and pay for it.
        scores: how attention scores are computed.
        experts: the mixture of experts, if any.
        latent: latent attention, if any.
        recompute: what its users recompute unless they say otherwise.
        arithmetic: how its numbers are computed, as far as no cost depends on it.
        own: the tensors of a model of the user's own; the sizes above are then those of the
            decoder that it costs about as much as.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    head_width: int = 0
    gated: bool = True
    rotary: bool = True
    max_positions: int = 0
    tied_head: bool = False
    bias: bool = False
    query_key_norm: bool = False
    dropout: bool = False
    scores: Scores = "flash"
    experts: Experts | None = None
    latent: LatentAttention | None = None
    recompute: StageRecompute = "none"
    qkv_bias: bool = False
    o_bias: bool = False
    ffn_bias: bool = False
    arithmetic: Arithmetic = PLAIN
    own: OwnTensors | None = None

    def __post_init__(self) -> None:
        if len(self.name) > LONGEST:
            raise InvalidWorkload(
                f"model {self.name[:20]!r}... has a name of {len(self.name)} characters; it may "
                f"have {LONGEST}",
                field="name",
                code="OutOfRange",
            )
        if min(self.layers, self.hidden, self.heads, self.kv_heads, self.ffn, self.vocab) < 1:
            raise InvalidWorkload(
                f"model {self.name!r} has a size below 1; every size must be positive",
                code="OutOfRange",
            )
        if self.layers > MOST_LAYERS:
            raise InvalidWorkload(
                f"model {self.name!r} has {self.layers:,} layers; it may have at most "
                f"{MOST_LAYERS:,}, so correct its configuration",
                field="layers",
                code="OutOfRange",
            )
        if (not self.head_width and self.hidden % self.heads) or self.heads % self.kv_heads:
            raise InvalidWorkload(
                f"model {self.name!r} has hidden {self.hidden}, heads {self.heads}, kv_heads "
                f"{self.kv_heads}; "
                "heads must divide hidden and kv_heads must divide heads",
                field="heads",
                code="OutOfRange",
            )
        if self.own and (self.experts or self.latent or self.tied_head):
            raise InvalidWorkload(
                f"model {self.name!r} has tensors of its own, and so neither experts, nor latent "
                "attention, nor a tied head; leave these out",
                field="own",
                code="Contradiction",
            )
        if self.experts is not None:
            self.experts.check(self.name, self.layers)
        if self.latent is not None:
            self.latent.check(self.name, self.head_dim)
        turned = self.latent.rope if self.latent else self.head_dim
        if self.rotary and (turned < 2 or turned % 2):
            raise InvalidWorkload(
                f"model {self.name!r} rotates {turned} numbers of a head by position; their count "
                "must be even, and 2 at least, as halves turn against each other",
                field="latent" if self.latent else "head_width",
                code="OutOfRange",
            )

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.head_width or self.hidden // self.heads

    @property
    def block_kinds(self) -> tuple[Kind, ...]:
        """The kinds of blocks that this model has."""
        if self.experts is None:
            return ("block",)
        return ("block", "moe_block") if self.experts.dense_blocks else ("moe_block",)

    def kind(self, layer: int) -> Kind:
        """The kind of layer `layer` in [embedding, block 1..L, head]."""
        if layer == 0:
            return "embedding"
        if layer == self.layers + 1:
            return "head"
        dense = self.layers if self.experts is None else self.experts.dense_blocks
        return "block" if layer <= dense else "moe_block"

    def kinds_of(self, start: int, stop: int) -> dict[Kind, int]:
        """How many layers of each kind are in [start, stop) of [embedding, block 1..L, head]."""
        dense = self.layers if self.experts is None else self.experts.dense_blocks
        last = self.layers + 1
        counts: dict[Kind, int] = {
            "embedding": int(start <= 0 < stop),
            "block": max(0, min(stop, dense + 1) - max(start, 1)),
            "moe_block": max(0, min(stop, last) - max(start, dense + 1)),
            "head": int(start <= last < stop),
        }
        return {kind: count for kind, count in counts.items() if count}

    def allows_tp(self, tp: int) -> bool:
        """Whether TP degree `tp` cuts every sharded tensor of this model evenly."""
        sizes = [self.kv_heads, self.heads, self.ffn, self.padded_vocab]
        if self.experts is not None:
            sizes.append(self.experts.ffn)
        if self.own is not None and tp >= 1 and not self.own.allows_tp(tp):
            return False
        return tp >= 1 and not any(size % tp for size in sizes)

    @property
    def cost_digest(self) -> str:
        """12 hex digits of all that the cost of a layer depends on, whatever their number."""
        row = {key: value for key, value in asdict(self).items() if key not in _NO_COST}
        return hashlib.blake2b(json.dumps(row, sort_keys=True).encode(), digest_size=6).hexdigest()

    @property
    def padded_vocab(self) -> int:
        """Rows of the embedding: the vocabulary up to a multiple of 128, as Megatron pads it."""
        return -(-self.vocab // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ModelShape:
        """Read what `dataclasses.asdict` wrote.

        Raises:
            InvalidWorkload: a key is unknown or missing, or a value has the wrong type.
        """
        row = require_keys(ModelShape, data, "the model")
        if row.get("experts") is not None:
            row["experts"] = Experts.from_json(row["experts"])
        if row.get("latent") is not None:
            latent = require_keys(LatentAttention, row["latent"], "the model's latent")
            _require_kinds(LatentAttention, latent, "latent.")
            row["latent"] = LatentAttention(**latent)
        if row.get("own") is not None:
            row["own"] = OwnTensors.from_json(row["own"])
        if "arithmetic" in row:
            row["arithmetic"] = Arithmetic.from_json(row["arithmetic"])
        _require_kinds(ModelShape, row)
        return ModelShape(**row)

    def to_json(self) -> dict[str, Any]:
        """The shape as plain data."""
        return asdict(self)


_KINDS: Mapping[object, tuple[type, str]] = {
    "int": (int, f"a whole number from 0 to {LARGEST:,}"),
    "bool": (bool, "true or false"),
    "str": (str, "a text"),
    "Scores": (str, f"one of {', '.join(get_args(Scores))}"),
    "StageRecompute": (str, f"one of {', '.join(get_args(StageRecompute))}"),
}
_CHOICES: Mapping[object, tuple[str, ...]] = {
    "Scores": get_args(Scores),
    "StageRecompute": get_args(StageRecompute),
}


def _require_kinds(part: type, row: Mapping[str, Any], before: str = "") -> None:
    """Refuse a value of the wrong kind; `before` stands before its key in the sentence.

    Raises:
        InvalidWorkload: the first one.
    """
    for field in fields(part):
        if field.name not in row or field.type not in _KINDS:
            continue
        (kind, wanted), value = _KINDS[field.type], row[field.name]
        is_kind = type(value) is kind and value in _CHOICES.get(field.type, (value,))
        if not is_kind or (kind is int and not 0 <= value <= LARGEST):
            raise InvalidWorkload(
                f"the model's {before}{field.name} is {reprlib.repr(value)}; it must be {wanted}",
                field=field.name,
                code="Malformed",
            )
