"""A model from a Hugging Face `config.json`.

Invariant: a model that is trained is the one that its configuration asks for; what the worker does
not compute is named in `Arithmetic.lacking`.  Prices need less, so such a model can be planned for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import InvalidWorkload
from planner.model.configuration import Configuration
from planner.model.families import READERS as DENSE_READERS
from planner.model.mixtures import READERS as MOE_READERS
from planner.model.shape import ModelShape
from planner.wording import kind_of, reason_of

CONFIG = "config.json"
READERS = {**DENSE_READERS, **MOE_READERS}
OWN = "heddle"  # the model_type of a model of the user's own, as `heddle model` prints it


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a folder.

    Raises:
        InvalidWorkload: there is none, or it is no JSON object.
    """
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidWorkload(
            f"{path} cannot be read: {reason_of(error)}; give the folder of a Hugging Face model",
            code="Unreadable",
        ) from None
    if not isinstance(config, dict):
        raise InvalidWorkload(
            f"{path} must hold one JSON object, found {kind_of(config)}", code="Malformed"
        )
    return config


def model_from_config(path: Path) -> ModelShape:
    """The model of a Hugging Face `config.json`; its name is `_name_or_path`, or the folder's name.

    Raises:
        InvalidWorkload: the file cannot be read, its architecture is unknown, or a key is missing.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidWorkload(
            f"model configuration {path} cannot be read: {reason_of(error)}; give the config.json "
            f"of a Hugging Face model",
            code="Unreadable",
        ) from None
    if not isinstance(config, dict):
        raise InvalidWorkload(
            f"model configuration {path} must hold one JSON object, found {kind_of(config)}",
            code="Malformed",
        )
    name = str(config.get("_name_or_path") or path.resolve().parent.name)
    return model_of_config(config, name.rstrip("/").split("/")[-1], str(path))


def model_of_config(config: Mapping[str, Any], name: str, where: str = "") -> ModelShape:
    """The model of a configuration that was read.

    Args:
        config: the content of a `config.json`.
        name: of the model.
        where: what sentences call the configuration; the model's name if not given.

    Raises:
        InvalidWorkload: its architecture is unknown, or a key is missing or wrong.
    """
    kind = config.get("model_type")
    if kind == OWN:
        return ModelShape.from_json({k: v for k, v in config.items() if k != "model_type"})
    reader = READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise InvalidWorkload(
            f"model configuration {where or name} has model_type {kind!r}, which is unknown; known "
            f"are {', '.join(sorted(READERS))}",
            field="model_type",
            code="Unknown",
        )
    return reader(name, Configuration(config, where or name))
