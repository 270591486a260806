"""What a reader of the still window reads is the state of its boundary, whatever training does."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plans.pieces import shard
from planner.plans.ranks import RankMap
from planner.plans.state_rule import PARTS
from tests.builders import MOE, moe_plans, tiled
from tests.laws.migration.changes import cut, whole_state
from worker.checkpoint.boxes import by_file, written
from worker.engine.seam import Progress
from worker.model import boxes as boxes_module
from worker.model.boxes import chunks_of
from worker.state.held_state import HeldState, find_tensor
from worker.state.still import Dropped, StillState

LIMIT_S = 30.0
ROOM = 1 << 40


class Training:
    """A rank that updates its tensors one by one, in order, and tells the window."""

    def __init__(self, plan):
        self.seat, self.still = RankMap.of(plan).seats[0], StillState()
        state = whole_state(MOE)
        self.shards = {
            name: tuple(part.clone() for part in cut(state, shard(tensor, self.seat), MOE))
            for name, tensor in ((name, find_tensor(MOE, name)) for name in state)
            if tensor.layer in self.seat.layers
        }
        self.pieces = [box for file in by_file(written(MOE, plan)[0]) for box in file]
        self.step, self.updated = 0, 0

    @property
    def stands(self):
        return not self.updated

    def update(self):
        """The next tensor; after the last one a boundary."""
        name = list(self.shards)[self.updated]
        self.still.before_update(name)
        for part in self.shards[name]:
            part.add_(1.0)
        self.updated = (self.updated + 1) % len(self.shards)
        if self.stands:
            self.step += 1
            self.still.boundary(Progress(step=self.step))

    def adopt(self, kept):
        """A new engine, on some of the same tensors and on others of its own."""
        self.shards = {
            name: parts if index in kept else tuple(part.clone() for part in parts)
            for index, (name, parts) in enumerate(self.shards.items())
        }

    def read(self, free=ROOM):
        held = HeldState(MOE)
        held.add_shards(self.seat, self.shards)
        size = sum(p.nbytes for box in self.pieces for p in held.read(box))
        return Reader(self.still.read(self.step, self.pieces, held.read, size, lambda: free), held)


class Reader:
    """Reads chunk by chunk, and knows the numbers of its boundary."""

    def __init__(self, reading, held):
        self.reading = reading
        self.truth = {box: [part.clone() for part in held.read(box)] for box in reading._boxes}
        self.found = {box: [[] for _ in PARTS] for box in self.truth}
        self._chunks = self._each()

    def _each(self):
        for box in self.truth:
            for index, part in enumerate(self.reading.chunks(box)):
                for chunk in part:
                    self.found[box][index].append(chunk.flatten().clone())
                    yield

    def take(self):
        """Whether there was another chunk."""
        return next(self._chunks, self) is not self

    def drain(self):
        """Take what is left."""
        while self.take():
            pass

    def is_right(self):
        return all(
            torch.cat(chunks).equal(part.flatten())
            for box, parts in self.truth.items()
            for chunks, part in zip(self.found[box], parts, strict=True)
        )


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """So that every box is several chunks."""
    monkeypatch.setattr(boxes_module, "CHUNK_BYTES", 48)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(4, 100))
def test_chunks_hold_a_tensor_in_order_and_none_is_larger_than_may_be(shape, most):
    numbers = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boxes_module, "CHUNK_BYTES", most)
        chunks = list(chunks_of(numbers))
    assert torch.cat([chunk.flatten() for chunk in chunks]).equal(numbers.flatten())
    assert all(chunk.nbytes <= most for chunk in chunks)


class History:
    """What happens to a rank and the readers of its state, in any order."""

    def __init__(self, plan, draw):
        self.training, self.draw, self.readers = Training(plan), draw, []

    def act(self):
        possible = [self.training.update]
        if self.training.stands:
            possible += [self.read, self.adopt, self.update_all]
        if self.readers:
            possible += [self.take, self.take, self.stage, self.close]
        self.draw(st.sampled_from(possible))()

    def update_all(self):
        for _ in self.training.shards:
            self.training.update()

    def read(self):
        self.readers.append(self.training.read())

    def adopt(self):
        self.training.adopt(self.draw(st.sets(st.integers(0, len(self.training.shards)))))

    def take(self):
        self.draw(st.sampled_from(self.readers)).take()

    def stage(self):
        assert self.draw(st.sampled_from(self.readers)).reading.stage()

    def close(self):
        self.training.still.end(self.readers.pop().reading)


@settings(deadline=None)
@given(moe_plans(), st.data())
def test_a_reader_has_the_state_of_its_boundary_bit_for_bit(plan, data):
    history = History(plan, data.draw)
    for _ in range(data.draw(st.integers(1, 60))):
        history.act()
    for reader in history.readers:
        reader.drain()
        assert reader.is_right()
        share = sum(part.nbytes for parts in reader.truth.values() for part in parts)
        assert reader.reading.staged_bytes <= share
        assert reader.reading.live_bytes == 0
        history.training.still.end(reader.reading)
    assert history.training.still.staging_bytes == 0


@given(moe_plans(), st.integers(0, 50))
def test_an_update_without_memory_drops_the_reading_and_goes_on(plan, taken):
    training = Training(plan)
    reader = training.read(free=0)
    for _ in range(taken):
        reader.take()
    is_done = not reader.reading.live_bytes
    assert reader.reading.stage() == is_done
    for _ in training.shards:
        training.update()
    assert training.step == 1
    assert reader.reading.staged_bytes == 0
    if not is_done:
        with pytest.raises(Dropped, match="no memory for a copy"):
            reader.drain()


def test_what_is_read_before_the_update_is_not_copied():
    training = Training(tiled("1x3"))
    reader = training.read()
    while reader.take():
        pass
    for _ in training.shards:
        training.update()
    assert reader.reading.staged_bytes == 0
    assert reader.is_right()


def test_a_state_in_the_middle_of_an_update_is_not_read():
    training = Training(tiled("1x3"))
    training.update()
    with pytest.raises(RuntimeError, match="not that of step 0"):
        training.read()


def test_a_state_of_another_step_is_not_read():
    training = Training(tiled("1x3"))
    for _ in training.shards:
        training.update()
    training.step = 2
    with pytest.raises(RuntimeError, match="not that of step 2"):
        training.read()


class Slow(torch.Tensor):
    """A tensor whose numbers are copied only once it may."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.copy_ and any(isinstance(arg, Slow) for arg in args):
            ENTERED.set()
            assert GO.wait(LIMIT_S)
        return super().__torch_function__(func, types, args, kwargs or {})


ENTERED, GO = threading.Event(), threading.Event()


def box_of(name):
    return shard(find_tensor(MOE, name), RankMap.of(tiled("1x3")).seats[0])


@pytest.mark.parametrize("end", ["no memory", "given up"])
def test_a_chunk_that_is_copied_while_the_reading_ends_is_not_given_out(end):
    """From then on no update waits for the copy, so it may have numbers of two steps."""
    ENTERED.clear()
    GO.clear()
    live, free = torch.arange(4.0), [ROOM]
    still, first, last = StillState(), box_of("1.norm1"), box_of("1.norm2")
    parts = {first: (torch.zeros(4),) * 3, last: (live, live, live.as_subclass(Slow))}
    reading = still.read(0, [last, first], parts.get, 96, lambda: free[0])
    ended = []

    def read():
        try:
            for part in reading.chunks(last):
                list(part)
        except Dropped as why:
            ended.append(str(why))

    reader = threading.Thread(target=read)
    reader.start()
    assert ENTERED.wait(LIMIT_S)
    free[0] = 0
    if end == "given up":
        reading.close()
    for name in ("1.norm1", "1.norm2"):
        still.before_update(name)
    live.fill_(7.0)
    GO.set()
    reader.join(LIMIT_S)
    assert len(ended) == 1
    assert ("no memory" in ended[0]) == (end == "no memory")


def test_an_update_waits_for_the_copy_of_a_chunk_and_for_no_reader():
    """The reader takes a chunk and never comes back, as from a disk that stalls."""
    ENTERED.clear()
    GO.clear()
    live = torch.arange(4.0)
    still = StillState()
    box = box_of("1.norm1")
    slow = live.as_subclass(Slow)
    reading = still.read(0, [box], lambda _: (slow, live, live), 48, lambda: ROOM)
    found = []
    reader = threading.Thread(
        target=lambda: found.append(next(reading.chunks(box)[0]).as_subclass(torch.Tensor).clone())
    )
    reader.start()
    assert ENTERED.wait(LIMIT_S)
    update = threading.Thread(target=lambda: (still.before_update("1.norm1"), live.fill_(7.0)))
    update.start()
    until_s = time.monotonic() + LIMIT_S
    while not reading._updates:
        assert time.monotonic() < until_s
    assert not live.eq(7.0).any()
    GO.set()
    reader.join(LIMIT_S)
    update.join(LIMIT_S)
    assert live.eq(7.0).all()
    assert found[0].equal(torch.arange(4.0))


@pytest.mark.slow
@pytest.mark.parametrize("is_staged", [False, True])
def test_threads_of_readers_beside_updates_read_their_boundaries(is_staged, monkeypatch):
    monkeypatch.setattr(boxes_module, "CHUNK_BYTES", 256)
    training = Training(tiled("1x3"))
    for _ in range(30):
        reader = training.read()

        def run(reader=reader):
            if is_staged:
                reader.reading.stage()
            while reader.take():
                pass

        thread = threading.Thread(target=run)
        thread.start()
        for _ in range(2 * len(training.shards)):
            training.update()
        thread.join(LIMIT_S)
        assert reader.is_right()
        training.still.end(reader.reading)
