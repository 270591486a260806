"""planner/profiles/staged.py: messages through host memory, and what they do to a plan's cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cluster.composition import Composition
from planner.cost.evaluate import cost_of
from planner.errors import InvalidWorkload
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.placement.place import place
from planner.plans.plan import FilledTemplate, Plan, Stage
from planner.profiles.entries import LinkCost, Staging
from planner.profiles.generator import find_profile
from planner.profiles.profile import load_profile
from planner.profiles.staged import COPY_SHARE, GLOO_BYTES_PER_S, GLOO_LATENCY_S, staged
from tests.refusals import refused

DIRECT = Workload(
    model=find_model("llama3-8b"), global_batch=64, sequence_length=2048, precision="fp16"
)
STAGED = replace(DIRECT, wire="staged")
COPY = 0.8 * 63e9  # of an H100


def test_a_staged_message_is_copied_twice_and_sent_between():
    link = LinkCost(1e-4, 12e9, staging=Staging(copy_bytes_per_s=50e9, wire_bytes_per_s=2e9))
    expected_s = 1e-4 + 1e9 / 2e9 + 2 * 1e9 / 50e9
    assert link.seconds(1e9) == pytest.approx(expected_s)
    latency_s, per_byte_s = link.line
    assert latency_s + 1e9 * per_byte_s == pytest.approx(expected_s)


def test_ranks_that_share_a_card_copy_each_for_itself():
    """The card is shared once it is the slower one; the copies never are."""
    link = LinkCost(0.0, 12e9, staging=Staging(50e9, 2e9))
    assert link.shared_by(4).seconds(1e9) == link.seconds(1e9)
    assert link.shared_by(12).seconds(1e9) == pytest.approx(1.0 + 2 / 50)


def test_copies_come_on_top_of_a_measured_wire():
    link = LinkCost(0.1, 10.0, ((10.0, 1.0), (20.0, 2.0)), Staging(5.0, 10.0))
    assert link.seconds(15.0) == pytest.approx(1.5 + 6.0)
    assert link.seconds(30.0) == pytest.approx(3.0 + 12.0)


def test_every_link_of_the_profile_goes_through_host_memory():
    profile = find_profile(STAGED)
    one = profile.inside_node("h100")
    staging = Staging(COPY, GLOO_BYTES_PER_S)
    assert one == LinkCost(GLOO_LATENCY_S, GLOO_BYTES_PER_S, staging=staging)
    assert profile.between_nodes("h100").staging == one.staging
    # a ring of two moves a message once and copies it twice; of eight, 7/4 times and twice
    assert profile.inside_ring("h100", 2).staging == one.staging
    assert profile.inside_ring("h100", 8).staging.copy_bytes_per_s == pytest.approx(COPY * 7 / 4)
    assert (profile.wire, profile.link_origin, profile.origin) == ("staged", "modelled", "modelled")


def test_what_layers_compute_stays_and_what_they_sum_takes_longer():
    direct, through_host = find_profile(DIRECT), find_profile(STAGED)
    key = ("block", "h100", 2, 1)
    one, other = direct.layers[key], through_host.layers[key]
    assert replace(other, tp_communication_s=one.tp_communication_s) == one
    message = 2048 * 4096 * 2
    each_s = GLOO_LATENCY_S + message / GLOO_BYTES_PER_S + 2 * message / COPY
    assert other.tp_communication_s == pytest.approx(4 * each_s)
    assert through_host.layers["block", "h100", 1, 1] == direct.layers["block", "h100", 1, 1]


def test_a_measured_copy_counts_before_the_data_sheet():
    profile = find_profile(DIRECT)
    measured = replace(profile.types["h100"], host_copy_bytes_per_s=10e9)
    profile = replace(profile, types={**profile.types, "h100": measured})
    assert staged(profile, STAGED).inside_node("h100").staging.copy_bytes_per_s == 10e9


def test_a_plan_costs_more_where_its_messages_are_staged():
    composition = Composition.from_text("h100=2x2")
    stage = Stage(gpu_type="h100", tp=2, layers=16)
    templates = (FilledTemplate((stage, stage), 1, (64,)),)
    plan = Plan(templates, place(DIRECT.model, templates, composition))
    direct = cost_of(plan, DIRECT, composition, find_profile(DIRECT))
    through_host = cost_of(plan, STAGED, composition, find_profile(STAGED))
    assert through_host.iteration_s > 2 * direct.iteration_s
    assert [stage.work.forward_s for stage in through_host.replicas[0].stages] == [
        stage.work.forward_s for stage in direct.replicas[0].stages
    ]


def test_the_usual_wire_leaves_profiles_and_workloads_as_they_were():
    assert "wire" not in DIRECT.to_json()
    assert Workload.from_json(STAGED.to_json()) == STAGED
    assert find_profile(DIRECT).digest == load_profile("llama3-8b").digest
    assert find_profile(STAGED).digest != find_profile(DIRECT).digest


def test_a_staged_profile_is_staged_once():
    profile = find_profile(STAGED)
    assert staged(profile, STAGED) is profile
    assert COPY == COPY_SHARE * 63e9


def test_another_wire_is_refused():
    with refused(InvalidWorkload, "Unknown", "wire"):
        replace(DIRECT, wire="gloo")


def test_the_demos_model_on_gpus_is_priced_for_these():
    """Emulated devices have no GPU whose messages could be staged."""
    tiny = Workload(
        model=find_model("tiny-llama"), global_batch=20, sequence_length=128, precision="bf16"
    )
    assert set(find_profile(tiny).types) == {"demo-fast", "demo-slow"}
    assert "h100" in find_profile(replace(tiny, wire="staged")).types
