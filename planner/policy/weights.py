"""Read and write a trained policy: `weights.safetensors` and `card.json` in one folder.

Invariant: weights that are not those of the card, whole and of the right shapes, are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from planner.errors import FIELD, InvalidPolicy, NoPolicy
from planner.policy.card import AGAIN, WORD, PolicyCard
from planner.policy.network import Network, shapes
from planner.policy.schema import Array, FeatureSchema
from planner.profiles.profile import PROFILES
from planner.wording import reason_of

WEIGHTS, CARD = "weights.safetensors", "card.json"
FOLDER = "policy"
# A model whose layers are those of another one is planned by that one's policy, as in the paper.
POLICY_OF = {"qwen3-64b": "qwen3-32b"}
KEPT = 8  # policies in memory


@dataclass(frozen=True, slots=True)
class Policy:
    """A trained policy: what it is for, and its network."""

    card: PolicyCard
    network: Network

    @property
    def schema(self) -> FeatureSchema:
        """The features that its network reads."""
        return self.card.schema


def policy_folder(model: str) -> Path:
    """Where the policy of a model is that comes with Heddle, if there is one."""
    return PROFILES / POLICY_OF.get(model, model) / FOLDER


def find_policy(model: str, folder: Path | None = None) -> Policy:
    """The policy of a model; the one that comes with Heddle if no folder is given.

    Raises:
        NoPolicy: there is none.
        InvalidPolicy: its files are damaged, or of another version.
    """
    where = policy_folder(model) if folder is None else folder
    if folder is not None:
        require_files(folder)
    try:
        stamps = [(where / name).stat().st_mtime_ns for name in (WEIGHTS, CARD)]
    except OSError:
        raise NoPolicy(
            f"there is no policy for {model}",
            remedy=f"train one with `heddle train-policy` and name its folder as {FIELD}, or use "
            "the method search or columns",
            field="policy",
            code="Missing",
        ) from None
    return _load(where, *stamps)


def require_files(folder: Path) -> None:
    """Refuse a folder that was named for its policy and holds none.

    Raises:
        NoPolicy: names it.
    """
    if not all((folder / name).is_file() for name in (WEIGHTS, CARD)):
        raise NoPolicy(
            f"there is no policy in {folder} (it needs {WEIGHTS} and {CARD})",
            remedy="name a folder that `heddle train-policy` wrote, or leave the policy out",
            code="Missing",
        )


@lru_cache(maxsize=KEPT)
def _load(folder: Path, weights_stamp: int, card_stamp: int) -> Policy:
    del weights_stamp, card_stamp  # part of the key: files that changed are read again
    return load_policy(folder)


def load_policy(folder: Path) -> Policy:
    """Read a policy from its folder.

    Raises:
        InvalidPolicy: a file cannot be read, is cut short, or does not belong to the other.
    """
    try:
        text = (folder / CARD).read_text(encoding="utf-8")
        content = (folder / WEIGHTS).read_bytes()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidPolicy(
            f"policy in {folder} cannot be read: {reason_of(error)}", code="Unreadable"
        ) from None
    card = PolicyCard.from_text(text, str(folder / CARD))
    wrong, arrays = "", {}
    if card.features != card.schema.digest:
        made = f"this version of Heddle makes {card.schema.digest}"
        wrong = f"it reads features {card.features}, {made}"
    elif digest_of(content) != card.weights:
        stated = f"{digest_of(content)} instead of {card.weights}, {len(content)} bytes"
        wrong = f"its weights are cut short or were changed ({stated})"
    else:
        try:
            arrays = load(content)
        except SafetensorError as error:
            wrong = f"its weights cannot be read: {error}"
    wanted, found = shapes(card.schema), {name: array.shape for name, array in arrays.items()}
    if not wrong and found != wanted:
        odd = min(name for name in wanted | found if wanted.get(name) != found.get(name))
        wrong = f"it has {odd} of shape {found.get(odd)}, its card wants {wanted.get(odd)}"
    if wrong:
        raise InvalidPolicy(
            f"policy of {card.model} in {folder}: {wrong}", remedy=AGAIN, code="Damaged"
        )
    return Policy(card, Network(arrays, card.uses_film))


def weights_content(weights: Mapping[str, Array]) -> bytes:
    """The file of some weights."""
    return save({name: np.ascontiguousarray(array) for name, array in weights.items()})


def digest_of(content: bytes) -> str:
    """16 hex digits that name a file of weights."""
    return hashlib.blake2b(content, digest_size=WORD // 2).hexdigest()


def write_policy(folder: Path, card: PolicyCard, content: bytes) -> None:
    """Write a policy; the card, which names the weights, comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / WEIGHTS, content)
    text = json.dumps(card.to_json(), indent=1, sort_keys=True)
    write_atomically(folder / CARD, f"{text}\n".encode())


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a kill at any moment leaves the old one or the new one."""
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
