"""The page of checkpoints: a first part and sections, each written by a command of its own."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.pages import PAGES

PAGE = PAGES / "checkpoints.md"


def put_first(text: str, page: Path = PAGE) -> None:
    """Write the part before all sections, which stay."""
    _, *sections = _parts(page)
    page.write_text("\n".join([text, *sections]), encoding="utf-8")


def put_section(text: str, page: Path = PAGE) -> None:
    """Write a section in the place of the one with its title, or behind all."""
    first, *sections = _parts(page)
    title = text.partition("\n")[0]
    titles = [section.partition("\n")[0] for section in sections]
    if title in titles:
        sections[titles.index(title)] = text
    else:
        sections.append(text)
    page.write_text("\n".join([first, *sections]), encoding="utf-8")


def _parts(page: Path) -> list[str]:
    """The first part, then the sections; each ends with its last line."""
    parts = re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [part.rstrip("\n") + "\n" for part in parts]
