"""Whether the worker computes a model, exactly as its configuration asks.

Invariant: the one place that says no; whatever passes here is computed as it stands, by the
layers and by the reference alike, and nothing is approximated in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.model.shape import ModelShape


def why_untrainable(
    model: ModelShape, sequence_length: int, *, masks_documents: bool = False
) -> str | None:
    """One sentence that names what is missing to train a model; None if nothing is.

    Args:
        model: to be trained.
        sequence_length: tokens of a sample.
        masks_documents: whether each document of a sample is computed as if it were alone.
    """
    missing = model.arithmetic.lacking
    if missing:
        return (
            f"model {model.name!r} can be planned and priced but not trained, because the worker "
            f"does not compute {', '.join(missing)}; use a model without"
        )
    if masks_documents and model.own is not None:
        return (
            f"the layers of model {model.name!r} are your own, and documentMask masks those of "
            "Heddle alone; leave it out"
        )
    positions = model.max_positions - model.arithmetic.position_offset
    if not model.rotary and sequence_length > positions:
        return (
            f"model {model.name!r} has learned positions for {positions} tokens, the sequence "
            f"length is {sequence_length}; use one of at most {positions}"
        )
    return None


def beyond_positions(
    model: ModelShape, config: Mapping[str, Any] | None, sequence_length: int
) -> str | None:
    """One sentence if a sample is longer than a model with rotary positions was made for.

    It is trained all the same, as `transformers` does: rotary positions have no end.

    Args:
        model: to be trained.
        config: its config.json; None: it came from none.
        sequence_length: tokens of a sample.
    """
    positions = (config or {}).get("max_position_embeddings")
    if not model.rotary or not isinstance(positions, int) or not 0 < positions < sequence_length:
        return None
    return (
        f"the config.json of model {model.name!r} has max_position_embeddings {positions}, the "
        f"sequence length is {sequence_length}; it is trained beyond the positions it was made for"
    )
