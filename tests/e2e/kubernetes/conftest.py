"""What the tests on a real Kubernetes share: the assets, and the curve of one plain process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.assets import Assets
from tests.e2e.kubernetes.reference import Reference


@pytest.fixture(scope="session")
def reference(assets: Assets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    """The curve of one plain process."""
    with Reference(tmp_path_factory.mktemp("reference")) as found:
        yield found
