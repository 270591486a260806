"""Profiles: exact keys, provenance, broken files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from planner.errors import UnprofiledConfiguration
from planner.model.catalogue import find_model
from planner.model.workload import Workload, usual_workload
from planner.profiles.generator import find_profile
from planner.profiles.profile import PROFILES, LinkCost, load_profile
from tests.builders import MODEL, demo_profile, workload
from tests.demo_profile import write_profile
from tests.refusals import refused


def test_an_entry_is_found_by_its_exact_key_only():
    cost = demo_profile().layer_cost("block", "demo-fast", 2, 8)
    assert cost.forward_s > 0
    assert cost.tp_communication_s > 0
    with refused(UnprofiledConfiguration, "Missing"):
        demo_profile().layer_cost("block", "demo-fast", 2, 3)
    with refused(UnprofiledConfiguration, "Unknown"):
        demo_profile().layer_cost("block", "h100", 1, 1)


def test_a_link_takes_its_latency_and_its_bytes():
    assert LinkCost(0.5, 100.0).seconds(50) == 1.0


def test_the_demo_profile_says_that_it_is_modelled():
    assert demo_profile().origin == "modelled"
    assert "no such GPU exists" in demo_profile().provenance


def test_links_of_another_wire_than_the_ranks_have_are_refused():
    with refused(UnprofiledConfiguration, "Mismatch", "wire"):
        replace(demo_profile(), wire="staged").require(workload())


def test_a_profile_speaks_of_its_model_length_and_precision_only():
    demo_profile().require(workload())
    with refused(UnprofiledConfiguration, "Mismatch"):
        demo_profile().require(Workload(model=MODEL, global_batch=32, sequence_length=64))


def test_the_digest_follows_every_number(tmp_path):
    write_profile(tmp_path)
    assert load_profile("tiny-llama", tmp_path).digest == demo_profile().digest
    path = tmp_path / "tiny-llama" / "links.json"
    links = json.loads(path.read_text())
    links["between_nodes"]["latency_s"] *= 2
    path.write_text(json.dumps(links))
    assert load_profile("tiny-llama", tmp_path).digest != demo_profile().digest


@pytest.mark.parametrize(
    "change",
    [
        {
            "tiles": {
                ("demo-fast", 1, 1, 2, 1): demo_profile().layer_cost("block", "demo-fast", 1, 1)
            }
        },
        {"sequence_parallel": True},
        {"link_origin": "assumed"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_digest_follows_what_the_numbers_are_of(change):
    assert replace(demo_profile(), **change).digest != demo_profile().digest


def test_one_modelled_file_makes_the_whole_profile_modelled(tmp_path):
    write_profile(tmp_path)
    for path in (tmp_path / "tiny-llama").glob("*.json"):
        data = json.loads(path.read_text())
        data["origin"] = "measured" if path.stem != "demo-slow" else "modelled"
        path.write_text(json.dumps(data))
    assert load_profile("tiny-llama", tmp_path).origin == "modelled"


@pytest.mark.parametrize(
    ("content", "mistake"),
    [
        ("{", ("Unreadable", None)),
        ("[]", ("Malformed", "the file")),
        ("{}", ("Malformed", "origin")),
    ],
)
def test_a_broken_file_is_one_sentence(tmp_path, content, mistake):
    write_profile(tmp_path)
    (tmp_path / "tiny-llama" / "demo-fast.json").write_text(content)
    with refused(UnprofiledConfiguration, *mistake):
        load_profile("tiny-llama", tmp_path)


@pytest.mark.parametrize("name", ["demo-fast", "links"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_file_that_was_cut_off_is_one_sentence(tmp_path, name, share):
    write_profile(tmp_path)
    path = tmp_path / "tiny-llama" / f"{name}.json"
    body = path.read_text().rstrip()
    path.write_text(body[: int(share * len(body))])
    with refused(UnprofiledConfiguration, "Unreadable"):
        load_profile("tiny-llama", tmp_path)


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        ({"forward_s": float("nan")}, ("Malformed", "layers.3.forward_s")),
        ({"backward_s": -1.0}, ("Malformed", "layers.3.backward_s")),
        ({"tp": "two"}, ("Malformed", "layers.3.tp")),
        ({"kind": "blok"}, ("Malformed", "layers.3.kind")),
        (
            {"activation_bytes": 10**400},
            ("Malformed", "layers.3.activation_bytes"),
        ),
        ({"surprise": 1}, ("Malformed", "layers.3.surprise")),
    ],
)
def test_a_wrong_number_is_named_with_file_key_and_what_was_expected(tmp_path, change, mistake):
    write_profile(tmp_path)
    path = tmp_path / "tiny-llama" / "demo-fast.json"
    data = json.loads(path.read_text())
    data["layers"][3] |= change
    path.write_text(json.dumps(data))
    with refused(UnprofiledConfiguration, *mistake):
        load_profile("tiny-llama", tmp_path)


def test_files_of_another_model_or_length_do_not_mix(tmp_path):
    write_profile(tmp_path)
    path = tmp_path / "tiny-llama" / "demo-fast.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sequence_length": 64}))
    with refused(UnprofiledConfiguration, "Contradiction"):
        load_profile("tiny-llama", tmp_path)


def test_two_files_of_one_type_are_refused_by_their_names(tmp_path):
    write_profile(tmp_path)
    path = tmp_path / "tiny-llama" / "demo-fast.json"
    path.with_name("demo-fast-old.json").write_text(path.read_text())
    with refused(UnprofiledConfiguration, "Contradiction") as found:
        load_profile("tiny-llama", tmp_path)
    assert "demo-fast-old.json and in demo-fast.json" in str(found.value)


def test_a_profile_that_was_measured_is_of_its_shape_whatever_the_depth(tmp_path):
    write_profile(tmp_path)
    asked = workload()
    for path in (tmp_path / "tiny-llama").glob("demo-*.json"):
        data = json.loads(path.read_text()) | {"shape": asked.model.cost_digest}
        path.write_text(json.dumps(data))
    profile = load_profile("tiny-llama", tmp_path)
    profile.require(asked)
    profile.require(replace(asked, model=replace(asked.model, layers=4)))
    with refused(UnprofiledConfiguration, "Mismatch", "model"):
        profile.require(replace(asked, model=replace(asked.model, ffn=asked.model.ffn * 2)))


@pytest.mark.parametrize(
    ("size", "of"), [(1, 2), (2, 2), (3, 4), (4, 4), (5, 4), (7, 4), (8, 8), (9, 8)]
)
def test_a_ring_of_a_size_that_nobody_knows_is_the_slower_one_beside_it(size, of):
    known = {n: LinkCost(1e-5, rate) for n, rate in ((2, 40e9), (4, 5e9), (8, 9e9))}
    profile = replace(demo_profile(), rings={"demo-fast": known})
    assert profile.inside_ring("demo-fast", size) == known[of]
    assert profile.inside_ring("demo-slow", size) == profile.inside_node("demo-slow")


def test_a_type_without_a_link_is_one_sentence(tmp_path):
    write_profile(tmp_path)
    path = tmp_path / "tiny-llama" / "links.json"
    links = json.loads(path.read_text())
    del links["inside_node"]["demo-slow"]
    path.write_text(json.dumps(links))
    with refused(UnprofiledConfiguration, "Missing"):
        load_profile("tiny-llama", tmp_path)


def test_a_link_of_measured_points_is_linear_between_them():
    link = LinkCost(1.0, 10.0, ((10.0, 2.0), (20.0, 4.0)))
    assert [link.seconds(size) for size in (5, 10, 15, 20, 30)] == [2.0, 2.0, 3.0, 4.0, 5.0]
    assert link.shared_by(2).seconds(10) == link.seconds(20)


def test_a_model_without_profile_is_one_sentence(tmp_path):
    with refused(UnprofiledConfiguration, "Missing"):
        load_profile("tiny-llama", tmp_path)


def test_no_block_takes_less_than_its_launches(tmp_path):
    """The floor of a type counts where the file is read, so that every reader of costs has it."""
    write_profile(tmp_path)
    path = tmp_path / "tiny-llama" / "demo-fast.json"
    stated = json.loads(path.read_text())
    before = load_profile("tiny-llama", tmp_path)
    small, large = (before.layer_cost("block", "demo-fast", 1, b) for b in (1, 8))
    floor_s = (small.backward_s + large.forward_s) / 2
    assert small.backward_s < floor_s < large.forward_s
    stated["gpu_type"]["launch_s"] = floor_s
    path.write_text(json.dumps(stated))
    after = load_profile("tiny-llama", tmp_path)
    assert after.layer_cost("block", "demo-fast", 1, 8) == large
    floored = replace(small, forward_s=floor_s, backward_s=floor_s)
    assert after.layer_cost("block", "demo-fast", 1, 1) == floored
    key = "embedding", "demo-fast", 1, 1  # with fewer kernels than a block
    assert after.layers[key] == before.layers[key]
    assert after.digest != before.digest


def test_what_a_file_does_not_state_changes_no_digest():
    """Fields that came later are no part of the digest of a profile without them."""
    profile = demo_profile()
    one = profile.types["demo-fast"]
    digests = {
        replace(profile, types={**profile.types, "demo-fast": replace(one, **stated)}).digest
        for stated in (
            {},
            {"launch_s": 2.0},
            {"host_copy_bytes_per_s": 2.0},
            {"update_digest": "2.0"},
            {"group_bytes": 2},
        )
    }
    assert len(digests) == 5
    assert profile.digest in digests


@pytest.mark.parametrize(
    "card", sorted(PROFILES.glob("*/policy/card.json")), ids=lambda card: card.parts[-3]
)
def test_a_policy_that_ships_was_judged_by_the_profile_that_ships(card):
    """A digest that changes without a number would warn every user of a plan."""
    said = json.loads(card.read_text())
    assert said["profile"] == find_profile(usual_workload(find_model(said["model"]))).digest
