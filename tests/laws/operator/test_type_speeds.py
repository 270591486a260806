"""A GPU type whose profile is wrong is found out, and plans count on what it is.

The whole loop on the fake cluster: each rank measures its steps, the planner prices the speeds.
"""

from __future__ import annotations

import random

import pytest

from heddle_operator.controller.node_speeds import NodeSpeeds
from heddle_operator.controller.planner_client import search_settings_of
from heddle_operator.controller.planner_server import answer
from heddle_operator.rules.candidates import usable_nodes
from heddle_operator.state.settings import Settings
from heddle_operator.state.situation import situation
from heddle_operator.state.speeds.node_speed import BELIEVED_S
from heddle_operator.state.speeds.work import work_of
from planner.cluster.composition import Composition, Node
from planner.cluster.gpu_limits import GpuLimits
from planner.cost.evaluate import cost_of
from planner.plans.plan import Plan
from planner.profiles.generator import find_profile
from tests.fakes.agent import MICRO_BATCH_S
from tests.fakes.operator import FakeOperator, a_cluster, a_job, view_of
from tests.fakes.planner import fake_plan

PASS_S = 5.0  # the loop looks at least so often
FOUND_WITHIN_S = BELIEVED_S + 16 * PASS_S + 10 * PASS_S  # 16 steps are measured, and it moves
FAST, SLOW = "demo-fast", "demo-slow"


class Trial:
    """A job on nodes of the fast type and beside nodes of the slow one."""

    def __init__(self, fast="ab", slow="", seed=0, **elastic):
        self.random = random.Random(seed)
        self.job = a_job(**elastic)
        self.job = self.job.model_copy(
            update={"spec": self.job.spec.model_copy(update={"steps": 10**6})}
        )
        self.profile = find_profile(self.job.workload)
        self.cluster = a_cluster(self.job, *fast)
        for name in slow:
            self.cluster.add_node(name, SLOW)
        self.times = dict.fromkeys((*fast, *slow), 1.0)  # in units of the profile's
        for name in self.times:
            self.cluster.speeds[name] = lambda name=name: self.speed(name)
        self.start_operator()
        self.operator.settle()

    def start_operator(self):
        speeds = NodeSpeeds(self.job.workload.model, self.profile)
        self.operator = FakeOperator(self.job, self.cluster, speeds=speeds)

    def speed(self, name):
        """Of a fake rank, so that it measures the profile's time, with noise of 5 %."""
        node = self.cluster.nodes[name]
        plan = fake_plan(
            Composition((Node(name=name, gpu_type=node.gpu_type, gpus=1),)), self.job.workload
        )
        (work,) = work_of(plan, self.job.workload.model, self.profile)
        as_profiled = MICRO_BATCH_S / work.profiled_s
        return as_profiled / self.times[name] * self.random.uniform(0.95, 1.05)

    def advance(self, seconds):
        for _ in range(round(seconds / PASS_S)):
            self.operator.reconcile()
            self.cluster.tick(PASS_S)

    @property
    def live(self):
        return [record for record in self.cluster.records.all if record.outcome == "live"][-1]

    @property
    def seen(self):
        return self.operator.speeds.seen(self.cluster.snapshot(), self.cluster.now)

    @property
    def speeds(self):
        """Of the nodes, as plans count on them."""
        where = situation(self.seen, self.cluster.now, Settings())
        nodes = usable_nodes(
            view_of(self.job, self.seen, self.cluster.now, situation=where), frozenset()
        ).nodes
        return {node.name: node.speed_factor for node in nodes}


@pytest.mark.parametrize("seed", range(2))
def test_noise_of_5_percent_corrects_no_type(seed):
    trial = Trial(seed=seed)
    replies = len(trial.cluster.replies)
    trial.advance(3600)
    assert (len(trial.cluster.records.all), len(trial.cluster.replies)) == (1, replies)


@pytest.mark.parametrize("slowness", [1.2, 2.0, 10.0])
def test_one_slow_node_changes_its_type_by_nothing(slowness):
    trial = Trial(fast="abc")
    trial.times["b"] = slowness
    trial.advance(FOUND_WITHIN_S)
    assert {node.type_speed for node in trial.seen.nodes} == {1.0}
    assert trial.speeds["a"] == trial.speeds["c"] == 1.0
    assert trial.speeds["b"] == pytest.approx(1 / slowness, rel=0.1)


def test_all_nodes_twice_as_slow_halve_the_type_and_none_is_slow():
    trial = Trial(fast="abc")
    trial.times = dict.fromkeys("abc", 2.0)
    trial.advance(FOUND_WITHIN_S)
    assert {node.measured_speed for node in trial.seen.nodes} == {1.0}
    assert trial.speeds == pytest.approx(dict.fromkeys("abc", 0.5), rel=0.1)
    assert len(trial.cluster.records.all) == 1  # no better plan: the job stays where it is
    trial.times["c"] = 6.0  # and one that is slower than its type is slow
    trial.advance(FOUND_WITHIN_S)
    assert trial.speeds["c"] == pytest.approx(1 / 6, rel=0.15)
    assert trial.speeds["a"] == pytest.approx(0.5, rel=0.1)


def test_a_job_leaves_a_type_that_is_slower_than_the_other_and_than_its_profile_says():
    trial = Trial(fast="ab", slow="cd", maxGPUs=2)
    assert set(trial.live.plan.nodes) == {"a", "b"}
    trial.times |= {"a": 400.0, "b": 400.0}  # the fake planner's types are 200 times apart
    trial.advance(FOUND_WITHIN_S)
    assert set(trial.live.plan.nodes) == {"c", "d"}
    changes = len(trial.cluster.records.all)
    trial.advance(3600)  # what is known of the type it left stays
    assert len(trial.cluster.records.all) == changes
    assert trial.live.step_s == pytest.approx(1 / 0.02)  # by the type that it is on


def test_an_operator_that_starts_anew_knows_the_speeds_of_types():
    trial = Trial(fast="ab", slow="cd", maxGPUs=2)
    trial.times |= {"a": 400.0, "b": 400.0}
    trial.advance(FOUND_WITHIN_S)
    changes, speeds = len(trial.cluster.records.all), trial.speeds
    trial.start_operator()
    trial.advance(3600)
    assert (len(trial.cluster.records.all), trial.speeds) == (changes, speeds)


@pytest.mark.parametrize(("speed", "wanted"), [(1.0, FAST), (0.05, SLOW)])
def test_the_planner_chooses_the_type_and_predicts_the_step_by_its_speed(speed, wanted):
    job = a_job(maxGPUs=2)
    nodes = Composition(
        (
            Node(name="a", gpu_type=FAST, gpus=2, link_domain="default", speed_factor=speed),
            Node(name="b", gpu_type=SLOW, gpus=2),
        )
    )
    settings = search_settings_of(job, Settings(plan_evaluations=200))
    question = {
        "composition": nodes.to_json(), "current": None, "max_gpus": GpuLimits(2).to_json(),
    }  # fmt: skip
    found = answer(settings, find_profile(job.workload), question)
    plan = Plan.from_json(found["plan"])
    assert {stage.gpu_type for template in plan.templates for stage in template.stages} == {wanted}
    priced = cost_of(plan, job.workload, nodes, find_profile(job.workload))
    assert found["iteration_s"] == pytest.approx(priced.iteration_s)
