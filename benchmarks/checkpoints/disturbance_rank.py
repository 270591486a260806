"""One of two ranks that train with DeepSpeed's engine and save beside it, by turns.

Rank 0 decides after each step what comes next, and tells it by the store.  A step's seconds of the
processor are those of the whole process, from a boundary to the next: a copy and the writing count.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from planner.plans.plan import Plan
from planner.plans.ranks import RankMap
from worker.contract import TrainingSpec

MODES = ("paced", "unpaced")


class Row(NamedTuple):
    """A step of a rank.

    Attributes:
        turn: it belongs to.
        mode: of the save beside it: paced or unpaced; quiet without one.
        wall_s: from the boundary before to the end of the step.
        cpu_s: of the process, from the boundary before to the end of the step.
        peak_bytes: the most memory that the process held in that time.
    """

    turn: int
    mode: str
    wall_s: float
    cpu_s: float
    peak_bytes: int


def claims(rank: int, store: Any) -> dict[str, Any]:
    """{"rows": of each step; "saves": of each save} of one rank; the first steps warm up."""
    with contextlib.redirect_stdout(sys.stderr):  # where DeepSpeed's log goes from its import on
        wanted = json.loads(os.environ["WANTED"])
        return _Rank(rank, store, wanted).all_turns(wanted["turns"], wanted["quiet"])


class _Rank:
    """The engine of this process, and its saver."""

    def __init__(self, rank: int, store: Any, wanted: dict[str, Any]) -> None:
        from benchmarks.overhead.rank import built
        from worker.checkpoint.boxes import written
        from worker.checkpoint.clearing import Retention
        from worker.checkpoint.saver import Saver
        from worker.checkpoint.vaults.folder_vault import FolderVault
        from worker.control.host_memory import free_bytes
        from worker.state.held_state import HeldState
        from worker.state.still import StillState

        plan = Plan.from_json(wanted["plan"])
        spec = TrainingSpec.model_validate(wanted["spec"])
        model, seat = spec.model_shape(), RankMap.of(plan).seats[rank]
        self.rank, self.store = rank, store
        still = StillState()
        self.engine, shards = built(store, spec, plan, seat, still)
        self.held = HeldState(model)
        self.held.add_shards(seat, shards)
        pieces = written(model, plan)
        self.saver = Saver(
            open_=lambda: FolderVault(Path(wanted["folder"])),
            model=model,
            epoch=1,
            rank=rank,
            ranks=len(pieces),
            pieces=pieces[rank],
            kept=Retention(last=1),
            data_digest=lambda: "",
            still=still,
            free_bytes=free_bytes,
        )
        self.step, self.saves, self.rows = 0, [], list[Row]()

    def all_turns(self, turns: int, quiet: int) -> dict[str, Any]:
        """Quiet steps before, between and behind the saves of each turn."""
        self._quiet(-1, quiet)
        for turn in range(turns):
            for mode in MODES if turn % 2 else reversed(MODES):
                self._quiet(turn, quiet)
                self._saved(turn, mode)
            self._quiet(turn, quiet)
        return {
            "rows": [row for row in self.rows if row.turn >= 0],
            "saves": self.saves,
        }

    def _quiet(self, turn: int, steps: int) -> None:
        for _ in range(steps):
            self._train(turn, "quiet")

    def _saved(self, turn: int, mode: str) -> None:
        """A save, and the steps beside it until both ranks have written."""
        from benchmarks.checkpoints.rank import blank_state

        state = blank_state(self.step)
        self._train(
            turn,
            mode,
            lambda: self.saver.begin(state, self.held.read, is_paced=mode == "paced"),
        )
        for _ in self._until_whole():
            self._train(turn, mode)
        assert self.saver.wait(60.0)
        (record,) = self.saver.take_records()
        assert record.outcome == "saved", record
        copied = {"copied_bytes": self.saver.staged_bytes}
        self.saves.append({"mode": mode, **copied, **record.model_dump(mode="json")})

    def _until_whole(self) -> Iterator[None]:
        """Once for each step that begins while the checkpoint is not whole, as rank 0 sees it."""
        while True:
            key = f"goes-on/{self.step}"
            if self.rank == 0:
                self.store.set(key, str(int(self.saver.is_running)))
            if not int(self.store.get(key)):
                return
            yield

    def _train(self, turn: int, mode: str, first: Any = None) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        cpu_s, began_s = time.process_time(), time.monotonic()
        if first is not None:
            assert first(), "no save began"
        self.engine.train_step(None)
        self.rows.append(
            Row(
                turn,
                mode,
                time.monotonic() - began_s,
                time.process_time() - cpu_s,
                _most_bytes(),
            )
        )
        self.step += 1


def _most_bytes() -> int:
    fields = Path("/proc/self/status").read_text().split()
    return 1024 * int(fields[fields.index("VmHWM:") + 1])
