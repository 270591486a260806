"""heddle/train/correction.py: what a run says of the times that it was planned by."""

from __future__ import annotations

import json

import pytest

from heddle.train.correction import (
    Correction,
    corrected_profile,
    correction_of,
    kind_factors,
    write_correction,
)
from planner.plans.ranks import RankMap
from planner.profiles.profile import load_profile
from tests.demo_profile import write_profile
from tests.unit.heddle.train.recorded import FIRST, JOB, PROFILE, TWO, recorded

WORKLOAD = JOB.workload
MODEL = WORKLOAD.model


def computing(factors):
    """Seconds that each rank of the first plan computes, if each kind takes so much longer."""
    found = {}
    for rank, seat in enumerate(RankMap.of(FIRST).seats):
        template = seat.pipeline.template
        stage = template.stages[seat.stage]
        kinds = MODEL.kinds_of(seat.layers.start, seat.layers.stop)
        found[rank] = seat.pipeline.num_micro_batches * sum(
            count * factors[kind] * (cost.forward_s + cost.backward_s + cost.tp_communication_s)
            for kind, count in kinds.items()
            for cost in [PROFILE.layer_cost(kind, stage.gpu_type, stage.tp, template.micro_batch)]
        )
    return found


def found_for(**factors):
    return kind_factors(FIRST, WORKLOAD, TWO, PROFILE, computing(factors))


def test_a_machine_that_is_twice_as_slow_has_that_factor_for_every_kind():
    found = found_for(embedding=2.0, block=2.0, head=2.0)
    assert found == pytest.approx({"embedding": 2.0, "block": 2.0, "head": 2.0})


def test_a_kind_that_is_slower_than_the_others_is_found_by_the_ranks_that_have_it():
    found = found_for(embedding=1.0, block=1.0, head=8.0)
    assert found["head"] > 1.2 * found["block"]
    assert 0.8 < found["block"] < 1.3


def late(step_s, compute_s):
    recorder = recorded()
    recorder.epochs = recorder.epochs[:1]
    pods = recorder.steps[1]["demo-fast-1-0"].newest
    for step, record in pods.items():
        pods[step] = record.model_copy(update={"start_s": step * step_s, "end_s": step * step_s})
    recorder.computing = {1: compute_s}
    return recorder


def test_a_step_far_above_its_prediction_corrects_the_run_once_for_each_epoch():
    compute_s = computing(dict.fromkeys(("embedding", "block", "head"), 3.0))
    recorder = late(100.0, compute_s)
    found = correction_of(WORKLOAD, recorder, PROFILE, ())
    assert (found.epoch, found.step_s, found.changes) == (1, 100.0, True)
    assert found.factors["block"] == pytest.approx(3.0)
    assert correction_of(WORKLOAD, recorder, PROFILE, (found,)) is None


def test_a_step_as_predicted_or_ranks_that_have_not_measured_correct_nothing():
    compute_s = computing(dict.fromkeys(("embedding", "block", "head"), 1.0))
    assert correction_of(WORKLOAD, late(1e-6, compute_s), PROFILE, ()) is None
    assert correction_of(WORKLOAD, late(100.0, {0: compute_s[0]}), PROFILE, ()) is None


def test_a_step_that_waits_is_said_and_changes_no_times():
    compute_s = computing(dict.fromkeys(("embedding", "block", "head"), 1.0))
    found = correction_of(WORKLOAD, late(100.0, compute_s), PROFILE, ())
    assert not found.changes
    assert "waiting and sums take the rest" in str(found)


def test_the_corrected_profile_is_a_copy_with_longer_times(tmp_path):
    write_profile(tmp_path / "kept")
    before = load_profile("tiny-llama", tmp_path / "kept")
    made = corrected_profile(tmp_path / "kept", tmp_path / "own", "tiny-llama", {"block": 2.0})
    after = load_profile("tiny-llama", made)
    for key, cost in before.layers.items():
        times = 2.0 if key[0] == "block" else 1.0
        assert after.layers[key].forward_s == pytest.approx(times * cost.forward_s)
        assert after.layers[key].activation_bytes == cost.activation_bytes
    assert load_profile("tiny-llama", tmp_path / "kept").digest == before.digest


def test_the_run_keeps_what_it_found(tmp_path):
    write_correction(tmp_path, "a1", Correction(1, 20, 0.27, 0.128, {"block": 2.1}))
    (line,) = (tmp_path / "measurements" / "corrections.jsonl").read_text().splitlines()
    assert json.loads(line)["factors"] == {"block": 2.1}
    assert json.loads(line)["run"] == "a1"
