"""From text to tokens and back: by a Hugging Face tokenizer.json, or byte by byte.

Without a tokenizer the bytes of the text are the tokens (vocabulary 256), which needs nothing and
fits a model of any language; the byte 0, which no text has, ends a document.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from worker.errors import InvalidDataset

BYTE_VOCAB = 256
NO_END = "none"  # as --eod: documents end without a token
# What published tokenizers call the end of a document, where no tokenizer_config.json says it.
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")


class Tokenization(NamedTuple):
    """How texts become tokens.

    Attributes:
        encode: UTF-8 to tokens; whether the text begins its document.
        decode: tokens to text.
        vocab: size of the vocabulary, added tokens among it.
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
        path: of the tokenizer.json; None: bytes are the tokens.
        end: the token that ends documents; `none`: nothing does; None: the one that the
            tokenizer_config.json beside it names, or else the well-known one that it has.

    Raises:
        InvalidDataset: it cannot be read, or has no such token.
    """
    if path is None:
        return _of_bytes(end)
    tokenizer, content = _load(path)

    def encode(text: bytes, begins: bool) -> npt.NDArray[np.generic]:
        found = tokenizer.encode(text.decode(errors="ignore"), add_special_tokens=begins)
        return np.array(found.ids, dtype=np.int64)

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode([int(token) for token in tokens], skip_special_tokens=False))

    token = None if end == NO_END else _end_of(path, tokenizer, end)
    digest = hashlib.sha256(content).hexdigest()
    return Tokenization(encode, decode, tokenizer.get_vocab_size(), token, digest)


def _of_bytes(end: str | None) -> Tokenization:
    if end not in (None, NO_END):
        raise InvalidDataset(
            f"bytes have no token {end!r}; give a --tokenizer, or --eod {NO_END} or none at all"
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
        return Tokenizer.from_file(str(path)), content
    except Exception as error:  # the library raises plain Exception for all of its errors
        raise InvalidDataset(
            f"tokenizer {str(path)!r} cannot be read: {error}; "
            "give a tokenizer.json of the tokenizers library"
        ) from None


def _end_of(path: Path, tokenizer: Any, end: str | None) -> int:
    named = end or _configured_end(path)
    for name in (named,) if named else _ENDS:
        token = tokenizer.token_to_id(name)
        if token is not None:
            return int(token)
    what = f"has no token {named!r}" if named else "does not say which token ends a document"
    raise InvalidDataset(
        f"tokenizer {str(path)!r} {what}; name one of its tokens with --eod, or end documents "
        f"without one by --eod {NO_END}"
    )


def _configured_end(path: Path) -> str | None:
    """What the tokenizer_config.json beside a tokenizer.json says."""
    try:
        said = json.loads((path.parent / "tokenizer_config.json").read_bytes())["eos_token"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if isinstance(said, dict):
        said = said.get("content")
    return said if isinstance(said, str) else None
