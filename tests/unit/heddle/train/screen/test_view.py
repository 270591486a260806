"""heddle/train/screen/view.py: what the screen shows of a known run."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from heddle.train.recorder import Recorder
from heddle.train.screen.view import KEPT_LINES, LiveView, measured_line
from heddle_operator.state.epoch_record import EpochRecord
from planner.cost.evaluate import cost_of
from tests.fakes.cluster import FakeCluster
from tests.unit.heddle.train.recorded import (
    FACTS,
    FIRST,
    JOB,
    PROFILE,
    SECOND,
    THREE,
    TWO,
    a_run,
)
from worker.contract import StepRecord


@pytest.fixture
def run(tmp_path):
    return a_run(tmp_path)


def screen(view, width=120, **options):
    file = io.StringIO()
    Console(width=width, file=file, **options).print(view)
    return file.getvalue()


def test_every_gpu_is_shown_with_the_layers_that_it_holds_and_held(run):
    lines = screen(LiveView(run)).splitlines()
    rows = {name: next(line for line in lines if name in line) for name in run.cluster.nodes}
    assert "[E1-3]" in rows["fast-1"]
    assert "[4-6H]" in rows["fast-2"]
    assert "[E1-6H 1/2]" in rows["fast-3"]
    assert "[E1-6H 2/2]" in rows["fast-3"]
    assert "demo-fast" in rows["fast-1"]


def test_a_gpu_without_work_says_what_it_held(run):
    """Back on the first plan: nothing of it is left on the third node."""
    run.recorder.epochs = (
        EpochRecord(epoch=1, plan=SECOND, reason="start", composition=THREE, adopted_s=0.0),
        EpochRecord(epoch=2, plan=FIRST, reason="drain", composition=TWO, adopted_s=1.0),
    )
    text = screen(LiveView(run))
    assert "[idle, was E1-6H 1/2]" in text
    assert "[idle, was E1-6H 2/2]" in text
    assert "[E1-3]" in text


def test_an_idle_gpu_has_its_reason(run):
    run.recorder.epochs = (
        EpochRecord(epoch=1, plan=FIRST, reason="start", composition=TWO, adopted_s=0.0),
    )
    run.recorder.message = "the planner searches a plan for 4 GPUs on 3 nodes"
    assert "idle: the planner searches a plan for 4 GPUs on 3 nodes" in screen(LiveView(run))
    run.recorder.epochs = (
        EpochRecord(epoch=1, plan=FIRST, reason="start", composition=THREE, adopted_s=0.0),
    )
    assert "idle: no plan that was found is faster with them" in screen(LiveView(run))
    run.recorder.epochs = (
        EpochRecord(epoch=2, plan=SECOND, reason="join", composition=THREE, adopted_s=0.0),
    )
    assert "idle:" not in screen(LiveView(run))


def test_a_node_with_a_notice_is_leaving(run):
    run.recorder.epochs = run.recorder.epochs[:1]
    run.cluster = FakeCluster("demo", JOB.workload)
    run.cluster.add_node("fast-1")
    run.cluster.add_node("fast-2")
    run.cluster.drain("fast-2")
    lines = screen(LiveView(run)).splitlines()
    assert ["leaving" in line for line in lines if line.startswith("│ fast-")] == [False, True]


def test_moved_layers_are_green_and_others_are_not(run):
    text = screen(LiveView(run), force_terminal=True, color_system="standard")
    assert "\x1b[32m[E1-6H 1/2]" in text
    assert "\x1b[37m[E1-3]" in text


def test_progress_throughput_and_loss_are_told(run):
    run.reference_losses = FACTS.reference_losses
    text = screen(LiveView(run))
    assert "Heddle  step 10/10  Complete" in text
    assert "epoch 2 (join)  80.0 samples/s measured" in text  # 20 samples in a quarter second
    predicted = cost_of(SECOND, JOB.workload, THREE, PROFILE).throughput_samples_s
    assert f"{predicted:.1f} predicted" in text
    loss, reference = (
        next(line for line in text.splitlines() if line.startswith(name))
        for name in ("loss", "reference")
    )
    assert loss.split()[1] == "4.10"
    curve = loss.split()[2]
    assert (curve[0], curve[-1], len(curve)) == ("█", "▁", 10)
    assert reference.split()[1] == curve


def test_stalls_and_refusals_have_a_line_each(run):
    text = screen(LiveView(run), width=200)
    assert "epoch 2 (join): stall 250 ms = " in text
    assert "2 GPUs: the plan is kept: a gain of +0.8 % does not pay" in text


def test_before_the_first_step_the_reason_is_shown(tmp_path):
    run = a_run(tmp_path)
    run.recorder = Recorder(message="waiting for demo-fast-1-0")
    text = screen(LiveView(run))
    assert "starting: waiting for demo-fast-1-0" in text
    assert text.count("[idle]") == 4
    assert "idle: no step is trained yet: waiting for demo-fast-1-0" in text


def test_only_the_last_lines_of_the_log_are_kept(run):
    view = LiveView(run, "q quits")
    for number in range(KEPT_LINES + 3):
        view.say(f"line {number}.")
    text = screen(view)
    assert "line 2." not in text
    assert all(f"line {number}." in text for number in range(3, KEPT_LINES + 3))
    assert text.strip().endswith("q quits")


@pytest.mark.parametrize("width", [80, 40, 20])
def test_no_line_is_wider_than_the_terminal(run, width):
    view = LiveView(run, "a add  d drain  k kill  q quit")
    view.say("step 5: " + "a long story " * 20)
    lines = screen(view, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert any(line.startswith("step 5: a lo") for line in lines)


def test_without_colour_there_is_not_one_escape(run):
    assert "\x1b[" not in screen(LiveView(run), force_terminal=False)
    plain = screen(LiveView(run), force_terminal=True, no_color=True, color_system="standard")
    assert "\x1b[32m" not in plain


def test_a_step_says_how_fast_it_was_and_where_its_time_went():
    step = StepRecord(
        epoch=1, step=4, loss=1.0, gradient_norm=1.0, start_s=1.0, end_s=1.5, tokens=2560,
        mfu=0.25, learning_rate=3e-4, forward_s=0.1, backward_s=0.2, waiting_s=0.05, sync_s=0.08,
        memory_bytes=600_000_000,
    )  # fmt: skip
    assert measured_line(step) == (
        "5,120 tokens/s  MFU 25.0 %  ms forward 100 backward 200 waiting 50 sync 80  "
        "rate 0.0003  0.60 GB a rank"
    )
