"""What a rank says when something goes wrong: the kind of the error, one sentence, and where it
stands; the state before the error stays."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from planner.plans.plan import Plan
from tests.distributed.pods import Pods, place, template
from worker.contract import Halt, RankExit, RankReport, Resume, TrainingSpec
from worker.data.dataset import Dataset
from worker.training_settings import Corpus, DataSpec

pytestmark = pytest.mark.slow
PEER_TIMEOUT_S, STUCK_S = 2.0, 3.0
MANY_STEPS = 100_000
BATCH = 8


@dataclass
class Jobs:
    """One agent, and a job of two stages on fresh GPUs of it for each test."""

    pods: Pods
    errors: Path
    epochs: int = 0

    def start(self, spec: TrainingSpec, error: str = "", erring: int = 1) -> tuple[int, int]:
        """The GPUs of the first and the last stage; the rank of the last one, or both, are to
        err."""
        first = 2 * self.epochs
        self.epochs += 1
        for gpu in range(first + 2 - erring, first + 2) if error else ():
            (self.errors / str(gpu)).write_text(error)
        plan = self.plan(first)
        directive = self.pods.directive(self.epochs, plan, spec, "a", reason="start")
        self.pods.send(directive)
        self.wait((first, first + 1), lambda rank: rank.pending_epoch == self.epochs)
        self.pods.send(directive.model_copy(update={"phase": "switch"}))
        return first, first + 1

    def plan(self, first: int) -> Plan:
        return place((template("1x3+1x3", 2, 4),), [("a", first), ("a", first + 1)])

    def wait(self, gpus: tuple[int, ...], claim: Callable[[RankReport], bool]) -> list[RankReport]:
        """The ranks on these GPUs, once the claim holds of each."""
        report = self.pods.pods["a"].wait(
            lambda report: set(gpus) <= {rank.slot for rank in report.ranks if claim(rank)}
        )
        return [rank for rank in report.ranks if rank.slot in gpus]

    def exits(self, gpu: int) -> list[RankExit]:
        """Of the ranks on a GPU, once there is one: the survivors may hear of its end before."""
        report = self.pods.pods["a"].wait(lambda report: any(e.slot == gpu for e in report.exits))
        return [gone for gone in report.exits if gone.slot == gpu]

    def log(self) -> str:
        return (self.pods.folder / "a.log").read_text()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    folder, errors = tmp_path_factory.mktemp("pods"), tmp_path_factory.mktemp("errors")
    pods = Pods(
        folder,
        rank_entry="tests.distributed.errors.erring:main",
        environment={"HEDDLE_TEST_ERRORS": str(errors)},
        options=("--peer-timeout-s", str(PEER_TIMEOUT_S), "--stuck-s", str(STUCK_S)),
    )
    try:
        pods.start("a", gpus=32)
        yield Jobs(pods, errors)
    finally:
        pods.close()


@pytest.fixture
def spec(corpus: Path) -> TrainingSpec:
    return TrainingSpec(
        model="tiny-llama",
        data=str(corpus),
        global_batch=BATCH,
        sequence_length=32,
        steps=MANY_STEPS,
        warmup_steps=0,
    )


def halted(rank: RankReport) -> bool:
    return rank.phase == "halted"


def test_a_loss_that_is_not_finite_stops_the_job_with_the_state_before_it(
    jobs: Jobs, spec: TrainingSpec
) -> None:
    ranks = jobs.wait(jobs.start(spec.model_copy(update={"learning_rate": 1e30})), halted)
    assert {rank.error_kind for rank in ranks} == {"numeric"}
    assert {(rank.step, rank.gradients_step, rank.norm_step) for rank in ranks} == {(1, None, 0)}
    assert re.fullmatch(
        r"step 1 has loss \S+ and gradient norm nan, which is not finite; "
        r"nothing of it was applied",
        ranks[0].error or "",
    )


def test_the_weights_before_that_step_are_written_where_the_job_has_an_output(
    jobs: Jobs, spec: TrainingSpec, tmp_path: Path
) -> None:
    asked = {"learning_rate": 1e30, "output": str(tmp_path)}
    gpus = jobs.start(spec.model_copy(update=asked))
    ranks = jobs.wait(gpus, lambda rank: rank.phase == "done")
    assert {(rank.step, rank.error_kind) for rank in ranks} == {(1, "numeric")}
    assert {(rank.error or "").partition(" has ")[0] for rank in ranks} == {"step 1"}
    from safetensors.torch import load_file

    held = load_file(tmp_path / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in held.values())
    assert (tmp_path / "config.json").is_file()


def test_or_is_skipped_and_counted_if_the_job_asks_for_that(
    jobs: Jobs, spec: TrainingSpec, tmp_path: Path
) -> None:
    asked = {"learning_rate": 1e30, "on_non_finite": "Skip", "steps": 4, "output": str(tmp_path)}
    jobs.wait(jobs.start(spec.model_copy(update=asked)), lambda rank: rank.phase == "done")
    report = jobs.pods.pods["a"].report()  # one that holds a NaN can be read
    losses = [record.loss for record in report.steps if record.epoch == jobs.epochs]
    assert [math.isfinite(loss) for loss in losses] == [True, False, False, False]
    from safetensors.torch import load_file

    for path in tmp_path.glob("*.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_file(path).values())


def test_memory_that_is_not_there_is_an_error_of_the_device(jobs: Jobs, spec: TrainingSpec) -> None:
    first, last = jobs.wait(jobs.start(spec, "run_out_of_memory"), halted)
    assert last.error_kind == "device"
    assert (last.error or "").startswith(
        "out of memory: can't allocate memory: you tried to allocate 134217728 bytes"
    )
    assert first.error_kind == "lost peer"
    assert {first.step, last.step} == {3}


def test_memory_that_is_not_there_for_the_next_engine_leaves_the_old_one_training(
    jobs: Jobs, spec: TrainingSpec
) -> None:
    gpus = jobs.start(spec)
    old, plan = jobs.epochs, jobs.plan(gpus[0])
    (jobs.errors / f"a.{gpus[1]}.build").write_text("run_out_of_memory")
    jobs.epochs += 1
    directive = jobs.pods.directive(
        jobs.epochs, plan, spec, "a", holds={("a", gpu): old for gpu in gpus}, layouts={old: plan}
    )
    jobs.pods.send(directive)
    (last,) = jobs.wait(gpus[1:], lambda rank: rank.failed_epoch == jobs.epochs)
    assert last.error_kind == "device"
    assert (last.error or "").startswith(f"cannot prepare epoch {jobs.epochs}: out of memory: ")
    jobs.pods.send(directive.model_copy(update={"phase": "abort"}))
    ranks = jobs.wait(gpus, lambda rank: rank.step > last.step + 3)
    assert {(rank.phase, rank.epoch) for rank in ranks} == {("training", old)}


def test_a_token_beyond_the_vocabulary_is_one_sentence(
    jobs: Jobs, spec: TrainingSpec, tmp_path: Path
) -> None:
    prefix, sample = tmp_path / "text", 2 * BATCH + 3
    for suffix in (".idx", ".bin"):
        shutil.copy(f"{spec.data.blend[0].path}{suffix}", f"{prefix}{suffix}")
    data = DataSpec(blend=(Corpus(path=str(prefix)),))
    start = Dataset(data, spec.sequence_length).place(spec.seed, sample).start
    tokens = np.memmap(f"{prefix}.bin", dtype="<u2", mode="r+")
    tokens[start + 5] = 999
    tokens.flush()
    ranks = jobs.wait(jobs.start(spec.model_copy(update={"data": data})), halted)
    assert {rank.error_kind for rank in ranks} <= {"other", "lost peer"}
    assert (
        f"sample {sample} of dataset '{prefix}' has token 999, the model's vocabulary ends at "
        "255; prepare the data with the model's tokenizer" in [rank.error for rank in ranks]
    )
    assert {rank.step for rank in ranks} == {2}


def test_any_other_error_is_told_apart_from_that_of_its_peers(
    jobs: Jobs, spec: TrainingSpec
) -> None:
    first, last = jobs.wait(jobs.start(spec, "raise_once"), halted)
    assert (last.error_kind, last.error) == ("other", "ZeroDivisionError: division by zero")
    assert (last.error_site or "").startswith("ZeroDivisionError in worker.")
    assert first.error_kind == "lost peer"


def test_a_job_whose_last_step_is_trained_is_done_whatever_was_agreed_at_its_boundary(
    jobs: Jobs, spec: TrainingSpec
) -> None:
    gpus = jobs.start(spec.model_copy(update={"steps": 4}), "ready", erring=2)
    ranks = jobs.wait(gpus, lambda rank: rank.phase == "done")
    assert {(rank.step, rank.error) for rank in ranks} == {(4, None)}


def test_a_resume_that_cannot_be_reached_is_refused(jobs: Jobs, spec: TrainingSpec) -> None:
    gpus = jobs.start(spec, "raise_once")
    jobs.wait(gpus, halted)
    old, plan = jobs.epochs, jobs.plan(gpus[0])
    jobs.epochs += 1
    directive = jobs.pods.directive(
        jobs.epochs, plan, spec, "a", reason="loss",
        holds={("a", gpu): old for gpu in gpus}, layouts={old: plan}, resume=Resume(step=12),
    )  # fmt: skip
    jobs.pods.send(directive)
    ranks = jobs.wait(gpus, lambda rank: rank.failed_epoch == jobs.epochs)
    assert {rank.error for rank in ranks} == {
        "the recovery asks for step 12, this rank is at 3 and cannot reach it"
    }
    assert {(rank.phase, rank.step, rank.epoch) for rank in ranks} == {("halted", 3, old)}


def test_a_rank_that_stands_still_is_killed_and_its_peers_halt(
    jobs: Jobs, spec: TrainingSpec
) -> None:
    first, last = jobs.start(spec)
    (victim,) = jobs.wait((last,), lambda rank: rank.step > 2)
    os.kill(victim.pid, signal.SIGSTOP)
    stopped_s = time.monotonic()
    (survivor,) = jobs.wait((first,), halted)
    assert PEER_TIMEOUT_S - 1 < time.monotonic() - stopped_s < PEER_TIMEOUT_S + 3
    assert survivor.error_kind == "lost peer"
    (gone,) = jobs.exits(last)
    assert gone.code == -signal.SIGKILL
    assert gone.error == (
        f"rank 1 (stage 1, GPU {last} of pod tiny-a-0) sent no heartbeat for 2 s and was killed"
    )


def test_a_rank_that_runs_in_a_circle_is_killed_after_its_stacks_are_logged(
    jobs: Jobs, spec: TrainingSpec
) -> None:
    first, last = jobs.start(spec, "run_in_a_circle")
    (survivor,) = jobs.wait((first,), halted)
    assert (survivor.error_kind, survivor.step) == ("lost peer", 3)
    (gone,) = jobs.exits(last)
    assert (gone.error or "").startswith(
        f"rank 1 (stage 1, GPU {last} of pod tiny-a-0) made no progress for "
    )
    assert "in run_in_a_circle" in jobs.log()
    assert "in _keep" in jobs.log(), "the thread of the mailbox is there too"


def test_a_rank_whose_device_is_silent_ends_once_its_world_is_broken_and_is_replaced(
    jobs: Jobs, spec: TrainingSpec
) -> None:
    first, last = jobs.start(spec, "fall_silent")
    (silent,) = jobs.wait((last,), lambda rank: rank.step == 3)
    halt = Halt(epoch=jobs.epochs, reason="the epoch made no progress")
    pod = jobs.pods.pods["a"]
    assert pod.request("PUT", "/v1/halt", halt.model_dump_json().encode())[0] == 200
    (survivor,) = jobs.wait((first,), halted)
    assert (survivor.error_kind, survivor.step) == ("lost peer", 3)
    (gone,) = jobs.exits(last)
    assert (gone.pid, gone.code, gone.error_kind) == (silent.pid, 1, "device")
    assert (gone.epoch, gone.step) == (jobs.epochs, 3)
    jobs.epochs += 1
    alone = place((template("1x6", 2, 4),), [("a", last)])
    jobs.pods.send(jobs.pods.directive(jobs.epochs, alone, spec, "a", reason="start"))
    (fresh,) = jobs.wait((last,), lambda rank: rank.pending_epoch == jobs.epochs)
    assert fresh.pid != gone.pid


def test_a_rank_that_waits_for_its_peers_is_not_taken_for_one(
    jobs: Jobs, spec: TrainingSpec
) -> None:
    """All of the above left no rank that was killed without a reason."""
    exits = jobs.pods.pods["a"].report().exits
    assert sorted(gone.code for gone in exits) == [-signal.SIGKILL, -signal.SIGKILL, 1]
