"""What is in a dataset, with the beginnings of its documents."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tests.refusals import refused
from tests.unit.worker.data.texts import write_pair
from worker.data.making.prepare import prepare
from worker.data.making.readers import Keys
from worker.data.show import as_text, contents
from worker.errors import InvalidDataset


def test_a_dataset_of_bytes_is_shown_as_text(tmp_path):
    (tmp_path / "a.txt").write_text("first " * 20)
    (tmp_path / "b.txt").write_text("second")
    prepare([tmp_path], tmp_path / "corpus")
    text = as_text(contents(str(tmp_path / "corpus")))
    assert "2 documents, 128 tokens (uint16), the longest document has 121" in text
    assert "vocabulary 256; token at the end of a document: 0" in text
    assert f"document 1, 121 tokens:\n{'first ' * 10} ..." in text
    assert text.endswith("document 2, 7 tokens:\nsecond")


def test_what_a_terminal_obeys_is_shown_and_not_sent(tmp_path):
    (tmp_path / "a.txt").write_text("red \x1b[31m\rback\ttab\nline ä")
    prepare([tmp_path], tmp_path / "corpus")
    text = as_text(contents(str(tmp_path / "corpus")))
    assert text.endswith("red \\x1b[31m\\rback\ttab\nline ä")


def test_of_pairs_the_share_of_labels_is_shown(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"q": "abcd", "r": "xyz"}\n')
    prepare([tmp_path], tmp_path / "corpus", keys=Keys(prompt="q", completion="r"))
    found = contents(str(tmp_path / "corpus"))
    assert found.learnt == 0.5
    assert "50.0% of the tokens are labels, the rest are prompts" in as_text(found)


def test_data_of_another_program_is_shown_by_its_tokens(tmp_path):
    prefix = write_pair(tmp_path / "corpus", [[], [5, 6], [7]])
    found = contents(prefix, documents=2)
    assert [beginning.first for beginning in found.beginnings] == [(), (5, 6)]
    assert (found.vocab, found.beginnings[1].text) == (None, None)
    assert "document 2, 2 tokens:\n5 6" in as_text(found)


def test_documents_are_decoded_by_the_tokenizer_that_made_them(tmp_path):
    for name, words in (("own", ["a", "b", "</s>"]), ("other", ["b", "a", "</s>"])):
        made = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, unk_token="a"))
        made.save(str(tmp_path / f"{name}.json"))
    (tmp_path / "text.txt").write_text("b")
    prepare([tmp_path / "text.txt"], tmp_path / "corpus", tokenizer=tmp_path / "own.json")
    found = contents(str(tmp_path / "corpus"), tmp_path / "own.json")
    assert found.beginnings[0].text == "b </s>"
    with refused(InvalidDataset, "Mismatch"):
        contents(str(tmp_path / "corpus"), tmp_path / "other.json")
