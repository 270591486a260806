"""One cluster for all tests of a module, started when the first of them asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.assets import Assets
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import NodeSpec


@pytest.fixture(scope="module")
def shared_cluster(assets: Assets) -> Iterator[Cluster]:
    """Two nodes of four GPUs each, of two types."""
    nodes = (NodeSpec("n1", 4, "demo-fast"), NodeSpec("n2", 4, "demo-slow"))
    with Cluster.start(nodes, assets=assets) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster, with no pods; whatever the test does to it is undone."""
    yield shared_cluster
    for node in shared_cluster.nodes:
        shared_cluster.heal(node)
        shared_cluster.heal_gpus(node)
    shared_cluster.wait_for_nodes()
    shared_cluster.kubectl("delete", "pods", "--all", "--grace-period=1", "--wait")
