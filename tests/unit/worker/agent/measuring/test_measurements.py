"""worker/agent/measuring/measurements.py: each step is a line and a point of TensorBoard."""

from __future__ import annotations

import json
import resource
import signal
import sys
import threading
from types import SimpleNamespace

import pytest

from planner.cluster.gpu_types import find_gpu
from planner.model.flops import flops_per_token
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from tests.unit.worker.changes import MODEL, SPEC, change, plan
from worker.agent.measuring.measurements import (
    FOLDER,
    Measurements,
    ModelUse,
    append_whole,
    peak_flops_s,
    row_of,
)
from worker.agent.records import Records
from worker.step_record import EvaluationRecord, StepRecord

PLAN = plan("1x1+1x1")
TRAINING = SPEC.model_copy(update={"shape": MODEL.to_json()})
DIRECTIVE = change(None, PLAN, epoch=1).model_copy(update={"training": TRAINING})


def record(step=0, epoch=1, **changes):
    fields = {"loss": 2.0, "gradient_norm": 1.0, "start_s": 10.0, "end_s": 10.5, "tokens": 1000}
    return StepRecord(epoch=epoch, step=step, **{**fields, **changes})


def test_a_line_has_the_fields_and_what_follows_from_them():
    row = row_of(record(learning_rate=1e-3), 5.0)
    assert (row["step_s"], row["tokens_per_s"], row["time"]) == (0.5, 2000.0, 5.0)
    assert row["learning_rate"] == 1e-3
    assert "mfu" not in row
    assert json.loads(json.dumps(row_of(record(loss=float("nan")), 5.0)))["loss"] == "NaN"


def test_the_model_uses_a_share_of_what_all_gpus_of_the_plan_can_do():
    flops = flops_per_token(MODEL, SPEC.sequence_length)
    found = ModelUse(own_peak=1e9).measured(record(), DIRECTIVE)
    assert found.mfu == pytest.approx(flops * 1000 / (0.5 * PLAN.gpus * 1e9))


def test_without_a_peak_or_for_another_epoch_nothing_is_claimed():
    assert ModelUse(None).measured(record(), DIRECTIVE).mfu is None
    assert ModelUse(1e9).measured(record(epoch=7), DIRECTIVE).mfu is None
    assert ModelUse(1e9).measured(record(tokens=None), DIRECTIVE).mfu is None
    assert ModelUse(1e9).measured(record(), None).mfu is None


def test_an_emulated_gpu_is_not_used_so_nothing_is_claimed():
    assert ModelUse(1e9, emulates=True).measured(record(), DIRECTIVE).mfu is None


def test_a_type_with_a_data_sheet_has_the_peak_of_the_precision():
    stages = FilledTemplate((Stage(gpu_type="h100", tp=2, layers=2),), 1, (1,))
    found, h100 = Plan((stages,), (PlacedStage(0, 0, 0, "a", (0, 1)),)), find_gpu("h100")
    assert peak_flops_s(found, None, is_half=True) == 2 * h100.matrix_flops_s
    assert peak_flops_s(found, None, is_half=False) == 2 * h100.full_flops_s


def test_each_epoch_has_its_file_and_tensorboard_has_one_folder(tmp_path):
    files = Measurements(tmp_path, Records())
    for epoch, step in ((1, 0), (1, 1), (2, 2)):
        files.add(record(step, epoch))
    held_out = EvaluationRecord(epoch=2, step=3, loss=2.5, samples=4, start_s=1.0, end_s=2.0)
    files.add(held_out)
    files.close(patience_s=30)
    folder = tmp_path / FOLDER
    row = json.loads((folder / "evaluations-epoch-0002.jsonl").read_text())
    assert (row["held_out_loss"], row["step"]) == (2.5, 3)
    lines = [
        [json.loads(line)["step"] for line in (folder / name).read_text().splitlines()]
        for name in ("steps-epoch-0001.jsonl", "steps-epoch-0002.jsonl")
    ]
    assert lines == [[0, 1], [2]]
    (events,) = folder.glob("events.out.tfevents.*")
    content = events.read_bytes()
    assert b"tokens_per_s" in content
    assert b"held_out_loss" in content


def names_and_steps(folder):
    """{name of a file of lines: (epoch, step) of each line}."""
    found = {}
    for path in sorted((folder / FOLDER).glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        found[path.name] = [(row["epoch"], row["step"]) for row in rows]
    return found


@pytest.mark.parametrize("has_died_at", [None, 1, 2])
def test_what_a_lost_rank_0_did_not_write_is_in_the_file_of_the_next_epoch(tmp_path, has_died_at):
    """Its pod died before it wrote the last steps and an evaluation; another pod knows them."""
    held_out = EvaluationRecord(epoch=1, step=3, loss=2.5, samples=4, start_s=1.0, end_s=2.0)
    steps, told = [record(step) for step in range(3)], Records()
    if has_died_at is not None:
        first = Measurements(tmp_path, Records(), "one")
        for step in steps[:has_died_at]:
            first.add(step)
        first.close(patience_s=30)
    for step in steps:
        told.add_step(step)
    told.add_evaluation(held_out)
    for epoch in (2, 3):  # epoch 3 has all of it in two files
        files = Measurements(tmp_path, told, "one")
        for step in (2 * epoch - 1, 2 * epoch):
            files.add(record(step, epoch))
        files.close(patience_s=30)
    lost = [(1, step) for step in range(has_died_at or 0, 3)]
    assert names_and_steps(tmp_path) == {
        **({"steps-epoch-0001.jsonl": [(1, step) for step in range(has_died_at)]}
           if has_died_at else {}),
        "steps-epoch-0002.jsonl": [*lost, (2, 3), (2, 4)],
        "steps-epoch-0003.jsonl": [(3, 5), (3, 6)],
        "evaluations-epoch-0002.jsonl": [(1, 3)],
    }  # fmt: skip


def test_lines_of_another_run_in_the_folder_are_not_those_of_this_one(tmp_path):
    other, told = Measurements(tmp_path, Records(), "another"), Records()
    other.add(record(9))
    other.close(patience_s=30)
    told.add_step(record(0))
    files = Measurements(tmp_path, told, "one")
    files.add(record(1, 2))
    files.close(patience_s=30)
    assert names_and_steps(tmp_path)["steps-epoch-0002.jsonl"] == [(1, 0), (2, 1)]


@pytest.mark.parametrize("found", ["", "[]", "{}", '{"run": "one"}', "torn {"])
def test_what_else_stands_in_the_file_of_an_earlier_epoch_is_no_line_of_it(tmp_path, found):
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "steps-epoch-0001.jsonl").write_text(found)
    told = Records()
    told.add_step(record(0))
    files = Measurements(tmp_path, told, "one")
    files.add(record(1, 2))
    files.close(patience_s=30)
    lines = (tmp_path / FOLDER / "steps-epoch-0002.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1]


def test_a_disk_that_refuses_costs_the_files_and_a_line_in_the_log(tmp_path, caplog):
    (tmp_path / FOLDER).write_text("no folder")
    files = Measurements(tmp_path, Records())
    files.add(record())
    files.close(patience_s=30)
    assert "1 of 1 lines of measurements were not written" in caplog.text


@pytest.mark.parametrize("torn", [b"", b'{"a": 1}\n', b'{"a": 1}\n{"b": ', b'{"b": '])
def test_a_line_follows_whole_lines_whatever_an_earlier_write_has_left(tmp_path, torn):
    path = tmp_path / "lines"
    path.write_bytes(torn)
    append_whole(path, b'{"c": 2}\n')
    assert path.read_bytes() == torn[: torn.rfind(b"\n") + 1] + b'{"c": 2}\n'


def test_a_line_that_does_not_fit_leaves_nothing_of_itself(tmp_path):
    path, limit = tmp_path / "lines", resource.getrlimit(resource.RLIMIT_FSIZE)
    append_whole(path, b"1234567\n")
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12, limit[1]))
    try:
        with pytest.raises(OSError, match=r"No space|too large"):
            append_whole(path, b"2345678\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, ignored)
    assert path.read_bytes() == b"1234567\n"


def steps_in(tmp_path):
    lines = (tmp_path / FOLDER / "steps-epoch-0001.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_a_run_that_ends_before_tensorboard_is_imported_leaves_its_lines(
    tmp_path, monkeypatch, caplog
):
    imported = threading.Event()

    def writer(*_, **__):
        imported.wait()
        raise OSError("nobody is here any more")

    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=writer))
    files = Measurements(tmp_path, Records())
    for step in range(3):
        files.add(record(step))
    files.close(patience_s=30, board_patience_s=0.01)
    assert steps_in(tmp_path) == [0, 1, 2]
    assert "3 of 3 points for TensorBoard were not written" in caplog.text
    imported.set()
    for thread in threading.enumerate():
        if thread.name == "points for TensorBoard":
            thread.join()  # what it logs belongs to this test


def test_the_end_waits_for_a_slow_disk_as_long_as_it_takes_rows(tmp_path, monkeypatch, caplog):
    taken = []

    class SlowWriter:
        def __init__(self, *_, **__):
            pass

        def add_scalar(self, name, *_, **__):
            if name == "loss":
                threading.Event().wait(0.02)
                taken.append(name)

        def close(self):
            pass

    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=SlowWriter))
    files = Measurements(tmp_path, Records())
    for step in range(50):
        files.add(record(step))
    files.close(patience_s=30, board_patience_s=0.5)
    assert len(taken) == 50
    assert "not written" not in caplog.text
