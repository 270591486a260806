"""checkpoints/page.py: commands write their own part of one page."""

from __future__ import annotations

import pytest

from benchmarks.checkpoints.page import put_first, put_section

PAGE = "# Title\n\nfirst\n\n## One\n\nold\n\n## Two\n\nkept\n"


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_a_section_replaces_the_one_with_its_title(page):
    put_section("## One\n\nnew\n", page)
    assert page.read_text() == PAGE.replace("old", "new")


def test_a_new_section_comes_behind_all(page):
    put_section("## Three\n\nmore\n", page)
    assert page.read_text() == f"{PAGE}\n## Three\n\nmore\n"


def test_the_first_part_leaves_the_sections(page):
    put_first("# Title\n\nagain\n", page)
    assert page.read_text() == PAGE.replace("first", "again")
