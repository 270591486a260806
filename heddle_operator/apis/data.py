"""`spec.data`: a built-in text, texts, or Megatron pairs, and which commands make pairs of texts.

Whether a path is text follows from its name alone: the operator sees no file of a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from worker.training_settings import (
    LINES_SUFFIXES,
    PARQUET_SUFFIXES,
    TEXT_SUFFIXES,
    Corpus,
    DataSpec,
    Positive,
    Section,
    Split,
)

_TEXTS = (*TEXT_SUFFIXES, *LINES_SUFFIXES, *PARQUET_SUFFIXES, "/")
TEXT_BYTES = 2_000_000  # of the built-in text in pods and in the demo
BUILTIN = "builtin:"  # stands before the name of a built-in text in place of a path
PathText = Annotated[str, StringConstraints(max_length=1000)]


class BlendPart(Section):
    """One corpus of a blend."""

    path: PathText = Field(description="Prefix of a pair, or text.")
    weight: Positive = Field(
        description="Share of the samples, relative to the other weights; exact."
    )


class Data(Section):
    """Training data; give exactly one of builtin, path and blend."""

    builtin: Literal["text"] | None = Field(
        default=None,
        description="Text that every image holds: the sources of Python's standard library.",
    )
    path: PathText | None = Field(
        default=None,
        description=(
            "Prefix of a Megatron .bin/.idx pair on a volume of the pod template; `heddle "
            "data prepare` makes one. Text works too: .txt, .md, .rst, .py, .jsonl, "
            ".ndjson, .parquet, or a folder, which ends in /. Each pod turns text into a "
            "pair with the tokenizer."
        ),
    )
    blend: Annotated[tuple[BlendPart, ...], Field(min_length=1, max_length=1000)] | None = Field(
        default=None, description="Several corpora, each with its share of the samples."
    )
    tokenizer: Annotated[str, StringConstraints(min_length=1, max_length=1000)] | None = Field(
        default=None,
        description=(
            "tokenizer.json of the tokenizers library, or a folder with one, on a volume "
            "of the pod template. It turns text into tokens; pairs must have been made "
            "with it."
        ),
    )
    split: Split = Field(
        default=(1.0, 0.0, 0.0),
        description=(
            "Shares of each pair's documents for training, held-out evaluation and a "
            "final test. Training never reads the test part."
        ),
    )
    document_mask: bool = Field(
        default=False,
        description=(
            "Compute each document of a sample as if it were alone. Attention stays "
            "within the document, positions restart, and the first token is no label."
        ),
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Data:
        if sum(given is not None for given in (self.builtin, self.path, self.blend)) != 1:
            raise ValueError("give exactly one of `builtin`, `path` and `blend`")
        texts = [part.path for part in self._parts if _is_text(part.path)]
        if texts and self.tokenizer is None:
            raise ValueError(
                f"{texts[0]!r} is text, which needs a `tokenizer` to become tokens; name one, or "
                "make a .bin/.idx pair of it by `heddle data prepare`, and leave out the suffix"
            )
        return self

    @property
    def as_read(self) -> DataSpec:
        """Data that ranks read, if none must be made before; see `prepared`."""
        blend = tuple(Corpus(path=part.path, weight=part.weight) for part in self._parts)
        return DataSpec(
            blend=blend,
            split=self.split,
            document_mask=self.document_mask,
            tokenizer=self.tokenizer,
        )

    @property
    def texts(self) -> tuple[str, ...]:
        """The paths that are text."""
        return tuple(part.path for part in self._parts if _is_text(part.path))

    @property
    def pairs(self) -> tuple[str, ...]:
        """The prefixes of pairs, which are read as they are."""
        return tuple(part.path for part in self._parts if not _is_made(part.path))

    def prepared(self, folder: str) -> Data:
        """The same data when `commands` have made pairs in a folder."""
        if not self.texts and self.builtin is None:
            return self
        parts = tuple(
            BlendPart(path=_made(folder, index) if _is_made(part.path) else part.path,
                      weight=part.weight)
            for index, part in enumerate(self._parts)
        )  # fmt: skip
        return self.model_copy(update={"builtin": None, "path": None, "blend": parts})

    def commands(self, folder: str, builtin: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """Arguments of the program that make the pairs of `prepared`, a command for each.

        Args:
            folder: for the pairs.
            builtin: options of `data prepare` that stand for the built-in text.
        """
        tokenizer = () if self.tokenizer is None else ("--tokenizer", self.tokenizer)
        return tuple(
            ("data", "prepare", *source, *tokenizer, "--output-path", _made(folder, index))
            for index, source in (
                (index, ("--input", part.path) if _is_text(part.path) else tuple(builtin))
                for index, part in enumerate(self._parts)
                if _is_made(part.path)
            )
        )

    @property
    def _parts(self) -> tuple[BlendPart, ...]:
        whole = BlendPart(path=self.path or f"{BUILTIN}{self.builtin}", weight=1.0)
        return self.blend or (whole,)


def _is_text(path: str) -> bool:
    return path.endswith(_TEXTS)


def _is_made(path: str) -> bool:
    return _is_text(path) or path.startswith(BUILTIN)


def _made(folder: str, index: int) -> str:
    """The prefix of the pair that is made of the corpus at a place of the blend."""
    return f"{folder}/text" if index == 0 else f"{folder}/text-{index + 1}"
