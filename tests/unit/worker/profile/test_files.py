"""Measured files: new keys join old ones, links are assumed until all are measured."""

from __future__ import annotations

import json
from dataclasses import replace

from planner.errors import UnprofiledConfiguration
from planner.profiles.entries import GpuType, LayerCost, LinkCost, as_row
from planner.profiles.profile import load_profile
from planner.profiles.schema import read_links_file, read_type_file
from tests.demo_profile import write_profile
from tests.refusals import refused
from worker.profile.files import rows_of, write_group_bytes, write_layers, write_links
from worker.profile.rows import Part, Row

HEAD = {
    "model": "tiny-llama",
    "sequence_length": 128,
    "precision": "fp32",
    "provenance": {"hardware": "a test"},
}
TYPE = GpuType(
    name="demo-fast",
    memory_bytes=7_000_000,
    reserve_bytes=500_000,
    optimizer_latency_s=0.01,
    optimizer_s_per_parameter=1e-8,
)
COST = LayerCost(
    forward_s=0.1,
    backward_s=0.2,
    tp_communication_s=0.0,
    activation_bytes=1000,
    attention_s=0.01,
    attention_bytes=100,
    input_bytes=10,
)
LINK = LinkCost(1e-3, 1e9, ((10.0, 1e-3), (20.0, 2e-3)))


def test_a_new_tp_degree_adds_only_its_entries(tmp_path):
    path = tmp_path / "tiny-llama" / "demo-fast.json"
    one = {(Part("block"), 1, b): Row(COST, 0.1, 3.0) for b in (1, 2)}
    assert write_layers(path, HEAD, TYPE, one) == 2
    again = {
        (Part("block"), 1, 2): Row(
            LayerCost(forward_s=9.0, backward_s=9.0, tp_communication_s=0.0, activation_bytes=9)
        )
    }
    assert write_layers(path, HEAD, TYPE, again | {(Part("block"), 2, 1): Row(COST)}) == 3
    write_links(path.parent, "demo-fast", {"hardware": "a test"}, message=LINK, network=LINK)
    profile = load_profile("tiny-llama", tmp_path)
    assert (profile.origin, profile.link_origin) == ("measured", "measured")
    assert profile.layer_cost("block", "demo-fast", 1, 1) == COST
    assert profile.layer_cost("block", "demo-fast", 1, 2).forward_s == 9.0
    assert profile.inside_node("demo-fast") == LINK


def test_modelled_entries_do_not_stay_beside_measured_ones(tmp_path):
    write_profile(tmp_path)
    path = tmp_path / "tiny-llama" / "demo-fast.json"
    assert write_layers(path, HEAD, TYPE, {(Part("block"), 1, 1): Row(COST)}) == 1
    assert json.loads(path.read_text())["origin"] == "measured"


def test_another_length_is_refused(tmp_path):
    path = tmp_path / "tiny-llama" / "demo-fast.json"
    write_layers(path, HEAD, TYPE, {(Part("block"), 1, 1): Row(COST)})
    with refused(UnprofiledConfiguration, "Mismatch", "output_path"):
        write_layers(path, {**HEAD, "sequence_length": 64}, TYPE, {})


def test_links_are_assumed_until_every_one_is_measured(tmp_path):
    said = {"hardware": "a test"}
    assert write_links(tmp_path, "one", said) == "assumed"
    assert write_links(tmp_path, "one", said, message=LINK, rings={2: LINK}) == "assumed"
    assert write_links(tmp_path, "one", said, network=LINK) == "measured"
    assert write_links(tmp_path, "other", said) == "assumed"
    assert json.loads((tmp_path / "links.json").read_text())["rings"]["one"].keys() == {"2"}


def test_the_bytes_of_a_group_join_a_measured_type_and_stay(tmp_path):
    path = tmp_path / "demo-fast.json"
    assert not write_group_bytes(path, 77)
    write_layers(path, HEAD, TYPE, {(Part("block"), 1, 1): Row(COST)})
    assert write_group_bytes(path, 77)
    assert read_type_file(path).gpu_type.group_bytes == 77
    write_layers(path, HEAD, TYPE, {(Part("block"), 1, 2): Row(COST)})  # of one device
    assert read_type_file(path).gpu_type.group_bytes == 77
    write_layers(path, HEAD, replace(TYPE, group_bytes=99), {})
    assert read_type_file(path).gpu_type.group_bytes == 99


def test_a_ring_of_another_size_is_added(tmp_path):
    two, four = LinkCost(1e-5, 4e9), LinkCost(1e-5, 5e8)
    write_links(tmp_path, "demo-fast", {}, message=LINK, rings={2: LINK, 4: four})
    write_links(tmp_path, "demo-fast", {}, message=LINK, rings={2: two})
    held = json.loads((tmp_path / "links.json").read_text())["rings"]["demo-fast"]
    assert held == {"2": as_row(two), "4": as_row(four)}


def test_links_of_another_wire_are_no_part_of_a_file(tmp_path):
    said = {"hardware": "a test"}
    write_links(tmp_path, "one", said, message=LINK, wire="staged")
    assert read_links_file(tmp_path / "links.json").wire == "staged"
    with refused(UnprofiledConfiguration, "Mismatch", "wire"):
        write_links(tmp_path, "one", said, message=LINK)


def test_a_row_keeps_how_it_was_measured_and_rows_of_earlier_files_are_read_without(tmp_path):
    path = tmp_path / "demo-fast.json"
    write_layers(path, HEAD, TYPE, {(Part("block"), 1, 1): Row(COST, 0.25, 3.0)})
    (row,) = rows_of(read_type_file(path)).values()
    assert row == Row(COST, 0.25, 3.0)
    body = json.loads(path.read_text())
    del body["layers"][0]["spread"], body["layers"][0]["load"]
    path.write_text(json.dumps(body))
    (row,) = rows_of(read_type_file(path)).values()
    assert row == Row(COST, 0.0, None)


def test_a_tiling_of_experts_has_rows_of_its_own_and_a_profile_reads_them(tmp_path):
    path = tmp_path / "tiny-mixtral" / "demo-fast.json"
    head = {**HEAD, "model": "tiny-mixtral"}
    plain, spread = Part("moe_block"), Part("moe_block", 2, 1)
    slow = replace(COST, forward_s=9.0)
    write_layers(path, head, TYPE, {(plain, 1, 1): Row(COST), (plain, 2, 1): Row(COST)})
    assert write_layers(path, head, TYPE, {(spread, 1, 1): Row(slow)}) == 3
    assert write_layers(path, head, TYPE, {(spread, 2, 1): Row(slow)}) == 4
    assert set(rows_of(read_type_file(path))) == {
        (part, tp, 1) for part in (plain, spread) for tp in (1, 2)
    }
    write_links(path.parent, "demo-fast", {"hardware": "a test"}, message=LINK, network=LINK)
    profile = load_profile("tiny-mixtral", tmp_path)
    assert profile.tiled_cost("demo-fast", 1, 1, 1, 1) == COST
    assert profile.tiled_cost("demo-fast", 2, 1, 2, 1) == slow
