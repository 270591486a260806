"""A control plane without nodes for all contracts of a session, where one can start.

HEDDLE_TEST_SERVERS=no leaves out what needs it, as `make test` does; with `only` nothing else runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.assets import Assets, reasons_not_to_start
from tests.cluster.cluster import Cluster

HERE = Path(__file__).parent
CRD = HERE.parents[1] / "manifests" / "crd"
SERVERS = os.environ.get("HEDDLE_TEST_SERVERS")


@pytest.hookimpl(tryfirst=True)  # before marks choose
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs a server; with `only`, leave out what does not."""
    chosen, left = [], []
    for item in items:
        if item.path.parent == HERE and "control_plane" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)
        is_ours = item.path.parent == HERE and item.get_closest_marker("cluster") is None
        (left if SERVERS == "only" and is_ours else chosen).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = chosen


@pytest.fixture
def control_plane(request: pytest.FixtureRequest) -> Cluster:
    """API server, scheduler and controllers with the resource HeddleJob."""
    is_marked = request.node.get_closest_marker("cluster") is not None
    assert is_marked, "a case that needs a server is marked `cluster`, else no command runs it"
    found: Cluster = request.getfixturevalue("started_plane")
    return found


@pytest.fixture(scope="session")
def started_plane() -> Iterator[Cluster]:
    """The one of all tests."""
    if SERVERS == "no":
        pytest.skip("needs a real API server; `make test-cluster` runs it")
    assets = Assets.of(os.environ)
    reasons = reasons_not_to_start(assets)
    if reasons:
        pytest.skip("; ".join(reasons))
    with Cluster.start((), assets=assets) as plane:
        plane.kubectl("apply", "-f", str(CRD))
        plane.kubectl("wait", "--for=condition=Established", "crd/heddlejobs.heddle.dev")
        yield plane
