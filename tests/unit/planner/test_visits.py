"""Visits never cost more than the plans that they stand for."""

from __future__ import annotations

import numpy as np

from planner.cluster.composition import Composition
from planner.cost.memory import boundary_bytes
from planner.estimator.build_tables import pricing_of
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.placement.node_classes import class_sizes
from planner.profiles.generator import find_profile
from planner.visits import nested_room, visits_of


def visits_on(text: str):
    model = find_model("llama3-8b")
    workload = Workload(model, 64, 2048, "fp16", recompute=model.recompute)
    composition, profile = Composition.from_text(text), find_profile(workload)
    pricing = pricing_of(workload, composition, profile)
    nodes = tuple(class_sizes(composition).values())
    return visits_of(pricing.tables, pricing, workload, profile, nodes), pricing, workload, profile


def test_a_full_node_pays_for_its_own_gpus_and_half_a_node_for_all():
    visits, pricing, _, _ = visits_on("a100-40=4x2")
    tp = pricing.tables.option_tp[visits.option]
    full = visits.gpus[visits.kind] > 0
    assert (visits.room[full, 0] == tp[full]).all()
    assert (visits.room[~full, 0] == 2 * tp[~full]).all()


def test_a_message_from_a_full_node_takes_its_share_of_the_nic():
    visits, _, workload, profile = visits_on("a100-40=4x2")
    way = int(np.flatnonzero(visits.gpus[visits.kind] > 0)[0])
    port = visits.port[way]
    shared = profile.between_nodes("a100-40").shared_by(2)
    assert visits.crossing_s[0, port, port] == 2 * shared.seconds(boundary_bytes(workload, 1))


def test_no_message_leaves_a_class_of_one_node_for_itself():
    visits, _, _, _ = visits_on("a100-40=1x4")
    assert np.isinf(visits.crossing_s[:, visits.port[0], visits.port[0]]).all()


def test_room_is_that_of_the_tables_where_degrees_are_nested():
    _, pricing, _, _ = visits_on("a100-40=2x4,h100=1x8")
    room = nested_room(pricing.tables, pricing, (2, 1))
    assert (room == pricing.tables.room).all()
