"""What every `Wire` must do, tried by three ranks in processes of their own."""

from __future__ import annotations

import threading

import torch

SIZE = 3
LIMIT_S = 30.0
# {name: how many rows each rank sends to each}
ROWS = {
    "rows for each": [[1, 2, 0], [0, 0, 3], [2, 1, 1]],
    "no rows at all": [[0, 0, 0], [0, 0, 0], [0, 0, 0]],
    "one has none": [[0, 0, 0], [0, 1, 1], [0, 1, 1]],
}


def kept(rank, store, form, device, *, notices=True) -> dict[str, object]:
    """{clause: what this rank saw of it}; whether the wire notices a peer that is gone."""
    wire, found = form(store, "first", rank, SIZE), {}

    def there(*numbers):
        return device.put(torch.tensor([float(number) for number in numbers]))

    def read(tensor):
        return device.host(tensor).tolist()

    for op in ("sum", "min", "max"):
        tensor = there(rank, rank + 1)
        wire.all_reduce(tensor, op).wait()
        found[op] = read(tensor)
    tensor = there(rank)
    wire.broadcast(tensor, 2).wait()
    found["broadcast"] = read(tensor)
    if rank == 0:
        works = [wire.send(there(10 + peer), peer) for peer in (1, 2)]
        for work in works:
            work.wait()
    else:
        tensor = there(0)
        wire.recv(tensor, 0).wait()
        found["message"] = read(tensor)
    peers = [peer for peer in range(SIZE) if peer != rank]
    came = {peer: [there(0), there(0)] for peer in peers}
    wire.exchange(
        [(peer, there(10 * rank + number)) for peer in peers for number in (0, 1)],
        [(peer, tensor) for peer in peers for tensor in came[peer]],
    ).wait()
    found["round"] = {peer: [read(tensor)[0] for tensor in came[peer]] for peer in peers}
    tensor = there(*(10 * rank + place if place // 2 == rank else -1 for place in range(2 * SIZE)))
    wire.all_gather(tensor).wait()
    found["gathered"] = read(tensor)
    for name, rows in ROWS.items():
        sent = there(*(100 * rank + peer for peer in range(SIZE) for _ in range(rows[rank][peer])))
        received = there(*[0] * sum(row[rank] for row in rows))
        wire.all_to_all(received, sent, [row[rank] for row in rows], rows[rank]).wait()
        found[name] = read(received)
    tensors = [there(rank), there(10 * rank)]
    works = [wire.all_reduce(tensor, "sum") for tensor in tensors]
    for work in works:
        work.wait()
    found["two under way"] = [read(tensor) for tensor in tensors]
    control = wire.control
    if control is not None:
        tensor = torch.tensor([float(rank)])
        control.all_reduce(tensor, "sum").wait()
        found["control"] = tensor.tolist()
    found["ended"] = _ended(wire, store, rank, lambda: wire.all_reduce(there(1), "sum"), notices)
    wire.abort()  # twice, and after the end
    wire.release()
    other = form(store, "second", rank, SIZE)
    rows, sent, received = [1] * SIZE, there(*[0] * SIZE), there(*[0] * SIZE)
    found["exchange ended"] = _ended(
        other,
        store,
        rank,
        lambda: other.all_to_all(received, sent, rows, rows),
        notices,
        "exchanging",
    )
    other.release()
    return found


def _ended(wire, store, rank, begin, notices, word="waiting") -> bool:
    """Whether a wait for a peer that never comes ends, here or there, once somebody aborts."""
    if rank == 0:
        store.wait([f"{word}1", f"{word}2"])
        wire.abort()
        return True
    done = threading.Event()

    def wait():
        try:
            work = begin()
            store.set(f"{word}{rank}", "now")
            work.wait()
        except RuntimeError:
            pass
        wire.abort()  # as whoever gets an error does
        done.set()

    wait() if notices else _aborted_from_beside(wire, wait, store, word)
    return done.is_set()


def _aborted_from_beside(wire, wait, store, word) -> None:
    """A wire that notices no dead peer is ended by another thread, which hears of it elsewhere."""
    own = store.clone()  # a wait keeps a client to itself
    both = [f"{word}1", f"{word}2"]
    beside = threading.Thread(target=lambda: (own.wait(both), wire.abort()))
    beside.start()
    wait()
    beside.join(LIMIT_S)


def gloo(rank, store):
    from worker.device.device import CPU
    from worker.world.gloo_wire import GlooWire

    return kept(rank, store, GlooWire.form, CPU)


def staged(rank, store):
    from tests.simulated_device.device import SimulatedDevice
    from worker.world.gloo_wire import GlooWire
    from worker.world.staged_wire import StagedWire

    device = SimulatedDevice()
    return kept(rank, store, StagedWire.over(GlooWire.form, device), device)


def recorded(rank, store):
    from tests.simulated_device.device import SimulatedDevice
    from tests.simulated_device.recorded_wire import RecordedWire

    return kept(rank, store, RecordedWire.form, SimulatedDevice(), notices=False)


def nccl_over_gloo(rank, store):
    from tests.fakes.gloo_group import form_gloo
    from worker.device.device import CPU
    from worker.world.nccl_wire import NcclWire

    return kept(rank, store, NcclWire.over(form_gloo), CPU)


def nccl_with_garbage(rank, store):
    from tests.fakes.gloo_group import form_garbage
    from worker.device.device import CPU
    from worker.world.nccl_wire import NcclWire

    return kept(rank, store, NcclWire.over(form_garbage), CPU, notices=False)
