"""Members that fall silent, stop, fail or are slow, in every part of a change, alone and in pairs.

On a virtual clock: whatever falls silent, the survivors train again within 30 s of the fault, no
step is lost, and nothing is left behind; whoever is only slow is waited for.
"""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import dataclass

import pytest

from tests.fakes.operator import FakeOperator, a_cluster, a_job
from worker.contract import RankReport

WITHIN_S = 30.0  # of the fault
SLOW_S = 5.0  # for each part, of a pod that is slow
SLOW_PARTS = 3  # of a recovery: prepare, switch and the first step wait for it
TICK_S = 0.5
LATE_S = 2.5  # from one report to the next of an agent whose reports are late
CHANGES = ("none", "join", "drain", "loss")
PARTS = ("training", "gather", "prepare", "switch", "vote", "after")
WAYS = {
    "kill": ("dead pod", "dead node", "dead rank"),
    "stop": ("stopped rank", "stopped fork server"),
    "blackhole": ("silent pod",),
    "slow": ("slow",),
    "error": ("failed change",),
}
FAULTS = tuple(kind for kinds in WAYS.values() for kind in kinds)
FULL = 3200  # cases, of which `make test-kills` runs all: more than 1,000 faults of each way
VICTIMS = ("store", "leaver", "joiner", "other")
SECONDS_APART = (0.0, 1.0, 4.0, 9.5, 10.5, 13.0)


@dataclass(frozen=True)
class Fault:
    kind: str
    victim: str
    after_s: float = 0.0


@dataclass(frozen=True)
class Case:
    change: str
    part: str
    faults: tuple[Fault, ...]

    def __str__(self):
        told = ", ".join(f"{f.kind} at the {f.victim} after {f.after_s:g} s" for f in self.faults)
        return f"{self.change}, in {self.part}: {told}"


SINGLE = [
    Case(change, part, (Fault(kind, victim),))
    for change, part, kind, victim in itertools.product(CHANGES, PARTS, FAULTS, VICTIMS)
]


def a_pair(rng):
    """Two faults: of any way, then of any kind of it."""
    kinds = (rng.choice(WAYS[rng.choice(tuple(WAYS))]) for _ in range(2))
    first, second = (Fault(kind, rng.choice(VICTIMS)) for kind in kinds)
    second = Fault(second.kind, second.victim, rng.choice(SECONDS_APART))
    return Case(rng.choice(CHANGES), rng.choice(PARTS), (first, second))


class Trial:
    """One case: a job on four nodes, each of which holds the whole state."""

    def __init__(self, case):
        self.case = case
        self.job = a_job(minGainPercent=0)
        self.cluster = a_cluster(self.job, "a", "b", "c", "d")
        self.operator = FakeOperator(self.job, self.cluster)
        self.operator.settle()
        self.trained = self.step()
        self.slow = set()  # what was said of slow ranks
        draw = random.Random(str(case))
        lags = draw.choice(("", "", "", "tiny-b-0", "tiny-c-0", "tiny-d-0"))
        self.late = {lags} - {""}  # pods whose reports come after those of the others

    def step(self):
        return max((rank.step for _, rank in self.cluster.holders()), default=0)

    def advance(self):
        is_held_back = self.cluster.now % LATE_S >= TICK_S
        self.cluster.frozen = self.late if is_held_back else set()
        self.slow.add(self.operator.reconcile().slow)
        self.cluster.tick(TICK_S)
        assert self.operator.decision.phase != "Failed", self.operator.decision.message
        steps = self.cluster.training_steps()
        assert not steps or min(steps) >= self.trained, "a step that all had trained is lost"
        self.trained = max([self.trained, *steps])

    def begin(self):
        """Start the change, and let it come to its part."""
        cluster = self.cluster
        cluster.votes = self.case.part == "vote"
        cluster.slow_s["tiny-b-0"] = 2 * TICK_S  # so that every part takes some time
        if self.case.change == "join":
            cluster.add_node("e")
        elif self.case.change == "drain":
            cluster.drain("a")
        elif self.case.change == "loss":
            cluster.kill_node("a")
        for _ in range(40):
            if self.is_in_part():
                break
            self.advance()

    def is_in_part(self):
        newest = self.cluster.records.all[-1]
        if self.case.change == "none" or self.case.part == "training":
            return True
        if newest.epoch == 1:
            return False
        directives = [a.directive for a in self.cluster.agents.values() if a.directive]
        told = {(directive.epoch, directive.phase) for directive in directives}
        is_open = newest.outcome == "open"
        switches = is_open and (newest.epoch, "switch") in told
        return {
            "gather": is_open and newest.seal is None,
            "prepare": is_open and newest.seal is not None,
            "switch": switches,
            "vote": switches and any(r.part == "vote" for _, r in self.cluster.holders()),
            "after": newest.outcome == "live",
        }[self.case.part]

    def victim(self, name):
        """The pod that a fault hits; one that is there."""
        pods = sorted(self.cluster.agents)
        newest = self.cluster.records.all[-1]
        store = newest.seal.store.partition(":")[0] if newest.seal else ""
        chosen = {"store": store, "leaver": "tiny-a-0", "joiner": "tiny-e-0", "other": "tiny-c-0"}
        return chosen[name] if chosen[name] in pods else pods[-1]

    def inject(self, fault):
        cluster, pod = self.cluster, self.victim(fault.victim)
        ranks = sorted(cluster.agents[pod].ranks)
        if fault.kind == "silent pod":
            cluster.silence(pod)
        elif fault.kind == "dead pod":
            cluster.kill_pod(pod)
        elif fault.kind == "dead node":
            cluster.kill_node(cluster.pods[pod].node)
        elif fault.kind == "stopped rank" and ranks:
            cluster.stop_rank(pod, ranks[0])
        elif fault.kind == "stopped fork server":
            cluster.agents[pod].is_deaf = True
        elif fault.kind == "dead rank" and ranks:
            cluster.kill_rank(pod, ranks[0])
        elif fault.kind == "slow":
            cluster.slow_s[pod] = SLOW_S
        elif fault.kind == "failed change":
            failure = RankReport(slot=0, pid=1, started_s=0, phase="training", error="no memory")
            node = cluster.pods[pod].node
            cluster.failing[node] = failure.model_copy(update={"error_kind": "device"})

    def until_training(self, within_s):
        """Let time pass until a further step is trained."""
        start, begin_s = self.trained, self.cluster.now
        while self.trained <= start:
            said = f"{self.operator.decision.phase}: {self.operator.decision.message}"
            assert self.cluster.now - begin_s <= within_s, f"no step for {within_s:g} s; {said}"
            self.advance()

    def run(self):
        self.begin()
        for fault in self.case.faults:
            until_s = self.cluster.now + fault.after_s
            while self.cluster.now < until_s:
                self.advance()
            if self.cluster.agents:
                self.inject(fault)
        is_slow = any(fault.kind == "slow" for fault in self.case.faults)
        within_s = WITHIN_S + (SLOW_PARTS * SLOW_S if is_slow else 0.0)
        self.until_training(within_s)
        self.until_training(within_s)
        self.heal()

    def heal(self):
        """All that was silent speaks again; then all is as if nothing had happened."""
        cluster = self.cluster
        cluster.slow_s.clear()
        cluster.failing.clear()
        for agent in cluster.agents.values():
            agent.is_deaf = False
        for pod in list(cluster.silent):
            cluster.speak(pod)
        for pod, slot in list(cluster.stopped):
            cluster.stopped.pop((pod, slot))
            cluster.speak(pod)
        for _ in range(400):
            self.advance()
            if self.is_steady():
                return
        decision = self.operator.decision
        raise AssertionError(f"not healed: {decision.phase}: {decision.message}")

    def is_steady(self):
        """One epoch trains, on every pod that there is; nothing is left behind."""
        ranks = [rank for agent in self.cluster.agents.values() for rank in agent.ranks.values()]
        live = [r for r in self.cluster.records.all if r.outcome == "live"][-1]
        trains = {(rank.epoch, rank.phase) for rank in ranks} == {(live.epoch, "training")}
        return trains and set(self.cluster.pods) == live.hosts == set(self.cluster.agents)


def chosen_cases(count):
    """So many: a sample, or every single fault and then pairs."""
    rng = random.Random(int(os.environ.get("HEDDLE_FAULTS_SEED", "1")))
    single = SINGLE if count >= len(SINGLE) else rng.sample(SINGLE, count // 2)
    return [*single, *(a_pair(rng) for _ in range(count - len(single)))]


@pytest.mark.parametrize("case", chosen_cases(int(os.environ.get("HEDDLE_FAULTS", "16"))), ids=str)
def test_survivors_train_again_in_time_and_nothing_is_lost_or_left(case):
    Trial(case).run()


def test_the_full_count_has_a_thousand_faults_of_each_way():
    kinds = [fault.kind for case in chosen_cases(FULL) for fault in case.faults]
    for way, known in WAYS.items():
        assert sum(kind in known for kind in kinds) >= 1000, way


@pytest.mark.parametrize("change", CHANGES)
def test_who_is_slow_in_every_part_is_waited_for_and_named_and_never_lost(change):
    """Each step, each preparation and each switch of one node takes a minute."""
    trial = Trial(Case(change, "training", (Fault("slow", "other"),)))
    cluster = trial.cluster
    trial.begin()
    cluster.slow_s = {"tiny-c-0": 60.0}
    losses = 1 if change == "loss" else 0
    for _ in range(int(240 / TICK_S)):
        trial.advance()
    assert [r.reason for r in cluster.records.all].count("loss") == losses
    assert "tiny-c-0" in cluster.records.all[-1].hosts
    pods = {action.pod for action in cluster.halts}
    assert pods == (set() if not losses else {"tiny-b-0", "tiny-c-0", "tiny-d-0"})
    assert any("the rank on GPU 0 of c (in part" in sentence for sentence in trial.slow)
    trial.heal()


@pytest.mark.parametrize("change", CHANGES)
def test_a_report_that_comes_late_makes_nobody_lost(change):
    """What a rank was before it switched is not what it is: the others may have told already."""
    trial = Trial(Case(change, "training", ()))
    trial.late = {"tiny-c-0"}
    trial.begin()
    for _ in range(int(60 / TICK_S)):
        trial.advance()
    records = trial.cluster.records.all
    assert [r.reason for r in records].count("loss") == (1 if change == "loss" else 0)
    assert "tiny-c-0" in records[-1].hosts
    assert trial.is_steady()
