"""heddle_operator/apis/data.py: what is read as it is, and what pairs are made of first."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from heddle_operator.apis.data import Data

BUILTIN = ("--builtin", "text")
MIXED = Data.model_validate(
    {
        "blend": [
            {"path": "/d/pair", "weight": 1},
            {"path": "/d/wiki.jsonl", "weight": 2},
            {"path": "/d/books/", "weight": 3},
        ],
        "tokenizer": "/m/llama",
        "documentMask": True,
    }
)


def paths(data):
    return [corpus.path for corpus in data.as_read.blend]


def test_pairs_are_read_as_they_are():
    data = Data(path="/d/pair", tokenizer="/m/llama")
    assert data.commands("/made", BUILTIN) == ()
    assert data.prepared("/made") is data
    assert (data.pairs, data.texts) == (("/d/pair",), ())
    assert data.as_read.tokenizer == "/m/llama"


def test_texts_of_a_blend_become_pairs_and_keep_their_weights():
    made = MIXED.prepared("/made")
    assert paths(made) == ["/d/pair", "/made/text-2", "/made/text-3"]
    assert [corpus.weight for corpus in made.as_read.blend] == [1, 2, 3]
    assert (made.tokenizer, made.document_mask) == ("/m/llama", True)
    assert MIXED.commands("/made", BUILTIN) == tuple(
        ("data", "prepare", "--input", text, "--tokenizer", "/m/llama", "--output-path", prefix)
        for text, prefix in (("/d/wiki.jsonl", "/made/text-2"), ("/d/books/", "/made/text-3"))
    )


@pytest.mark.parametrize("tokenizer", [None, "/m/llama"])
def test_a_built_in_text_is_made_with_the_tokenizer_if_there_is_one(tokenizer):
    data = Data(builtin="text", tokenizer=tokenizer)
    (command,) = data.commands("/made", BUILTIN)
    assert command[:4] == ("data", "prepare", "--builtin", "text")
    assert ("--tokenizer" in command) == (tokenizer is not None)
    assert command[-2:] == ("--output-path", "/made/text")
    assert paths(data.prepared("/made")) == ["/made/text"]


@pytest.mark.parametrize("path", ["a.txt", "a.jsonl", "a.ndjson", "a.parquet", "texts/"])
def test_text_without_a_tokenizer_is_refused(path):
    with pytest.raises(ValidationError, match="is text, which needs a `tokenizer` to become"):
        Data(path=path)
    assert Data(path=path, tokenizer="t.json").texts == (path,)
