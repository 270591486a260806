"""migration/links.py: rates of ports and cards, and the makespan of a move by them."""

from __future__ import annotations

import pytest

from migration.balance import Loads, Run
from migration.links import NIC_BYTES_PER_S, PORT_BYTES_PER_S, profile_links, usual_links
from planner.cluster.gpu_types import HARDWARE
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import find_profile
from planner.profiles.staged import COPY_SHARE, GLOO_BYTES_PER_S

LLAMA = find_model("llama3-8b")
TYPES = ("h100", "l40s")
GIGABYTE = 10**9


def links_over(wire, types=TYPES):
    workload = Workload(model=LLAMA, global_batch=64, sequence_length=2048, wire=wire)
    return profile_links(find_profile(workload), types, (1.0,) * len(types))


def seconds(links, sender, receiver, relays=(), nodes=(0, 0, 1, 1)):
    """Of the busiest port or card, for one gigabyte."""
    loads = Loads(links=links, nodes=nodes)
    loads.add(Run(0, 0, GIGABYTE, sender, receiver, relays))
    return loads.longest_s()


def test_inside_a_node_a_move_takes_nvlink_or_pcie_and_between_nodes_the_card():
    links = links_over("nccl")
    nvlink, pcie = (HARDWARE[name].point_to_point.bandwidth_bytes_per_s for name in TYPES)
    assert seconds(links, 0, 1) == pytest.approx(1e9 / nvlink)
    assert seconds(links, 2, 3) == pytest.approx(1e9 / pcie)
    slow = HARDWARE["l40s"]
    copy, card = COPY_SHARE * slow.host_link_bytes_per_s, slow.node_nic.bandwidth_bytes_per_s
    assert seconds(links, 0, 2) == pytest.approx(1e9 / min(copy, card))


def test_what_is_handed_on_takes_the_links_of_the_receivers_node():
    links = links_over("nccl")
    assert Loads(links=links, nodes=(0, 1, 1)).longest_s() == 0
    slow = HARDWARE["l40s"].point_to_point.bandwidth_bytes_per_s
    loads = Loads(links=links, nodes=(0, 1, 1, 1))
    loads.add(Run(0, 0, GIGABYTE, 0, 1, (2, 3)))
    assert loads.port_out[1] == pytest.approx(2e9 / slow)
    assert loads.port_in[2] == loads.port_in[3] == pytest.approx(1e9 / slow)


def test_a_move_through_host_memory_copies_a_byte_and_then_sends_it():
    """The sender's port is the busiest, before the card, and inside a node nothing is faster."""
    links = links_over("staged", ("h100",))
    copy = COPY_SHARE * HARDWARE["h100"].host_link_bytes_per_s
    way_s = 1e9 / copy + 1e9 / GLOO_BYTES_PER_S
    nodes = (0, 0)
    assert seconds(links, 0, 1, nodes=nodes) == pytest.approx(way_s)
    assert links.port_bytes_per_s == pytest.approx(1e9 / way_s)


def test_a_type_without_a_profile_has_the_usual_rates_inside_its_node():
    links = links_over("nccl", ("unheard-of",))
    assert links.inside(0) == links.port_bytes_per_s == PORT_BYTES_PER_S
    usual = usual_links(2)
    assert usual.inside(1) == PORT_BYTES_PER_S
    assert usual.nic_bytes_per_s == (NIC_BYTES_PER_S,) * 2
