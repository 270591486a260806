"""First fills hold every layer, fit in memory, and put layers where they are done first."""

from __future__ import annotations

from planner.search.few_gpus.draft import Draft
from planner.search.few_gpus.exact_fill import FirstFills
from planner.search.few_gpus.exact_pricing import ExactPrices, StagePlace
from tests.builders import MODEL, demo_profile, nodes, workload

TP1, TP2, SLOW = ("demo-fast", 1), ("demo-fast", 2), ("demo-slow", 1)
COMPOSITION = nodes("fast-0:2 fast-1:3 slow-0:2")
PLAIN = (("none", 1, 0),)
WAYS = {TP1: PLAIN, TP2: PLAIN, SLOW: PLAIN}


def fills() -> tuple[FirstFills, ExactPrices]:
    prices = ExactPrices(workload(32), COMPOSITION, demo_profile())
    return FirstFills(workload(32), prices, WAYS, demo_profile().micro_batches("demo-fast")), prices


def test_first_fills_hold_all_layers_and_have_a_price():
    found, prices = fills()
    bag = (Draft((TP2, SLOW), 0, (), (), ((0, 2),)), Draft((TP2,), 0, (), (), ((1,),)))
    filled = list(found.of(bag))
    assert filled
    for drafts in filled:
        assert all(sum(draft.layers) == MODEL.layers for draft in drafts)
        assert len({draft.micro_batch for draft in drafts}) == 1
        assert [draft.where for draft in drafts] == [draft.where for draft in bag]
    assert any(prices.floor(drafts) is not None for drafts in filled)


def test_a_slow_stage_gets_fewer_layers():
    found, _ = fills()
    for ((_, _, (fast, slow), _, _),) in found.of((Draft((TP2, SLOW), 0, (), (), ((0, 2),)),)):
        assert fast > slow


def test_a_template_that_cannot_hold_the_model_has_no_fill():
    found, _ = fills()
    assert not found.fit((((TP1,), 1),))
    assert found.fit((((TP1, TP1), 1),))
    assert not found.fit((((TP1,), 1), ((TP2,), 1)))
    assert not found.fit((((TP1,) * (MODEL.layers + 1), 1),))


def test_a_stage_that_holds_few_layers_leaves_them_to_the_others():
    """The first stage has most micro-batches in flight, so memory and not speed cuts there."""
    found, prices = fills()
    splits = {
        draft.micro_batch: draft.layers
        for (draft,) in found.of((Draft((TP1, TP2), 0, (), (), ((0, 1),)),))
    }
    for b, layers in splits.items():
        terms = prices.stage_terms(StagePlace(TP1, b, 2, True, 1, layers[0], PLAIN[0], 1))
        assert terms.most > 0
