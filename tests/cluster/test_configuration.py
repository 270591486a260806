"""Nodes get addresses of their own; mounts and the record say what they mean."""

from __future__ import annotations

import ipaddress
import json
import sys
import tomllib
from pathlib import Path

import pytest

from tests.cluster.api import gpus
from tests.cluster.configuration import (
    API_ADDRESS,
    MAX_NODES,
    NODES,
    PODS,
    SERVICES,
    NodeSpec,
    Wiring,
    containerd_configuration,
    kubelet_flags,
    pod_network,
)
from tests.cluster.errors import ClusterFailed
from tests.cluster.host_mounts import ROOT, SCRATCH, _outermost, host_mounts, refuse_hidden
from tests.cluster.processes import Process
from tests.cluster.record import Record


def test_no_two_nodes_share_an_address_or_a_cable():
    wirings = [Wiring(index) for index in range(1, MAX_NODES + 1)]
    for get in ("cable", "machine_address", "node_address", "pods"):
        assert len({getattr(wiring, get) for wiring in wirings}) == MAX_NODES
    assert all(len(wiring.cable) <= 15 for wiring in wirings)  # the kernel's limit of a link's name


def test_addresses_lie_in_their_networks():
    last = Wiring(MAX_NODES)
    assert ipaddress.ip_address(last.node_address) in ipaddress.ip_network(NODES)
    assert ipaddress.ip_network(last.pods).subnet_of(ipaddress.ip_network(PODS))
    assert ipaddress.ip_address(API_ADDRESS) in ipaddress.ip_network(SERVICES)


def test_the_kubelet_is_told_the_gpu_type_only_where_there_are_gpus():
    with_gpus = " ".join(kubelet_flags(NodeSpec("n1", 2, "demo-slow"), Wiring(1)))
    assert "nvidia.com/gpu.product=demo-slow" in with_gpus
    assert "heddle.dev/emulated-gpus=true" in with_gpus
    without = " ".join(kubelet_flags(NodeSpec("n1", 0, labels=(("a", "b"),)), Wiring(1)))
    assert "nvidia.com" not in without
    assert "--node-labels=a=b" in without


def test_containerds_configuration_is_toml_whatever_the_paths_hold():
    text = containerd_configuration(Path('/a "b"'), Path("/c"), Path("/d\\e"), "native")
    runtime = tomllib.loads(text)["plugins"]["io.containerd.cri.v1.runtime"]
    assert runtime["cni"]["bin_dirs"] == ['/a "b"']
    assert runtime["containerd"]["runtimes"]["runc"]["options"]["BinaryName"] == "/d\\e"


def test_pods_get_the_addresses_of_their_node():
    network = json.loads(pod_network(Wiring(7), Path("/leases")))
    assert network["plugins"][0]["ipam"]["ranges"] == [[{"subnet": "10.124.7.0/24"}]]


@pytest.mark.parametrize(
    ("node", "complaint"),
    [
        (("Node_1", 1), "cannot be called 'Node_1'"),
        (("", 1), "cannot be called ''"),
        (("n" * 64, 1), "cannot be called"),
        (("n1", 1, "a type"), "cannot be a GPU type"),
        (("n1", -1), "-1 GPUs"),
    ],
)
def test_a_node_that_no_kubelet_could_register_is_refused_at_once(node, complaint):
    with pytest.raises(ClusterFailed, match=complaint):
        NodeSpec(*node)


def test_a_node_that_names_no_gpu_has_none():
    assert gpus({}) == 0
    assert gpus({"status": {"allocatable": {"nvidia.com/gpu": "3"}}}) == 3


def test_of_nested_folders_only_the_outermost_is_mounted():
    folders = [Path("/usr"), Path("/a/b/.venv"), Path("/a/b"), Path("/usr/local"), Path("/a/b")]
    assert _outermost(folders) == (Path("/usr"), Path("/a/b"))


def test_a_pod_finds_this_python_and_this_checkout_and_can_write_to_neither():
    mounts = host_mounts()
    spec = mounts.pod_spec(mounts.container("main", "-m", "worker"))
    container = spec["containers"][0]
    assert container["command"] == [sys.executable, "-m", "worker"]
    by_name = {volume["name"]: volume for volume in spec["volumes"]}
    writable = []
    for mount in container["volumeMounts"]:
        if "hostPath" in by_name[mount["name"]]:
            assert mount["readOnly"]
            assert mount["mountPath"] == by_name[mount["name"]]["hostPath"]["path"]
        else:
            writable.append(mount["mountPath"])
    assert writable == [SCRATCH]
    for needed in (ROOT, Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve()):
        assert any(needed == at or at in needed.parents for at in mounts.folders), needed


def test_a_record_comes_back_as_it_was_written(tmp_path):
    assert not Record.exists(tmp_path)
    record = Record(name="heddle-x", port=1234, images=[Path("/image.tar")])
    record.nodes[3] = NodeSpec("n3", 2, "demo-slow", (("zone", "a"),))
    record.processes["n3/kubelet"] = Process(17, 4242)
    record.write(tmp_path)
    assert Record.read(tmp_path) == record


def test_no_record_is_one_sentence_that_says_how_to_start(tmp_path):
    with pytest.raises(ClusterFailed, match="make cluster"):
        Record.read(tmp_path)


def test_a_checkout_that_the_tmp_of_a_pod_hides_is_refused():
    refuse_hidden((Path("/usr"), Path("/srv/tmp/heddle")))
    with pytest.raises(ClusterFailed):
        refuse_hidden((Path("/usr"), Path("/tmp/heddle")))
