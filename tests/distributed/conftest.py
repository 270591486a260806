"""What the distributed tests share: small data sets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.worker.data.lines import prepared_lines
from worker.data.making.prepare import prepare


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prefix of a data set made of a package of the standard library."""
    prefix = tmp_path_factory.mktemp("corpus") / "text"
    prepare([Path(json.__file__).parent], prefix, None, None)
    return prefix


@pytest.fixture(scope="session")
def lines(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Prefix of a data set of short lines."""
    return prepared_lines(tmp_path_factory.mktemp("lines"))
