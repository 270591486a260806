"""The event simulation against the formula, and against what must hold of any schedule."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from planner.cost.evaluate import LockStep, ReplicaCost, StageCost, cost_of, rank_times
from planner.cost.gradient_sync import sync_messages
from planner.cost.simulation import replica_seconds, simulate_replica, simulated_seconds
from planner.plans.pieces import holders
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap
from planner.plans.regions import common_refinement
from tests.builders import MODEL, compositions, demo_profile, piece_numels, plans_on, workload_of

ROUNDING = 1 + 1e-9


def replicas(most_p2p: float) -> st.SearchStrategy[ReplicaCost]:
    """Random replicas with backward >= forward."""
    times = st.tuples(st.floats(0.01, 1), st.floats(1, 3))
    edges = st.floats(0, most_p2p)

    def build(case):
        stages, links, micro_batches = case
        depth = len(stages)
        return ReplicaCost(
            0,
            0,
            micro_batches,
            tuple(
                StageCost(
                    forward_s=forward,
                    backward_s=forward * ratio,
                    to_previous_s=links[s - 1] if s else 0.0,
                    to_next_s=links[s] if s < depth - 1 else 0.0,
                )
                for s, (forward, ratio) in enumerate(stages)
            ),
        )

    stages = st.lists(times, min_size=1, max_size=6)
    links = st.lists(edges, min_size=6, max_size=6)
    return st.tuples(stages, links, st.integers(1, 16)).map(build)


@given(replicas(0.3))
def test_the_simulation_never_exceeds_the_formula(replica):
    end = max(entry.end_s for entry in simulate_replica(replica))
    assert end <= replica.pipeline_s * ROUNDING


@given(replicas(0.3), replicas(0.3))
def test_replicas_in_lock_step_end_together_and_not_before_any_would_alone(one, other):
    depth = min(len(one.stages), len(other.stages))
    alone = [replace(replica, stages=replica.stages[:depth]) for replica in (one, other)]
    slowest = tuple(map(StageCost.slower, *(replica.stages for replica in alone)))
    rounds = max(replica.micro_batches for replica in alone)
    pair = [replace(replica, lock_step=LockStep(rounds, slowest)) for replica in alone]
    (end_s,) = {replica_seconds(replica) for replica in pair}
    assert all(replica_seconds(replica) <= end_s for replica in alone)
    assert end_s <= pair[0].pipeline_s * ROUNDING


@given(replicas(0.3), st.integers(1, 60))
def test_rounds_at_once_take_the_seconds_of_their_events(replica, rounds):
    replica = replace(replica, micro_batches=rounds)
    end = max(entry.end_s for entry in simulate_replica(replica))
    assert abs(replica_seconds(replica) - end) <= end * (ROUNDING - 1)


@given(replicas(0.3))
def test_no_stage_does_two_things_at_once_and_none_idles_less_than_its_work(replica):
    timeline = list(simulate_replica(replica))
    for stage, priced in enumerate(replica.stages):
        mine = [entry for entry in timeline if entry.stage == stage]
        assert all(a.end_s <= b.start_s * ROUNDING for a, b in pairwise(mine))
        worked = sum(entry.end_s - entry.start_s for entry in mine)
        assert abs(worked - replica.micro_batches * priced.time_s) < 1e-6
        assert worked <= max(entry.end_s for entry in timeline) * ROUNDING


@given(st.integers(1, 6), st.integers(0, 12), st.floats(0.05, 1), st.floats(1, 3))
def test_balanced_stages_simulate_within_8_percent_of_the_formula(depth, more, forward, ratio):
    edge = forward / 40
    stages = tuple(
        StageCost(
            forward_s=forward,
            backward_s=forward * ratio,
            to_previous_s=edge if s else 0.0,
            to_next_s=edge if s < depth - 1 else 0.0,
        )
        for s in range(depth)
    )
    replica = ReplicaCost(0, 0, depth + more, stages)
    end = max(entry.end_s for entry in simulate_replica(replica))
    assert end >= 0.92 * replica.pipeline_s


@given(compositions().flatmap(lambda c: st.tuples(st.just(c), plans_on(c))))
def test_price_simulation_and_rank_times_tell_the_same_seconds(case):
    composition, plan = case
    workload = workload_of(plan)
    priced = cost_of(plan, workload, composition, demo_profile())
    assert simulated_seconds(priced) <= priced.iteration_s * ROUNDING
    times = rank_times(plan, workload, composition, demo_profile())
    ranks = RankMap.of(plan)
    assert len(times) == len(ranks.seats)
    for pipeline, replica in zip(ranks.pipelines, priced.replicas, strict=True):
        for group, stage in zip(pipeline.ranks, replica.stages, strict=True):
            for rank in group:
                assert times[rank].forward_s == stage.forward_s
                assert times[rank].backward_s == stage.backward_s
                assert times[rank].to_next_s == stage.to_next_s
    assert {t.sync_s for t in times} == {priced.sync_s}


@given(compositions().flatmap(plans_on))
def test_gradient_messages_agree_with_the_piece_table(plan: Plan):
    sizes = piece_numels(MODEL, common_refinement([plan]))
    expected: dict[tuple[int, ...], int] = {}
    for piece, owners in holders(MODEL, plan).items():
        leads = tuple(ranks[0] for ranks in owners)
        expected[leads] = expected.get(leads, 0) + 4 * sizes[piece]
    assert sync_messages(MODEL, RankMap.of(plan), 4) == expected
