"""A pair that was made before is taken again, for the same input and settings alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from worker.data.making.kept import MOST
from worker.data.making.prepare import prepare
from worker.data.making.readers import Keys


class Maker:
    """Makes pairs of one folder of text with one cache."""

    def __init__(self, folder: Path) -> None:
        self.texts, self.cache = folder / "texts", folder / "cache"
        self._out, self._count = folder / "out", 0
        self.texts.mkdir()
        self.write("one")

    def write(self, text: str) -> None:
        (self.texts / "a.txt").write_text(text)

    def make(self, **how):
        """The files of a pair, what was said of it, and how many units were read."""
        self._count += 1
        prefix = self._out / f"pair-{self._count}"
        read = []
        self.done = done = prepare(
            [self.texts], prefix, progress=lambda *of: read.append(of), cache=self.cache, **how
        )
        files = {p.suffix: p.read_bytes() for p in self._out.glob(f"{prefix.name}.*")}
        assert set(files) >= {".bin", ".idx", ".json"}
        return files, (done.documents, done.text_bytes, done.tokens, done.vocab), len(read)

    @property
    def kept(self):
        return sorted(self.cache.iterdir(), key=lambda path: path.stat().st_mtime)


@pytest.fixture
def maker(tmp_path):
    return Maker(tmp_path)


def test_the_same_input_is_read_once(maker):
    files, said, read = maker.make()
    assert (read, len(maker.kept)) == (1, 1)
    assert maker.make() == (files, said, 0)


def test_another_text_or_another_setting_is_another_pair(maker):
    maker.make()
    maker.write("other")
    assert maker.make()[2] == 1
    assert maker.make(keys=Keys("body"))[2] == 1
    assert len(maker.kept) == 3


@pytest.mark.parametrize("text", [b"", b"{}", b"not JSON", None])
def test_what_was_cut_off_is_made_again(maker, text):
    made = maker.make()
    (kept,) = maker.kept
    file = kept / ("summary.json" if text is not None else "pair.bin")
    file.unlink()
    file.write_bytes(text or b"")
    assert maker.make() == made
    assert maker.make() == (*made[:2], 0)


def test_the_pairs_unused_for_longest_go(maker):
    for number in range(MOST):
        maker.write(f"text {number}")
        maker.make()
        os.utime(maker.kept[-1], (number, number))
    first = maker.kept[0]
    maker.write("one more")
    maker.make()
    assert len(maker.kept) == MOST
    assert first not in maker.kept


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(maker):
    maker.cache.write_text("a file")
    files, said, _ = maker.make()
    assert maker.make() == (files, said, 1)
