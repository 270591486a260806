"""From text to tokens and back: by a Hugging Face tokenizer.json, or byte by byte.

Whether a tokenizer fits a model and a dataset is known from its file alone, without its library.

Without a tokenizer the bytes of the text are the tokens (vocabulary 256), which needs nothing and
fits a model of any language; the byte 0, which no text has, ends a document.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from planner.errors import FIELD
from planner.wording import counted, reason_of
from worker.errors import InvalidDataset

TOKENIZER = "tokenizer.json"  # in a folder
BYTE_VOCAB = 256
NO_END = "none"  # as the end of documents: they end without a token
# What published tokenizers call the end of a document, where no tokenizer_config.json says it.
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")


class Tokenization(NamedTuple):
    """How texts become tokens.

    Attributes:
        encode: UTF-8 to tokens; whether the text begins its document.
        decode: tokens to text.
        vocab: one more than the largest token, added ones among them.
        end: the token behind each document (EOD), None: there is none.
        digest: of the tokenizer's file; None: bytes are the tokens.
    """

    encode: Callable[[bytes, bool], npt.NDArray[np.generic]]
    decode: Callable[[Sequence[int]], str]
    vocab: int
    end: int | None
    digest: str | None


def tokenization(path: Path | None, end: str | None = None) -> Tokenization:
    """That of a tokenizer.json, or of bytes.

    Args:
        path: of the tokenizer.json, or of a folder with it; None: bytes are the tokens.
        end: the token that ends documents; `none`: nothing does; None: the one that the
            tokenizer_config.json beside it names, or else the well-known one that it has.

    Raises:
        InvalidDataset: it cannot be read, or has no such token.
    """
    if path is None:
        return _of_bytes(end)
    path = file_of(path)
    tokenizer, content = _load(path)

    def encode(text: bytes, begins: bool) -> npt.NDArray[np.generic]:
        found = tokenizer.encode(text.decode(errors="ignore"), add_special_tokens=begins)
        return np.array(found.ids, dtype=np.int64)

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode([int(token) for token in tokens], skip_special_tokens=False))

    token = None if end == NO_END else _end_of(path, tokenizer, end)
    digest = hashlib.sha256(content).hexdigest()
    vocab = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    return Tokenization(encode, decode, vocab, token, digest)


def file_of(tokenizer: Path) -> Path:
    """The file of a tokenizer, or of the tokenizer in a folder."""
    return tokenizer / TOKENIZER if tokenizer.is_dir() else tokenizer


def why_unfit(tokenizer: Path, vocab: int) -> str | None:
    """One sentence on what a model cannot take of a tokenizer; None if it fits.

    Also tokens that only its settings name, such as those that end or pad a document, are among
    those of the file, each with its id.

    Args:
        tokenizer: its file, or a folder with it.
        vocab: tokens of the model.
    """
    try:
        beyond = sorted((token, name) for name, token in _tokens(tokenizer) if token >= vocab)
    except InvalidDataset as error:
        return str(error)
    if not beyond:
        return None
    token, name = beyond[0]
    return (
        f"tokenizer {str(tokenizer)!r} has {counted(len({one for one, _ in beyond}), 'token')} "
        f"beyond the model's vocabulary of {vocab:,}, the first is {name!r} with id {token:,}; use "
        "the model's own tokenizer"
    )


def digest_of(tokenizer: Path) -> str:
    """SHA-256 of the file of a tokenizer.

    Raises:
        InvalidDataset: it cannot be read.
    """
    return hashlib.sha256(_content(tokenizer)).hexdigest()


def _of_bytes(end: str | None) -> Tokenization:
    if end not in (None, NO_END):
        raise InvalidDataset(
            f"bytes have no token {end!r}; give a tokenizer, or {NO_END} as {FIELD}",
            field="eod",
            code="Missing",
        )
    return Tokenization(
        lambda text, _: np.frombuffer(text, dtype=np.uint8),
        lambda tokens: bytes(token % BYTE_VOCAB for token in tokens).decode(errors="replace"),
        BYTE_VOCAB,
        0 if end is None else None,
        None,
    )


def _load(path: Path) -> tuple[Any, bytes]:
    from tokenizers import Tokenizer  # bytes need none of it

    try:
        content = path.read_bytes()
        found = Tokenizer.from_file(str(path))
        # a file keeps how its last caller cut and padded texts; documents are whole
        found.no_truncation()
        found.no_padding()
        return found, content
    except OSError as error:
        raise InvalidDataset(
            f"tokenizer {str(path)!r} cannot be read: {reason_of(error)}; name its tokenizer.json, "
            "or a folder with it",
            code="Unreadable",
        ) from None
    except Exception as error:  # the library raises plain Exception for all of its errors
        raise InvalidDataset(
            f"tokenizer {str(path)!r} cannot be read: {error}; "
            "give a tokenizer.json of the tokenizers library",
            code="Unreadable",
        ) from None


def _end_of(path: Path, tokenizer: Any, end: str | None) -> int:
    named = end or _configured_end(path)
    for name in (named,) if named else _ENDS:
        token = tokenizer.token_to_id(name)
        if token is not None:
            return int(token)
    what = f"has no token {named!r}" if named else "does not say which token ends a document"
    raise InvalidDataset(
        f"tokenizer {str(path)!r} {what}; prepare the data with one of its tokens as {FIELD}, or "
        f"with {NO_END} to end documents without one",
        field="eod",
        code="Missing",
    )


def _configured_end(path: Path) -> str | None:
    """Content of the tokenizer_config.json beside a tokenizer.json."""
    try:
        said = json.loads((path.parent / "tokenizer_config.json").read_bytes())["eos_token"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if isinstance(said, dict):
        said = said.get("content")
    return said if isinstance(said, str) else None


def _content(tokenizer: Path) -> bytes:
    try:
        return file_of(tokenizer).read_bytes()
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise InvalidDataset(
            f"tokenizer {str(tokenizer)!r} cannot be read: {reason}; name a tokenizer.json of the "
            "tokenizers library, or a folder with one",
            code="Unreadable",
        ) from None


def _tokens(tokenizer: Path) -> Iterator[tuple[str, int]]:
    """(token, id) of each token, those that were added last."""
    try:
        found = json.loads(_content(tokenizer))
        vocabulary = found["model"]["vocab"]
        if isinstance(vocabulary, dict):
            yield from ((str(name), int(token)) for name, token in vocabulary.items())
        else:  # of a unigram model: pairs of token and score, by id
            yield from ((str(name), token) for token, (name, _) in enumerate(vocabulary))
        added = found.get("added_tokens") or ()
        yield from ((str(one["content"]), int(one["id"])) for one in added)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidDataset(
            f"tokenizer {str(tokenizer)!r} is not a tokenizer.json of the tokenizers library: "
            f"{type(error).__name__} at {error}; name another file",
            code="Unreadable",
        ) from None
