"""heddle/demo/job.py: a job whose state survives the script of the demo."""

from __future__ import annotations

from heddle.demo.job import MODELS, STEPS, demo_job, text_folder
from heddle.demo.run import EVALUATIONS
from heddle.demo.scenario import NODES, SCRIPT
from planner.cluster.composition import Composition
from planner.profiles.profile import load_profile
from planner.request import PlanRequest
from planner.search.driver import search


def test_steps_and_seed_are_the_users():
    job = demo_job(17, 5)
    assert (job.spec.steps, job.spec.training.seed) == (17, 5)


def test_once_a_third_node_has_joined_every_piece_lives_on_two_nodes():
    """So that the kill at the end of the script takes no piece of the state with it."""
    job, (joins, *_) = demo_job(10, 1), SCRIPT
    request = PlanRequest(
        workload=job.workload,
        composition=Composition((*NODES.nodes, joins.node)),
        current=None,
        seed=1,
        min_holders=job.spec.elastic.min_holders,
        budget_evaluations=EVALUATIONS,
    )
    assert search(request, load_profile(MODELS[0])).holders_min == 2


def test_the_script_ends_before_the_last_step():
    assert max(event.at_step for event in SCRIPT) < STEPS
    assert STEPS >= 200


def test_there_is_text_on_every_machine():
    assert any(text_folder().glob("*.py"))
