"""A Hugging Face configuration whose values are checked when they are asked for.

Invariant: every key is read, or known not to change a number, or named: a model that is trained is
the one that its configuration asks for.
Source: `PreTrainedConfig` of `transformers`, versions 4 and 5.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from planner.errors import InvalidWorkload
from planner.model.arithmetic import Activation
from planner.model.shape import LARGEST

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
# Keys of files, tokenizers, generation and heads for other tasks: no logit depends on them.
HARMLESS = frozenset(
    [
        "model_type",
        "architectures",
        "_name_or_path",
        "transformers_version",
        "torch_dtype",
        "dtype",
        "use_cache",
        "bos_token_id",
        "eos_token_id",
        "sep_token_id",
        "unk_token_id",
        "decoder_start_token_id",
        "return_dict",
        "output_hidden_states",
        "output_attentions",
        "torchscript",
        "gradient_checkpointing",
        "_attn_implementation",
        "_attn_implementation_autoset",
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "finetuning_task",
        "task_specific_params",
        "tokenizer_class",
        "prefix",
        "classifier_dropout",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "max_length",
        "min_length",
        "do_sample",
        "early_stopping",
        "num_beams",
        "num_beam_groups",
        "diversity_penalty",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "repetition_penalty",
        "length_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "bad_words_ids",
        "num_return_sequences",
        "output_scores",
        "return_dict_in_generate",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "remove_invalid_values",
        "exponential_decay_length_penalty",
        "suppress_tokens",
        "begin_suppress_tokens",
        "n_ctx",
    ]
)
# Keys that change nothing with this value.
NEUTRAL: Mapping[str, Any] = {
    "pretraining_tp": 1,
    "partial_rotary_factor": 1.0,
    "attention_multiplier": None,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
}


class Configuration:
    """The content of a `config.json`.

    Attributes:
        lacking: what it asks for and the worker does not compute, as far as it was read.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        """`where` is what sentences call it."""
        self._values, self._where = values, where
        self._read: set[str] = set()
        self.lacking: list[str] = []

    def get(self, key: str, default: Any = None) -> Any:
        """Any value; `default` where the key is absent or null."""
        self._read.add(key)
        value = self._values.get(key)
        return default if value is None else value

    def list(self, key: str) -> list[Any]:
        """A list; empty where the key is absent or null."""
        value = self.get(key, [])
        if not isinstance(value, list):
            raise self._wrong(key, value, "a list")
        return value

    def is_absent(self, key: str) -> bool:
        """Whether the key is not there; null is."""
        return key not in self._values

    def number(self, *keys: str, default: int | None = None) -> int:
        """A whole number: the first of these keys that is there."""
        for key in keys:
            value = self.get(key)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
                raise self._wrong(key, value, f"a whole number from 0 to {LARGEST:,}")
            return value
        if default is None:
            raise InvalidWorkload(
                f"model configuration {self._where} lacks {' or '.join(map(repr, keys))}",
                field=keys[0],
                code="Missing",
            )
        return default

    def token(self, key: str, default: int | None) -> int | None:
        """A token, which may be below 0; None where it is null, `default` where it is absent."""
        value = default if self.is_absent(key) else self.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise self._wrong(key, value, "a token, which is a whole number, or null")
        return value

    def real(self, key: str, default: float, most: float = 1.0) -> float:
        """A number from 0 to `most`."""
        value = self.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
            raise self._wrong(key, value, f"a number from 0 to {most:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def require(self, key: str, wanted: Any) -> None:
        """Note that the key is lacking unless it is absent or has this value."""
        value = self.get(key, wanted)
        if value != wanted:
            self.lacking.append(f"the key {key!r} ({reprlib.repr(value)})")

    def activation(self, key: str, default: str) -> Activation:
        """The activation of the feed-forward layers."""
        name = self.get(key, default)
        if not isinstance(name, str) or name not in ACTIVATIONS:
            self.lacking.append(f"the activation {reprlib.repr(name)}")
            return "silu"
        return ACTIVATIONS[name]

    def all_lacking(self) -> tuple[str, ...]:
        """The notes, and every unread key that may change a number."""
        others = [
            f"the key {key!r} ({reprlib.repr(value)})"
            for key, value in self._values.items()
            if key not in self._read and key not in HARMLESS and value
            if key not in NEUTRAL or NEUTRAL[key] != value
        ]
        return (*dict.fromkeys(self.lacking), *others)

    def _wrong(self, key: str, value: Any, wanted: str) -> InvalidWorkload:
        return InvalidWorkload(
            f"model configuration {self._where} has {key} {reprlib.repr(value)}; it must be "
            f"{wanted}",
            field=key,
            code="Malformed",
        )
