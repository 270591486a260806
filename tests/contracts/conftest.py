"""A control plane without nodes for all contracts of a session, where one can start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.assets import Assets, reasons_not_to_start
from tests.cluster.cluster import Cluster

CRD = Path(__file__).parents[2] / "manifests" / "crd"


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """API server, scheduler and controllers with the resource HeddleJob."""
    if os.environ.get("HEDDLE_TEST_SERVERS") == "no":
        pytest.skip("needs a real API server; `make test-cluster` runs it")
    assets = Assets.of(os.environ)
    reasons = reasons_not_to_start(assets)
    if reasons:
        pytest.skip("; ".join(reasons))
    with Cluster.start((), assets=assets) as plane:
        plane.kubectl("apply", "-f", str(CRD))
        plane.kubectl("wait", "--for=condition=Established", "crd/heddlejobs.heddle.dev")
        yield plane
