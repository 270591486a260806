"""Histories of saves in several epochs, with faults in the calls of some ranks.

Ranks are threads that run one at a time: each until it ends or stalls.  A stalled one goes on
later, when newer epochs have saved, or never learns that they did.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from itertools import pairwise

import pytest

from planner.model.experts import Experts
from planner.model.shape import ModelShape
from planner.model.tensors import model_tensors
from planner.plans.pieces import Piece
from planner.plans.plan import Plan
from tests.builders import tiled
from tests.checkpoints import State, about, state
from tests.equal_tensors import are_equal
from tests.fakes.faulty_vault import Died, Fault, FaultyVault
from tests.fakes.vault import MemoryVault
from worker.checkpoint.attempts import Attempt, outdated
from worker.checkpoint.boxes import written
from worker.checkpoint.load import Checkpoint, Newest, newest
from worker.checkpoint.manifest import InvalidManifest, Manifest
from worker.checkpoint.save import NotYet, commit, save_part
from worker.checkpoint.vaults.vault import Vault, VaultFailed

DENSE = ModelShape(
    name="dense", layers=2, hidden=4, heads=2, kv_heads=2, ffn=4, vocab=6, tied_head=True
)
ROUTED = ModelShape(
    name="routed",
    layers=2,
    hidden=4,
    heads=2,
    kv_heads=2,
    ffn=4,
    vocab=6,
    experts=Experts(count=4, per_token=2, ffn=4, shared=1, dense_blocks=1),
)
STATES_OF_AN_EPOCH = 1000  # more than its steps: each attempt has numbers of its own
TRIES = 3  # of a commit, before its rank gives up waiting for the others
ENDS = (VaultFailed, InvalidManifest, Died)


class Process:
    """Work in a thread of its own, which runs only while `go_on` waits for it."""

    def __init__(self) -> None:
        self.is_over = False
        self._failure: Exception | None = None
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)

    def start(self, work: Callable[[], None]) -> None:
        """Begin, and wait until it ends or stalls."""
        threading.Thread(target=self._run, args=(work,), daemon=True).start()
        self.go_on()

    def go_on(self) -> None:
        """Wait until it ends or stalls again."""
        self._turn.release()
        self._back.acquire()
        if self._failure is not None:
            raise self._failure

    def stall(self) -> None:
        """Called by the work: wait for the next `go_on`."""
        self._back.release()
        self._turn.acquire()

    def _run(self, work: Callable[[], None]) -> None:
        self._turn.acquire()
        try:
            work()
        except ENDS:
            pass
        except Exception as failure:  # no outcome of a save: a defect
            self._failure = failure
        self.is_over = True
        self._back.release()


class History:
    """A random model and store, the saves so far, and the laws that hold after each.

    Attributes:
        fired: (kind, operation) of the faults that met their call.
        store: all objects, without any fault.
    """

    def __init__(self, seed: int) -> None:
        self.fired: set[tuple[str, str]] = set()
        self.store = MemoryVault()
        self.choose = random.Random(seed)
        self.model = self.choose.choice((DENSE, ROUTED))
        self.keep_last = self.choose.randint(1, 3)
        self._processes: list[Process] = []
        self._views: list[tuple[FaultyVault, Fault]] = []
        self._began: list[Attempt] = []
        self._whole: dict[Attempt, dict[str, bytes]] = {}
        self._late: set[Attempt] = set()
        self._checked: dict[str, bytes] = {}
        self._waiting: set[Process] = set()

    def run(self) -> None:
        """Some epochs, each with a few saves; then one without a fault."""
        epochs, step = self.choose.randint(2, 4), 0
        plan = random_plan(self.choose, self.model)
        for epoch in range(1, epochs + 1):
            step = self.choose.randrange(0, step + 10, 10)  # an older one after a loss
            if self.choose.random() < 0.6:
                plan = random_plan(self.choose, self.model)
            for _ in range(self.choose.randint(1, 3)):
                step += 10
                self._save(Attempt(epoch, step), plan, self.choose.choice((0, 1, 1, 2)))
                if self.choose.random() < 0.5:
                    self._resume(self.choose.sample(self._stalled, min(1, len(self._stalled))))
        for _ in range(TRIES + 1):
            self._resume(self.choose.sample(self._stalled, len(self._stalled)))
        assert not self._stalled
        self._load_by_a_faulty_view()
        last = Attempt(epochs + 1, step)
        self._save(last, plan, faults=0)
        assert newest(self.store).attempt == last
        self._is_clean()
        self._refuses_a_changed_byte(last)
        self.fired |= {fault[:2] for view, fault in self._views if view.fired}

    @property
    def _stalled(self) -> list[Process]:
        return [process for process in self._processes if not process.is_over]

    def _resume(self, processes: list[Process]) -> None:
        for process in processes:
            process.go_on()
            self.check()

    def _view(self, fault: Fault | None, process: Process) -> FaultyVault:
        view = FaultyVault(self.store, fault, process.stall)
        if fault is not None:
            self._views.append((view, fault))
        return view

    def _save(self, attempt: Attempt, plan: Plan, faults: int) -> None:
        """All ranks, in any order; so many meet a fault; another process may commit too."""
        choose = self.choose
        pieces = written(self.model, plan)
        is_faulty = faults > 0
        faulty = choose.sample(list(pieces), min(faults, len(pieces)))
        if is_faulty and choose.random() < 0.5:
            faulty.append(0)  # its calls are of every kind
        self._began.append(attempt)
        for rank in choose.sample(list(pieces), len(pieces)):
            process = Process()
            fault = random_fault(choose, rank, len(pieces)) if rank in faulty else None
            view = self._view(fault, process)

            def part(view=view, rank=rank, process=process) -> None:
                held = self.state(attempt)
                save_part(view, attempt, rank, self.model, pieces[rank], held.chunks)
                if rank == 0:
                    self._finish(process, view, attempt, len(pieces), "data")

            self._begin(process, part)
        if is_faulty and choose.random() < 0.2:
            process = Process()
            view = self._view(choose.choice((None, Fault("stalls", "commit", 0))), process)
            self._begin(
                process, lambda: self._finish(process, view, attempt, len(pieces), "another")
            )
        for process in [one for one in self._stalled if one in self._waiting]:
            process.go_on()  # all parts are there that will be
            self.check()

    def _begin(self, process: Process, work: Callable[[], None]) -> None:
        self._processes.append(process)
        process.start(work)
        self.check()

    def _finish(
        self, process: Process, vault: Vault, attempt: Attempt, ranks: int, data_digest: str
    ) -> None:
        """Phase two and retention, as rank 0 does them."""
        known = about(self.model, attempt.step)
        for _ in range(TRIES):
            try:
                commit(vault, attempt, ranks, self.model, known, data_digest)
            except NotYet:
                self._waiting.add(process)
                process.stall()
                self._waiting.discard(process)
                continue
            for name in outdated(vault.names(), self.keep_last):
                vault.remove(name)
            return

    def state(self, attempt: Attempt) -> State:
        """The state of an attempt: other numbers than any other attempt's."""
        return state(self.model, STATES_OF_AN_EPOCH * attempt.epoch + attempt.step)

    # -- laws

    def check(self) -> None:
        """What a manifest names is whole, exact and never replaced; the newest counts."""
        objects = self.store.objects
        if objects == self._checked:
            return
        self._checked = dict(objects)
        there = sorted({one for one in self._began if one.manifest in objects})
        for attempt in there:
            if attempt in self._whole:
                assert self._whole[attempt].items() <= objects.items()
                continue
            manifest = Manifest.from_bytes(objects[attempt.manifest])
            self._gives_out_only_its_state(self.store, attempt, manifest)
            names = [attempt.manifest, *map(attempt.name, manifest.files)]
            if any(other > attempt for other in self._whole):
                self._late.add(attempt)  # retention may have begun to take it away
            self._whole[attempt] = {name: objects[name] for name in names}
        for attempt in self._whole.keys() - self._late:
            newer = sum(other > attempt for other in self._whole)
            assert attempt in there or newer >= self.keep_last
        found = newest(self.store)
        if there:
            assert found.attempt == max(there)
            assert not found.refused
        else:
            assert found == ()

    def _is_clean(self) -> None:
        """After a save without a fault nothing is left but complete attempts."""
        there = {name.split("/")[0] for name in self.store.objects}
        whole = sorted(one for one in self._began if one.manifest in self.store.objects)
        assert there == {str(attempt) for attempt in whole[-self.keep_last :]}

    def _gives_out_only_its_state(self, vault: Vault, attempt: Attempt, known: Manifest) -> None:
        """Raises InvalidManifest or VaultFailed where it gives nothing out."""
        assert known.step == attempt.step
        checkpoint, truth = Checkpoint(vault, attempt, known, self.model), self.state(attempt)
        for tensor in model_tensors(self.model):
            box = Piece(tensor.name, 0, tensor.rows, 0, max(1, tensor.experts))
            assert are_equal(checkpoint.read(box), truth.read(box))

    def _load_by_a_faulty_view(self) -> None:
        """A load through a store that lies or fails gives out a true state, or nothing."""
        for _ in range(3):
            kind = self.choose.choice(("lies", "full", "unanswered"))
            operation, most = self.choose.choice((("read", 30), ("read", 2), ("names", 1)))
            fault = Fault(kind, operation, self.choose.randrange(most), self.choose.random())
            view = self._view(fault, Process())
            try:
                found = newest(view)
                if isinstance(found, Newest):
                    self._gives_out_only_its_state(view, found.attempt, found.manifest)
            except (InvalidManifest, VaultFailed):
                assert view.fired

    def _refuses_a_changed_byte(self, attempt: Attempt) -> None:
        manifest = Manifest.from_bytes(self.store.objects[attempt.manifest])
        saved = self.choose.choice(manifest.boxes)
        name = attempt.name(saved.file)
        content = bytearray(self.store.objects[name])
        content[self.choose.randrange(saved.start, saved.start + saved.num_bytes)] ^= 1
        self.store.objects[name] = bytes(content)
        with pytest.raises(InvalidManifest) as refusal:
            Checkpoint(self.store, attempt, manifest, self.model).read(saved.box)
        assert refusal.value.code == "damaged"


def random_plan(choose: random.Random, model: ModelShape) -> Plan:
    """One or two stages of TP 1 or 2 in one or two replicas; experts in any tiling."""
    edges = [0, *choose.choice(((), (1,))), model.layers]
    tp, replicas = choose.choice((1, 2)), choose.choice((1, 2))
    text = " ".join(f"{tp}x{stop - start}" for start, stop in pairwise(edges))
    tilings = [(1, 0)]
    if model.experts is not None:
        several = ((1, 2), (2, 1), (2, 2), (4, 1))
        tilings += [one for one in several if tp * replicas % (one[0] * one[1]) == 0]
    ep, etp = choose.choice(tilings)
    return tiled(text, ep=ep, etp=etp, replicas=replicas)


def random_fault(choose: random.Random, rank: int, ranks: int) -> Fault:
    """At any call of a rank; rank 0 commits and removes too."""
    # About how many calls of each operation a save has: files and record, records and files.
    calls = {"put": 5, "commit": 1, "read": 5 * ranks, "names": 2, "remove": 12}
    operation = choose.choice(list(calls)) if rank == 0 else "put"
    kinds = ["full", "unanswered", "dies", "dies after", "stalls", "stalls"]
    if operation in ("read", "names"):
        kinds += ["lies"] * 3
    share = choose.choice((0.0, 1.0, choose.random(), choose.random() ** 4))
    return Fault(choose.choice(kinds), operation, choose.randrange(calls[operation]), share)
