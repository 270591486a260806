"""What the tests on a real Kubernetes share: the assets, and the curve of one plain process."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.cluster.assets import Assets, reasons_not_to_start
from tests.e2e.kubernetes.reference import Reference


@pytest.fixture(scope="session")
def assets() -> Assets:
    """The binaries; the test is skipped, saying why, where no cluster can start."""
    found = Assets.of(os.environ)
    reasons = reasons_not_to_start(found)
    if reasons:
        pytest.skip("; ".join(reasons))
    return found


@pytest.fixture(scope="session")
def reference(assets: Assets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    """The curve of one plain process."""
    with Reference(tmp_path_factory.mktemp("reference")) as found:
        yield found
