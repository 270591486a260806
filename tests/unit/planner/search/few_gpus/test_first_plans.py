"""First plans: placed on GPUs that there are, filled with all layers as far as memory goes."""

from __future__ import annotations

from planner.search.few_gpus.costs import CandidateCosts, slot_of
from planner.search.few_gpus.first_plans import FirstFills, first_placements
from planner.search.few_gpus.placed_candidate import PlacedTemplate
from tests.builders import MODEL, demo_profile, nodes, workload

TP1, TP2, SLOW = ("demo-fast", 1), ("demo-fast", 2), ("demo-slow", 1)
COMPOSITION = nodes("fast-0:2 fast-1:3 slow-0:2")
PLAIN = (("none", 1, 0),)
CONFIGURATIONS = {TP1: PLAIN, TP2: PLAIN, SLOW: PLAIN}


def unfilled(structure) -> PlacedTemplate:
    return PlacedTemplate(structure, 0, (), (), ((0,) * len(structure),))


def fills() -> tuple[FirstFills, CandidateCosts]:
    costs = CandidateCosts(workload(32), COMPOSITION, demo_profile())
    return FirstFills(costs, CONFIGURATIONS, demo_profile().micro_batches("demo-fast")), costs


def test_first_fills_hold_all_layers_and_have_a_price():
    found, costs = fills()
    templates = (
        PlacedTemplate((TP2, SLOW), 0, (), (), ((0, 2),)),
        PlacedTemplate((TP2,), 0, (), (), ((1,),)),
    )
    filled = list(found.of(templates))
    assert filled
    for candidate in filled:
        assert all(sum(one.layers) == MODEL.layers for one in candidate)
        assert len({one.micro_batch for one in candidate}) == 1
        assert [one.where for one in candidate] == [one.where for one in templates]
    assert any(costs.without_sync(candidate) is not None for candidate in filled)


def test_a_slow_stage_gets_fewer_layers():
    found, _ = fills()
    for ((_, _, (fast, slow), _, _),) in found.of(
        (PlacedTemplate((TP2, SLOW), 0, (), (), ((0, 2),)),)
    ):
        assert fast > slow


def test_a_template_that_cannot_hold_the_model_has_no_fill():
    found, _ = fills()
    whole, half = unfilled((TP1,)), unfilled((TP1, TP1))
    assert not list(found.of((whole,)))
    assert list(found.of((half,)))
    assert not list(found.of((whole, half)))
    assert not list(found.of((unfilled((TP1,) * (MODEL.layers + 1)),)))


def test_a_stage_that_holds_few_layers_leaves_them_to_the_others():
    """The first stage has most micro-batches in flight, so memory and not speed cuts there."""
    found, costs = fills()
    splits = {
        one.micro_batch: one.layers
        for (one,) in found.of((PlacedTemplate((TP1, TP2), 0, (), (), ((0, 1),)),))
    }
    for b, layers in splits.items():
        terms = costs.stage(slot_of(TP1, b, 2, True, 1, PLAIN[0], 1), layers[0])
        assert terms.most > 0


def homes(text: str, counts) -> list:
    placed = first_placements(counts, MODEL, nodes(text), 1)
    return [tuple(one.where for one in candidate) for candidate in placed]


def test_no_node_gives_more_than_it_has():
    found = homes("fast-0:3 fast-1:2", (((TP1,), 1), ((TP2, TP2), 1)))
    assert found
    for (single,), (pair,) in found:
        taken = [single[0], *pair, *pair]
        assert taken.count(0) <= 3
        assert taken.count(1) <= 2


def test_stages_stand_by_replica_and_by_layer_each_placement_once():
    found = homes("fast-0:4 fast-1:4", (((TP2, TP2), 2),))
    assert sorted(found) == [(((0, 0), (1, 1)),), (((0, 1), (0, 1)),)]
    assert len(homes("fast-0:2", (((TP2,), 1),))) == 1
    (_, by_layer) = homes("fast-0:4 fast-1:4", (((TP1, TP1), 2), ((TP2, TP2), 1)))
    assert by_layer == (((0, 1), (0, 1)), ((0, 1),))


def test_what_does_not_fit_has_no_placement():
    assert homes("fast-0:1 fast-1:1", (((TP2,), 1),)) == []
