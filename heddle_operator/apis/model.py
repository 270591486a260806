"""`spec.model`: a model by its name, the folder that it stands in, or code of the user's own.

A folder's config.json describes its model; for code the output of `heddle model` does.  A cluster's
operator sees neither, so a ConfigMap has a copy (`configRef`), and the ranks compare
it with their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from heddle_operator.apis.errors import InvalidJob
from heddle_operator.apis.references import ConfigMapName, why_no_name
from planner.errors import InvalidWorkload
from planner.model.catalogue import MODELS, find_model
from planner.model.config import CONFIG, model_of_config, read_config
from planner.model.shape import ModelShape
from planner.wording import did_you_mean
from worker.model.describe import describe
from worker.trainable import why_untrainable
from worker.training_settings import Section

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")  # as models are called on Hugging Face's hub
DOWNLOAD = (
    "if it is a name of a hub, download it first and give its folder as spec.model.path, as Heddle "
    "reads folders only"
)


class Model(Section):
    """Model to train; give exactly one of name, path and entryPoint."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=100)] | None = Field(
        default=None, description="Name of a model that Heddle knows, for example tiny-llama."
    )
    path: Annotated[str, StringConstraints(min_length=1, max_length=1000)] | None = Field(
        default=None,
        description=(
            "Folder of a Hugging Face model (safetensors, config.json, tokenizer) on a volume of "
            "the pod template."
        ),
    )
    config_ref: Annotated[ConfigMapName, Field(json_schema_extra={"minLength": 1})] | None = Field(
        default=None,
        description=(
            "Name of a ConfigMap in the job's namespace. Its key config.json holds the "
            "folder's config.json, or the output of `heddle model` for the entry point."
        ),
    )
    init: Literal["Weights", "Seed"] | None = Field(
        default=None,
        description=(
            "Origin of the first weights: the folder (Weights, the default) or the seed (Seed)."
        ),
    )
    entry_point: Annotated[str, StringConstraints(min_length=3, max_length=200)] | None = Field(
        default=None,
        description=(
            "module:function that returns the layers and the loss of your own model. It "
            "must be on the PYTHONPATH of the ranks."
        ),
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Model:
        if [self.name, self.path, self.entry_point].count(None) != 2:
            raise ValueError("give exactly one of `name`, `path` and `entryPoint`")
        if self.path is None and self.init:
            raise ValueError("`init` belongs to a `path`; leave it out")
        if self.name is not None and self.config_ref:
            raise ValueError("`configRef` belongs to a `path` or an `entryPoint`; leave it out")
        return self

    @property
    def shape(self) -> ModelShape:
        """The model.

        Raises:
            InvalidWorkload: its name is unknown.
        """
        name = self.name or ""
        if name not in MODELS and not name.endswith(".json"):
            hint = f"; {DOWNLOAD}" if HUB_NAME.fullmatch(name) else ""
            raise InvalidWorkload(
                f"spec.model.name is {name!r}, which is unknown{did_you_mean(name, MODELS)}; the "
                f"models that can be trained are {', '.join(_trainable())}{hint}",
                field="spec.model.name",
                code="Unknown",
            )
        return find_model(name)

    @property
    def origin(self) -> dict[str, Any]:
        """Source of the model, as a `TrainingSpec` states it."""
        return {}

    def resolved(self, config: Mapping[str, Any] | None) -> Model:
        """The same model with its config.json, if it is in a folder or comes from an entry point.

        Args:
            config: content of the ConfigMap; None: folder and code are on this machine.

        Raises:
            InvalidWeights: the folder has no config.json that can be read.
            InvalidWorkload: the entry point gives no model.
        """
        if self.entry_point is not None:
            found = describe(self.entry_point) if config is None else config
            return CodeModel(**dict(self), config=found)
        if self.path is None:
            return self
        if config is None and HUB_NAME.fullmatch(self.path) and not Path(self.path).exists():
            raise InvalidJob(
                f"spec.model.path is {self.path!r}, and there is no such folder; {DOWNLOAD}",
                field="spec.model.path",
                code="Missing",
            )
        found = read_config(Path(self.path)) if config is None else config
        return FolderModel(**dict(self), config=found)


class FolderModel(Model):
    """A model of a folder whose config.json is known; no job says this itself."""

    config: Mapping[str, Any]

    @property
    def shape(self) -> ModelShape:
        """See `Model`; its name is that in the configuration, or the folder's.

        Raises:
            InvalidWorkload: the configuration has no model that Heddle knows.
        """
        assert self.path is not None
        named = self.config.get("_name_or_path") or Path(self.path).name
        return model_of_config(self.config, Path(str(named)).name, f"{self.path}/{CONFIG}")

    @property
    def origin(self) -> dict[str, Any]:
        """See `Model`."""
        return {
            "shape": self.shape.to_json(),
            "config": dict(self.config),
            "folder": self.path,
            "weights": None if self.init == "Seed" else self.path,
        }


class CodeModel(Model):
    """A model by entry point whose tensors are known; no job says this itself."""

    config: Mapping[str, Any]

    @property
    def shape(self) -> ModelShape:
        """See `Model`.

        Raises:
            InvalidWorkload: the configuration is that of another entry point, or none.
        """
        found = model_of_config(self.config, str(self.entry_point))
        if found.own is None or found.own.entry_point != self.entry_point:
            raise InvalidWorkload(
                f"the configuration is not that of entry point {self.entry_point}; "
                f"`heddle model {self.entry_point}` prints it",
                code="Mismatch",
            )
        return found

    @property
    def origin(self) -> dict[str, Any]:
        """See `Model`."""
        return {"shape": self.shape.to_json()}


def _trainable() -> tuple[str, ...]:
    """Names of the catalogue's models that the worker computes."""
    return tuple(
        name for name, model in MODELS.items() if why_untrainable(model, sequence_length=1) is None
    )


def config_reference(body: Mapping[str, Any]) -> str | None:
    """The ConfigMap that a HeddleJob names beside a path; None if it names none.

    Raises:
        InvalidJob: what it names can be no ConfigMap.
    """
    spec = body.get("spec")
    model = spec.get("model") if isinstance(spec, Mapping) else None
    found = model.get("configRef") if isinstance(model, Mapping) else None
    if not isinstance(found, str) or not found:
        return None
    problem = why_no_name(found)
    if problem:
        raise InvalidJob(problem, code="Missing")
    return found


def config_in(name: str, data: Mapping[str, str]) -> Mapping[str, Any]:
    """The configuration in a ConfigMap's data: `config.json`, or its only key.

    Raises:
        InvalidJob: there is none; the sentence quotes nothing of what there is, for who wrote the
            job need not be allowed to read it.
    """
    if CONFIG not in data and len(data) != 1:
        raise InvalidJob(f"ConfigMap {name} must hold the key {CONFIG}", code="Missing")
    text = data[CONFIG] if CONFIG in data else next(iter(data.values()))
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidJob(f"{CONFIG} in ConfigMap {name} is not JSON", code="Unreadable") from None
    if not isinstance(config, dict):
        raise InvalidJob(f"{CONFIG} in ConfigMap {name} must be a JSON object", code="Malformed")
    return config
