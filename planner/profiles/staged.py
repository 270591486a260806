"""The same profile where messages between GPUs go through memory of their hosts.

Ranks take this way where NCCL cannot be had: each message is copied from the GPU to its host, goes
from host to host over gloo, and is copied to the other GPU, one after the other.
Invariant: what a layer computes stays; every link, and every sum within a TP group, is modelled,
whatever the profile has measured of another wire.
Source: the order of copies is that of the worker's staged wire; gloo's figures are those of
docs/results/stall_by_size.md and of `heddle profile links`, both on two cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from planner.cluster.gpu_types import HARDWARE
from planner.cluster.hardware import Ring
from planner.model.shape import Kind
from planner.model.workload import Workload
from planner.profiles.entries import LayerCost, LayerKey, LinkCost, Staging, TileKey
from planner.profiles.operators import VALUE_BYTES, Shape, layer_work
from planner.profiles.profile import Profile

# Of gloo between two processes of a machine with two cores: 1.7 to 2.4 GB/s, 0.1 ms a message.
GLOO_BYTES_PER_S = 2e9
GLOO_LATENCY_S = 100e-6
# Of the peak of a GPU's link to its host, the share that copies reach.  Assumed, not measured.
COPY_SHARE = 0.8
PCIE_3_BYTES_PER_S = 15.75e9  # sixteen lanes: of types that no data sheet is kept of
Key = TypeVar("Key")


def staged(profile: Profile, workload: Workload) -> Profile:
    """The profile of a workload whose wire is staged; one that is staged already as it is."""
    if profile.wire == "staged":
        return profile
    copies = {name: copy_bytes_per_s(profile, name) for name in profile.types}
    slowest = min(copies.values())
    rings = {
        name: {size: _inside(_ring_copy(copies[name], size)) for size in by_size}
        for name, by_size in profile.rings.items()
        if name in copies
    }

    def sums_s(kind: Kind, gpu_type: str, shape: Shape) -> float:
        """All sums of a TP group in both passes of a layer."""
        latency_s, per_byte_s = _inside(_ring_copy(copies[gpu_type], shape.tp)).line
        ring = Ring(latency_s, 1 / per_byte_s)
        sizes = layer_work(workload.model, kind, shape).reduced_bytes
        return 2 * sum(ring.all_reduce_s(size, shape.tp) for size in sizes)

    def shape_of(tp: int, micro_batch: int, ep: int = 1, etp: int = 0) -> Shape:
        return Shape(
            tp=tp,
            micro_batch=micro_batch,
            sequence_length=profile.sequence_length,
            value_bytes=VALUE_BYTES[profile.precision],
            sequence_parallel=profile.sequence_parallel,
            ep=ep,
            etp=etp,
        )

    def of_layer(key: LayerKey) -> float:
        kind, gpu_type, tp, micro_batch = key
        return sums_s(kind, gpu_type, shape_of(tp, micro_batch)) if tp > 1 else 0.0

    def of_tile(key: TileKey) -> float:
        gpu_type, tp, micro_batch, ep, etp = key
        shape = shape_of(tp, micro_batch, ep, etp)
        return sums_s("moe_block", gpu_type, shape) if tp > 1 else 0.0

    return replace(
        profile,
        origin="modelled",
        link_origin="modelled",
        wire="staged",
        layers=_Resummed(profile.layers, of_layer),
        tiles=_Resummed(profile.tiles, of_tile),
        inside_links={name: _inside(copies[name]) for name in profile.inside_links},
        rings=rings,
        network=_between(profile.network, slowest),
        nics={name: _between(nic, copies.get(name, slowest)) for name, nic in profile.nics.items()},
    )


class _Resummed(Mapping[Key, LayerCost]):
    """Entries of a profile whose sums within a TP group take other seconds; made when asked for."""

    def __init__(self, entries: Mapping[Key, LayerCost], sums_s: Callable[[Key], float]) -> None:
        self._entries, self._sums_s = entries, sums_s
        self._known: dict[Key, LayerCost] = {}

    def __getitem__(self, key: Key) -> LayerCost:
        if key not in self._known:
            cost = self._entries[key]
            self._known[key] = replace(cost, tp_communication_s=self._sums_s(key))
        return self._known[key]

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def copy_bytes_per_s(profile: Profile, gpu_type: str) -> float:
    """Of one copy between a GPU of the type and its host: as measured, else modelled."""
    measured = profile.types[gpu_type].host_copy_bytes_per_s
    known = HARDWARE.get(gpu_type)
    peak = known.host_link_bytes_per_s if known else PCIE_3_BYTES_PER_S
    return measured or COPY_SHARE * peak


def _ring_copy(copy_bytes_per_s: float, size: int) -> float:
    """The rate of copies by the bytes of a ring, 2 (R-1)/R of a message that is copied twice."""
    return copy_bytes_per_s * 2 * (size - 1) / size if size > 1 else copy_bytes_per_s


def _inside(copy_bytes_per_s: float) -> LinkCost:
    """Between two GPUs of one machine: gloo through the machine's own memory."""
    staging = Staging(copy_bytes_per_s, GLOO_BYTES_PER_S)
    return LinkCost(GLOO_LATENCY_S, GLOO_BYTES_PER_S, staging=staging)


def _between(nic: LinkCost, copy_bytes_per_s: float) -> LinkCost:
    """Between two machines; a ring of more than two copies less than this says."""
    return LinkCost(
        nic.latency_s + GLOO_LATENCY_S,
        nic.bandwidth_bytes_per_s,
        staging=Staging(copy_bytes_per_s, GLOO_BYTES_PER_S),
    )
