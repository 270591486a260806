"""What `transformers` wrote of a tiny model of each family."""

from __future__ import annotations

import json

from planner.model.shape import ModelShape
from tests.hugging_face import CONFIGS, GOLDEN, shape_of

KINDS = sorted(CONFIGS)


def golden(kind):
    return json.loads((GOLDEN / f"{kind}.json").read_text())


def model_of(kind, folder) -> ModelShape:
    """The model of the golden configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(golden(kind)["config"]))
    return shape_of(folder)
