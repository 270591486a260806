"""The best plans known: kept in a file, beaten one by one, at today's price."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.evaluation.references import Reference, References, compact, expanded
from benchmarks.evaluation.trial import try_out
from planner.errors import InvalidRequest
from planner.request import PlanRequest
from planner.training.composition_sets import ListedComposition
from tests.builders import demo_profile, workload

LISTED = ListedComposition("five", "demo-fast=1x2+1x3", 20)
PLAN = try_out(
    PlanRequest(workload=workload(20), composition=LISTED.composition, budget_evaluations=60),
    demo_profile(),
).plan
assert PLAN is not None


def known() -> References:
    references = References()
    references.offer("tiny-llama", LISTED, PLAN, 1.0, "somebody")
    return references


def test_only_a_faster_plan_takes_the_place():
    references = known()
    assert not references.offer("tiny-llama", LISTED, PLAN, 1.0, "another")
    assert not references.offer("tiny-llama", LISTED, PLAN, 0.5, "another")
    assert references.of("tiny-llama", LISTED).found_by == "somebody"
    assert references.offer("tiny-llama", LISTED, PLAN, 2.0, "another")
    assert references.of("tiny-llama", LISTED).found_by == "another"


def test_another_model_batch_or_composition_has_a_reference_of_its_own():
    references = known()
    for model, listed in (
        ("llama3-8b", LISTED),
        ("tiny-llama", replace(LISTED, batch=32)),
        ("tiny-llama", replace(LISTED, text="demo-fast=1x3+1x2")),
    ):
        assert references.of(model, listed).plan is None
    assert references.of("tiny-llama", replace(LISTED, name="renamed")).plan == PLAN


def test_a_file_reads_back_what_was_kept(tmp_path):
    references = known()
    references.file = tmp_path / "best.json"
    references.save()
    assert References.read(references.file) == references
    assert [path.name for path in tmp_path.iterdir()] == ["best.json"]


def test_a_file_that_is_not_there_yet_holds_nothing(tmp_path):
    assert References.read(tmp_path / "new.json") == References({}, tmp_path / "new.json")
    assert References.read(None) == References()
    known().save()  # without a file there is nothing to write, and nothing to complain about


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"model": "x"}]', "{}", "[" * 100_000])
def test_a_file_of_something_else_is_refused(tmp_path, text):
    file = tmp_path / "best.json"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=r"best\.json cannot be read: .*; give a file that"):
        References.read(file)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    references = known()
    references.file = tmp_path / "gone" / "best.json"
    with pytest.raises(InvalidRequest, match=r"best\.json cannot be written: "):
        references.save()


def test_a_price_that_has_changed_is_taken_and_what_was_searched_is_forgotten():
    old = Reference(
        model="tiny-llama",
        case="five",
        composition=LISTED.text,
        batch=20,
        throughput_samples_s=1.0,
        found_by="somebody",
        searched=("a search",),
        plan=PLAN,
    )
    now = old.at_todays_cost(workload(20), demo_profile())
    assert now.throughput_samples_s > 1.0
    assert (now.plan, now.searched) == (PLAN, ())
    again = replace(now, searched=("a search",))
    assert again.at_todays_cost(workload(20), demo_profile()) is again


def test_a_plan_that_cannot_run_any_more_is_forgotten():
    old = Reference(
        model="tiny-llama",
        case="five",
        composition="demo-fast=1x2",
        batch=20,
        throughput_samples_s=1.0,
        found_by="somebody",
        searched=("a",),
        plan=PLAN,
    )
    now = old.at_todays_cost(workload(20), demo_profile())
    assert (now.plan, now.throughput_samples_s, now.searched) == (None, 0.0, ())


def test_a_compact_plan_reads_back_equal():
    assert expanded(compact(PLAN)) == PLAN
