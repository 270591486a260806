"""Over NCCL each pod of a node is a host: it has its own GPUs and a share of the node's card."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from heddle_operator.apis.spec import Elastic
from heddle_operator.controller.planner_server import SearchSettings, answer
from heddle_operator.epochs.members import missing_pods, seats_on_pods
from heddle_operator.rules.candidates import usable_nodes
from heddle_operator.rules.gain import judge
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.plan_reply import PlanReply
from heddle_operator.state.situation import Situation
from heddle_operator.state.snapshot import Observed, ObservedNode, ObservedPod
from planner.cluster.composition import Composition, Node
from planner.cost.evaluate import cost_of
from planner.errors import Infeasible
from planner.plans.hosts import plan_on_hosts, plan_on_nodes, with_hosts
from planner.plans.movement import bytes_to_move
from planner.plans.pieces import holders_min
from planner.plans.plan import Plan, faults
from planner.plans.ranks import RankMap
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.search.driver import search
from tests.builders import MODEL, TYPES, demo_profile, plans_on, work_on, workload, workload_of
from tests.fakes.operator import a_job, view_of

WAITS = Situation(live=None, pending=None, holders=(), lost=(), doubtful=(), ever_live=False)

sizes = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@st.composite
def clusters(draw: st.DrawFn) -> Composition:
    """One to three nodes, of one to three hosts each."""
    rows = draw(st.lists(st.tuples(st.sampled_from(sorted(TYPES)), sizes), min_size=1, max_size=3))
    return Composition(
        tuple(
            Node(name=f"n{i}", gpu_type=TYPES[kind], gpus=sum(hosts), hosts=tuple(hosts))
            for i, (kind, hosts) in enumerate(rows)
        )
    )


def apart(composition: Composition, profile) -> Composition:
    """The same with a node for each host, by its share of the card."""
    found = []
    for node in composition.nodes:
        card = profile.between_nodes(node.gpu_type).bandwidth_bytes_per_s
        for index, gpus in enumerate(node.hosts):
            found.append(
                Node(
                    name=f"{node.name}/{index}",
                    gpu_type=node.gpu_type,
                    gpus=gpus,
                    nic_bytes_per_s=card * gpus / node.gpus,
                )
            )
        if not node.hosts:
            found.append(node)
    return Composition(tuple(found))


def together(plan: Plan, composition: Composition) -> Plan:
    """A plan on `apart` as one on the nodes."""
    first = {
        f"{node.name}/{index}": sum(node.hosts[:index])
        for node in composition.nodes
        for index in range(len(node.hosts))
    }
    rows = []
    for p in plan.placement:
        start = first.get(p.node, 0)
        gpus = tuple(gpu + start for gpu in p.gpus)
        rows.append(replace(p, node=p.node.partition("/")[0], gpus=gpus))
    return replace(plan, placement=tuple(rows))


@given(st.data())
def test_a_plan_over_two_pods_of_a_node_costs_as_much_as_over_two_nodes_on_its_card(data):
    profile = demo_profile()
    composition = data.draw(clusters())
    nodes = apart(composition, profile)
    there = data.draw(plans_on(nodes))
    plan = together(there, composition)
    trained = workload_of(plan)
    assert faults(plan, trained, composition) == ()
    found = cost_of(plan, trained, composition, profile)
    assert found == cost_of(there, trained, nodes, profile)
    hosted = with_hosts(composition, profile)
    assert [(n.name, n.gpus, n.nic_bytes_per_s) for n in hosted.nodes] == [
        (n.name, n.gpus, n.nic_bytes_per_s) for n in nodes.nodes
    ]
    moved = plan_on_hosts(plan, hosted)
    assert moved == there
    assert plan_on_nodes(moved, hosted).digest == plan.digest


@given(st.data())
def test_a_group_across_two_hosts_is_a_fault_of_the_plan(data):
    composition = data.draw(clusters())
    whole = Composition(tuple(replace(node, hosts=()) for node in composition.nodes))
    plan = data.draw(plans_on(whole))
    node_of = {node.name: node for node in composition.nodes}
    crosses = any(
        any(p.gpus[0] < edge <= p.gpus[-1] for edge in edges(node_of[p.node].hosts))
        for p in plan.placement
    )
    assert bool(faults(plan, workload_of(plan), composition)) == crosses
    assert (plan_on_hosts(plan, with_hosts(composition, demo_profile())) is None) == crosses


def edges(hosts):
    return [sum(hosts[:index]) for index in range(1, len(hosts))]


@pytest.mark.slow
@settings(max_examples=10)
@given(clusters(), st.integers(1, 2))
def test_the_plan_for_hosts_is_the_plan_for_as_many_nodes(composition, min_holders):
    profile = demo_profile()
    asked = PlanRequest(
        workload=workload(), composition=composition, budget_evaluations=200, min_holders=1
    )
    try:
        there = search(replace(asked, composition=apart(composition, profile)), profile)
    except Infeasible:
        with pytest.raises(Infeasible):
            search(asked, profile)
        return
    found = search(asked, profile)
    assert found.plan == together(there.plan, composition)
    assert found.cost == there.cost == cost_of(found.plan, workload(), composition, profile)
    assert sum(count for _, count in found.idle) == composition.gpus - found.plan.gpus
    again = search(replace(asked, current=found.plan, min_holders=min_holders), profile)
    assert again.holders_min == holders_min(MODEL, again.plan), "a node fails as a whole"
    assert again.holders_min <= len(composition.nodes)
    if min_holders == 1:
        assert again.cost.iteration_s <= found.cost.iteration_s
    assert again.bytes_to_move == bytes_to_move(MODEL, found.plan, again.plan)


@pytest.mark.slow
@settings(max_examples=10)
@given(st.data())
def test_a_live_plan_whose_group_spans_two_pods_is_left_once_for_one_that_has_a_price(data):
    """It ran before pods were hosts, or its pods were adopted: there is no gain to wait for."""
    composition = data.draw(clusters())
    whole = Composition(tuple(replace(node, hosts=()) for node in composition.nodes))
    live = data.draw(
        plans_on(whole).filter(lambda plan: faults(plan, workload_of(plan), composition))
    )
    found = after(live, composition)
    assume(found.plan is not None)  # a job without another plan trains on
    verdict = judge(found, live, None, Elastic(minGainPercent=90), 0.0, 60.0)
    assert verdict.adopts
    assert verdict.cause is not None
    assert verdict.cause.kind == "PlanUnpriced"
    assert "stays in one host" in verdict.sentence
    again = judge(after(found.plan, composition), found.plan, None, Elastic(), 0.0, 60.0)
    assert (again.adopts, again.cause) == (False, None)


def after(live: Plan, composition: Composition) -> PlanReply:
    """The planner's answer to a job that runs this plan, on these nodes."""
    asked = SearchSettings(
        model=MODEL.name,
        global_batch=workload_of(live).global_batch,
        sequence_length=128,
        budget_evaluations=50,
    )
    question = {"composition": composition.to_json(), "current": live.to_json()}
    found = answer(asked, demo_profile(), question)
    plan, notes = found.pop("plan", None), found.pop("notes", ())
    return PlanReply(plan=plan and Plan.from_json(plan), notes=tuple(notes), **found)


def test_two_hosts_of_a_node_are_one_holder():
    """Else a state on one node alone would pass for one on two."""
    nodes = (Node(name="a", gpu_type="demo-fast", gpus=4, hosts=(2, 2)),)
    further = Node(name="b", gpu_type="demo-fast", gpus=2)
    asked = PlanRequest(
        workload=workload(),
        composition=Composition(nodes),
        budget_evaluations=200,
        min_holders=2,
    )
    alone = search(asked, demo_profile())
    assert alone.holders_min == 1
    assert "the composition has 1 node" in " ".join(alone.notes)
    found = search(replace(asked, composition=Composition((*nodes, further))), demo_profile())
    assert found.holders_min == holders_min(MODEL, found.plan) == 2


@given(st.data())
def test_a_tp_group_never_spans_two_pods(data):
    """Whatever pods a node has: the plan is made for them, and for one that takes the rest."""
    rows = data.draw(st.lists(st.tuples(sizes, st.integers(0, 3)), min_size=1, max_size=3))
    nodes = tuple(
        ObservedNode(name=f"n{i}", gpu_type="demo-fast", gpus=sum(pods) + free)
        for i, (pods, free) in enumerate(rows)
    )
    pods = tuple(
        ObservedPod(name=f"p{i}-{k}", node=f"n{i}", ordinal=k, gpus=gpus, phase="running")
        for i, (held, _) in enumerate(rows)
        for k, gpus in enumerate(held)
    )
    observed = Observed(nodes=nodes, pods=pods)
    job = a_job().over("nccl")
    worker = job.spec.worker.model_copy(update={"device": "CUDA"})
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"worker": worker})})
    view = view_of(job, observed, 100.0, situation=WAITS)
    composition = usable_nodes(view, frozenset())
    plan = together(data.draw(plans_on(apart(composition, demo_profile()))), composition)
    record = EpochRecord(epoch=1, plan=plan, reason="start", composition=composition, adopted_s=0.0)
    made = tuple(
        ObservedPod(name=c.name, node=c.node, ordinal=c.ordinal, gpus=c.gpus, phase="pending")
        for c in missing_pods(job, record, observed)
    )
    seats = seats_on_pods(plan, replace(observed, pods=(*pods, *made)))
    for pipeline in RankMap.of(plan).pipelines:
        for group in pipeline.ranks:
            assert len({seats[rank][0] for rank in group}) == 1


def test_plans_with_real_links_pay_for_a_card_that_two_pods_share():
    """NVLink is not theirs: two TP groups of a node sum their gradients over the card."""
    asked = work_on("llama3-8b", 64, precision="bf16", memory="paper")
    profile = find_profile(asked)
    one = Composition((Node(name="a", gpu_type="h100", gpus=8),))
    two = Composition((Node(name="a", gpu_type="h100", gpus=8, hosts=(4, 4)),))
    request = PlanRequest(workload=asked, composition=two, budget_evaluations=300)
    found = search(request, profile)
    free = cost_of(found.plan, asked, one, profile)
    assert found.cost.sync_s > free.sync_s or found.cost.iteration_s > free.iteration_s
    assert (
        found.cost.iteration_s > search(replace(request, composition=one), profile).cost.iteration_s
    )
