"""Text to tokens and back; the end of a document is the tokenizer's own."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from tests.refusals import refused
from worker.data.making.tokenizing import NO_END, digest_of, tokenization, why_unfit
from worker.errors import InvalidDataset


@pytest.fixture
def save(tmp_path):
    def of(*words, begin=None, config=None):
        vocabulary = {word: number for number, word in enumerate(words)}
        made = Tokenizer(WordLevel(vocabulary, unk_token=words[0]))
        made.pre_tokenizer = Whitespace()
        if begin:
            made.post_processor = TemplateProcessing(
                single=f"{begin} $A", special_tokens=[(begin, vocabulary[begin])]
            )
        made.save(str(tmp_path / "tokenizer.json"))
        if config is not None:
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return tmp_path / "tokenizer.json"

    return of


def test_bytes_are_tokens_and_no_text_has_the_end():
    how = tokenization(None)
    assert (how.vocab, how.end, how.digest) == (256, 0, None)
    assert how.encode("ä".encode(), True).tolist() == [195, 164]
    assert how.decode([195, 164, 33]) == "ä!"
    assert tokenization(None, "none").end is None


@pytest.mark.parametrize(
    ("words", "config", "end"),
    [
        (("?", "a", "</s>"), None, 2),
        (("?", "<|endoftext|>", "</s>"), None, 1),
        (("?", "<|endoftext|>", "</s>"), {"eos_token": "</s>"}, 2),
        (("?", "<end>", "</s>"), {"eos_token": {"content": "<end>"}}, 1),
        (("?", "a", "</s>"), {"eos_token": None}, 2),
    ],
)
def test_the_end_is_what_the_configuration_says_or_the_well_known_one(save, words, config, end):
    assert tokenization(save(*words, config=config)).end == end


def test_a_document_is_whole_however_the_file_cut_and_padded_texts(save):
    path = save("?", "a", "</s>")
    saved = Tokenizer.from_file(str(path))
    saved.enable_truncation(4)
    saved.enable_padding(length=6, pad_id=2, pad_token="</s>")
    saved.save(str(path))
    how = tokenization(path)
    assert how.encode(b"a a a a a", True).tolist() == [1] * 5
    assert how.encode(b"a", True).tolist() == [1]


def test_the_vocabulary_reaches_to_the_largest_token(tmp_path):
    path = tmp_path / "tokenizer.json"
    Tokenizer(WordLevel({"?": 0, "</s>": 1, "big": 70_000}, unk_token="?")).save(str(path))
    assert tokenization(path).vocab == 70_001


def test_the_end_can_be_named_or_left_out(save):
    path = save("?", "stop")
    assert tokenization(path, "stop").end == 1
    assert tokenization(path, "none").end is None


def test_a_tokenizer_without_an_end_is_refused_until_one_is_named(save):
    path = save("?", "a")
    with refused(InvalidDataset, "Missing", "eod"):
        tokenization(path)
    with refused(InvalidDataset, "Missing", "eod"):
        tokenization(path, "stop")
    with refused(InvalidDataset, "Missing", "eod"):
        tokenization(None, "stop")


def test_what_begins_a_text_comes_at_the_beginning_of_a_document_alone(save):
    how = tokenization(save("?", "<s>", "a", "</s>", begin="<s>"))
    assert how.encode(b"a a", True).tolist() == [1, 2, 2]
    assert how.encode(b"a a", False).tolist() == [2, 2]
    assert how.decode(np.array([2, 3])) == "a </s>"
    assert how.vocab == 4


def file_with(tmp_path, vocabulary, added=()):
    content = {"model": {"vocab": vocabulary}, "added_tokens": added}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    return tmp_path / "tokenizer.json"


END = [{"content": "<eod>", "id": 7}, {"content": "<pad>", "id": 8}]


@pytest.mark.parametrize(
    ("vocabulary", "added", "vocab", "words"),
    [
        ({"a": 0, "b": 1}, (), 2, None),
        ({"a": 0, "b": 1}, (), 1, "has 1 token beyond the model's vocabulary of 1, .* is 'b' with"),
        ([["a", 0.5], ["b", 0.1], ["c", 0.1]], (), 1, "has 2 tokens beyond .* is 'b' with id 1;"),
        ({"a": 0}, END, 9, None),
        ({"a": 0}, END, 8, "has 1 token beyond .* the first is '<pad>' with id 8; use the model's"),
        ({"a": 0}, END, 7, "has 2 tokens beyond .* the first is '<eod>' with id 7"),
    ],
)  # fmt: skip
def test_a_tokenizer_fits_a_model_that_has_all_of_its_tokens(
    tmp_path, vocabulary, added, vocab, words
):
    path = file_with(tmp_path, vocabulary, added)
    found = why_unfit(path, vocab)
    assert found is None if words is None else re.search(words, found)
    assert why_unfit(tmp_path, vocab) == (found and found.replace(str(path), str(tmp_path)))


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"model": {"vocab": 7}}'])
def test_a_file_that_is_no_tokenizer_is_one_sentence(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    assert "is not a tokenizer.json of the tokenizers library: " in why_unfit(tmp_path, 9)


def test_a_tokenizer_that_is_not_there_is_one_sentence(tmp_path):
    assert "cannot be read: no such file or directory; name a" in why_unfit(tmp_path / "x", 9)


def test_the_files_of_the_library_are_read_as_it_reads_them(save):
    path = save("<unk>", "one", "two")
    assert why_unfit(path, tokenization(path, NO_END).vocab) is None
    assert why_unfit(path, tokenization(path, NO_END).vocab - 1) is not None


def test_a_folder_stands_for_the_tokenizer_in_it(save):
    path = save("<unk>", "</s>")
    assert tokenization(path.parent).digest == tokenization(path).digest == digest_of(path.parent)


def test_a_configuration_that_cannot_be_read_says_nothing(save):
    path = save("?", "a", "</s>", config={})
    (path.parent / "tokenizer_config.json").write_text("[" * 100_000)
    assert tokenization(path).end == 2
