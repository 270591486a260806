"""Node classes: what counts as alike, and plans that stand on the classes they were made for."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.placing import fastest
from planner.cluster.composition import Composition, Node
from planner.cluster.gpu_limits import GpuLimits
from planner.cost.batch_split import Lane
from planner.estimator.build_tables import pricing_of
from planner.placement.node_classes import (
    NodeClass,
    at_any_speed,
    by_class,
    class_sizes,
    sizes_at_any_speed,
    type_sizes,
    within_limits,
)
from planner.plans.hosts import with_hosts
from planner.search.candidate import Evaluator
from planner.search.fill import Filling
from tests.builders import demo_profile, nodes, workload


def of_two(gpu_type: str, gpu_price: float = 0.0, paid_gpus: int = 0) -> NodeClass:
    """The class of nodes of two GPUs."""
    return NodeClass(
        gpu_type=gpu_type, gpus=2, speed_factor=1.0, gpu_price=gpu_price, paid_gpus=paid_gpus
    )


def test_size_speed_price_and_network_card_make_a_class():
    small = Node(name="a", gpu_type="demo-fast", gpus=2, price=2.0)
    alike = [small, replace(small, name="b"), replace(small, name="c")]
    others = [
        replace(small, name="d", gpus=4),
        replace(small, name="e", speed_factor=0.5),
        replace(small, name="f", price=3.0),
        replace(small, name="g", gpu_type="demo-slow"),
        replace(small, name="h", nic_bytes_per_s=1e9),
    ]
    sizes = class_sizes(Composition((*alike, *others)))
    assert sizes[of_two("demo-fast", 1.0)] == 3
    assert len(sizes) == 6
    assert list(sizes) == sorted(sizes)


def test_as_one_class_nodes_count_as_the_one_that_half_of_the_gpus_are_in():
    found = type_sizes(nodes("fast-0:1 fast-1:1 fast-2:2 fast-3:2 fast-4:4 slow-0:2"))
    assert found == {
        of_two("demo-fast"): 5,
        of_two("demo-slow"): 1,
    }


def test_as_one_class_nodes_have_room_for_what_they_really_hold():
    mixed = nodes("fast-0:1 fast-1:1 fast-2:3 fast-3:2 slow-0:2")
    pricing = pricing_of(workload(8), mixed, demo_profile(), by_type=True)
    assert pricing is not None
    assert dict(zip(pricing.options, pricing.tables.room.tolist(), strict=True)) == {
        ("demo-fast", 1): 7,
        ("demo-fast", 2): 4,
        ("demo-slow", 1): 2,
        ("demo-slow", 2): 2,
    }


def test_the_number_of_a_class_stands_for_its_nodes():
    found = by_class(nodes("fast-0:2 fast-1:4 fast-2:2 slow-0:2"))
    assert [node.gpu_type for node in found.nodes] == ["0", "1", "0", "2"]


def test_a_stage_stands_on_the_class_that_it_was_priced_for():
    many = " ".join(f"fast-{index}:{4 if index < 16 else 1}" for index in range(20))
    evaluator = Evaluator(workload=workload(8), composition=nodes(many), profile=demo_profile())
    structure = (("demo-fast", 1),) * 2
    for classes, sizes in (((0, 0), {1}), ((1, 1), {4}), ((0, 1), {1, 4}), ((), {4})):
        filling = Filling(layers=(3, 3), lane=Lane(1, 1.0, 2.0, 8), classes=classes)
        found = fastest(evaluator, ((structure, 1, filling),))
        assert found is not None
        assert {evaluator.composition.node(name).gpus for name in found.plan.nodes} == sizes


def test_within_limits_each_class_keeps_as_many_nodes_as_it_may_use_gpus():
    there = nodes("fast-0:2 fast-1:2 fast-2:2 fast-3:4 slow-0:2 slow-1:2 slow-2:2")
    kept = within_limits(there, GpuLimits(3, (("demo-fast", 2), ("demo-slow", 0))), ("fast-2",))
    assert [node.name for node in kept.nodes] == ["fast-0", "fast-2", "fast-3"]
    assert within_limits(there, GpuLimits(16)) is there, "it does not bind"


def test_within_limits_a_node_keeps_all_hosts_of_a_class():
    there = Composition(
        tuple(Node(name=name, gpu_type="demo-fast", gpus=3, hosts=(1, 1, 1)) for name in "abc")
    )
    hosted = with_hosts(there, demo_profile())
    kept = within_limits(hosted, GpuLimits(2), ("c/1",))
    assert [node.name for node in kept.nodes] == ["a/0", "a/1", "a/2", "c/0", "c/1", "c/2"]


def test_hosts_that_are_paid_together_are_a_class_of_their_own():
    def found(price: float | None) -> list[NodeClass]:
        there = (
            Node(name="a", gpu_type="demo-fast", gpus=4, hosts=(2, 2), price=price),
            Node(name="b", gpu_type="demo-fast", gpus=6, hosts=(2, 2, 2), price=price),
        )
        hosted = with_hosts(Composition(there), demo_profile())
        alike = (replace(node, nic_bytes_per_s=None) for node in hosted.nodes)
        return list(class_sizes(Composition(tuple(alike))))

    assert found(None) == found(0.0) == [of_two("demo-fast")]
    assert found(6.0) == [
        of_two("demo-fast", 1.0, paid_gpus=6),
        of_two("demo-fast", 1.5, paid_gpus=4),
    ]


def test_nodes_that_differ_in_speed_alone_count_as_the_middle_one():
    plain = nodes("fast-0:2 fast-1:2 fast-2:2 slow-0:4").nodes
    speeds = (0.5, 0.9, 1.0, 0.7)
    mixed = Composition(
        tuple(replace(n, speed_factor=s) for n, s in zip(plain, speeds, strict=True))
    )
    sizes = sizes_at_any_speed(mixed)
    assert [(one.gpus, one.speed_factor, count) for one, count in sizes.items()] == [
        (2, 0.9, 3),
        (4, 0.7, 1),
    ]
    assert [node.gpu_type for node in at_any_speed(mixed).nodes] == ["0", "0", "0", "1"]
