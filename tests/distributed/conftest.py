"""What the distributed tests share: a small corpus of real text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from worker.data.making.prepare import prepare


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prefix of a data set made of a package of the standard library."""
    prefix = tmp_path_factory.mktemp("corpus") / "text"
    prepare([Path(json.__file__).parent], prefix, None, None)
    return prefix
