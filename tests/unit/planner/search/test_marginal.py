"""What one more node adds: of the commonest size, at full speed, never a loss."""

from __future__ import annotations

from dataclasses import replace

from planner.cluster.composition import Composition, Node
from planner.cluster.gpu_limits import GpuLimits
from planner.request import PlanRequest
from planner.search.driver import search
from planner.search.marginal import marginal_gains, one_more
from tests.builders import demo_profile, nodes, workload


def test_one_more_node_is_like_most_of_its_type():
    composition = Composition(
        (
            Node(name="a", gpu_type="demo-fast", gpus=2, speed_factor=0.5, price=4.0),
            Node(name="b", gpu_type="demo-fast", gpus=2, price=4.0),
            Node(name="c", gpu_type="demo-fast", gpus=4),
            Node(name="d", gpu_type="demo-slow", gpus=1),
        )
    )
    node = one_more(composition, "demo-fast")
    assert (node.gpus, node.speed_factor, node.price) == (2, 1.0, 4.0)
    assert node.name not in {n.name for n in composition.nodes}
    again = one_more(Composition((*composition.nodes, node)), "demo-fast")
    assert again.name != node.name


def test_gains_come_per_profiled_type_the_largest_first_and_none_is_a_loss():
    composition = Composition(
        (*nodes("fast-0:1 fast-1:1 slow-0:1").nodes, Node(name="new", gpu_type="h999", gpus=2))
    )
    request = PlanRequest(workload=workload(), composition=composition, budget_evaluations=300)
    answer = search(request, demo_profile())
    gains = marginal_gains(request, demo_profile(), answer)
    assert {gain.gpu_type for gain in gains} == {"demo-fast", "demo-slow"}
    amounts = [gain.gain_samples_s for gain in gains]
    assert amounts == sorted(amounts, reverse=True)
    assert min(amounts) >= 0
    best = search(
        replace(
            request,
            composition=Composition((*composition.nodes, one_more(composition, "demo-fast"))),
            current=answer.plan,
        ),
        demo_profile(),
    )
    found = next(gain for gain in gains if gain.gpu_type == "demo-fast")
    assert found.gain_samples_s == best.throughput_samples_s - answer.throughput_samples_s > 0


def test_who_interrupts_gets_no_gains_and_none_is_a_loss_where_holders_count():
    composition = nodes("fast-0:4 slow-0:1")
    request = PlanRequest(
        workload=workload(), composition=composition, budget_evaluations=300, min_holders=3
    )
    answer = search(request, demo_profile())
    assert marginal_gains(request, demo_profile(), answer, lambda: True) == ()
    gains = marginal_gains(request, demo_profile(), answer)
    assert min(gain.gain_samples_s for gain in gains) >= 0


def test_within_a_limit_one_more_node_adds_what_it_adds_within_it():
    composition = nodes("slow-0:2 slow-1:2 fast-0:1")
    limits = GpuLimits(2, (("demo-slow", 2),))
    request = PlanRequest(
        workload=workload(), composition=composition, budget_evaluations=300, max_gpus=limits
    )
    gains = marginal_gains(request, demo_profile(), search(request, demo_profile()))
    added = {gain.gpu_type: gain.gain_samples_s for gain in gains}
    assert added["demo-fast"] > 0
    assert added["demo-slow"] == 0
