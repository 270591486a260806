"""One number each: what a layer costs, what a message costs, what a GPU type holds.

Invariant: frozen, finite and never negative; a profile is a table of these.
Source: Heddle, section 5.2 (profile-based cost model).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, with_config

from planner.model.shape import Kind

MOST = 10**15  # bytes or tokens: beyond it somebody has mistyped, and floats lose whole numbers
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=MOST)]
Bytes = Annotated[int, Field(ge=0, le=MOST)]
Points = Annotated[
    tuple[tuple[Seconds, Seconds], ...], AfterValidator(lambda rows: tuple(sorted(rows)))
]
STRICT = ConfigDict(extra="forbid", strict=True)  # where a file is read

Origin = Literal["measured", "modelled"]
LayerKey = tuple[Kind, str, int, int]  # kind, GPU type, TP degree, micro-batch
TileKey = tuple[str, int, int, int, int]  # GPU type, TP degree, micro-batch, EP, ETP


@with_config(STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """One layer, one micro-batch, one rank of a TP group.

    Attributes:
        forward_s: computation of the forward pass.
        backward_s: computation of the backward pass.
        tp_communication_s: all collectives inside the TP group, both passes together.
        activation_bytes: kept from the forward to the backward pass.
        attention_s: computation of the attention core, which selective recomputation repeats.
        attention_bytes: of the activations, what selective recomputation does not keep.
        input_bytes: of the layer's input, all that full recomputation keeps.
    """

    forward_s: Seconds
    backward_s: Seconds
    tp_communication_s: Seconds
    activation_bytes: Bytes
    attention_s: Seconds = 0.0
    attention_bytes: Bytes = 0
    input_bytes: Bytes = 0

    def at_least(self, launch_s: float) -> LayerCost:
        """The same where no pass ends before its kernels are launched."""
        if launch_s <= min(self.forward_s, self.backward_s):
            return self
        return replace(
            self,
            forward_s=max(self.forward_s, launch_s),
            backward_s=max(self.backward_s, launch_s),
        )

    def recompute_s(self, how: str) -> float:
        """Cost of recomputation in the backward pass, its TP communication included."""
        if how == "none":
            return 0.0
        if how == "selective":
            return self.attention_s
        return self.forward_s + self.tp_communication_s / 2

    def kept_bytes(self, how: str) -> int:
        """Memory kept of a micro-batch in flight."""
        if how == "none":
            return self.activation_bytes
        if how == "selective":
            return self.activation_bytes - self.attention_bytes
        return self.input_bytes

    def working_bytes(self, how: str) -> int:
        """Further memory of one layer at a time, while it is recomputed."""
        return self.activation_bytes - self.kept_bytes(how)


@with_config(STRICT)
@dataclass(frozen=True, slots=True)
class Staging:
    """The way of a message between GPUs through memory of their hosts.

    Attributes:
        copy_bytes_per_s: of a copy between a GPU and its host; a message is copied at both ends.
        wire_bytes_per_s: between two hosts at most, whatever their network cards carry.
    """

    copy_bytes_per_s: Rate
    wire_bytes_per_s: Rate


@with_config(STRICT)
@dataclass(frozen=True, slots=True)
class LinkCost:
    """A link as latency and rate, or as measured times by size.

    Attributes:
        latency_s: of one message.
        bandwidth_bytes_per_s: at large sizes.
        points: (bytes, seconds) as measured, ascending; between them time is linear in size.
        staging: what host memory adds, one copy after the other; None: GPUs talk directly.
    """

    latency_s: Seconds
    bandwidth_bytes_per_s: Rate
    points: Points = ()
    staging: Staging | None = None

    def seconds(self, num_bytes: float) -> float:
        """Time of one message of that size."""
        if self.staging is None:
            return self._on_wire_s(num_bytes, self.bandwidth_bytes_per_s)
        copies_s = 2 * num_bytes / self.staging.copy_bytes_per_s
        return self._on_wire_s(num_bytes, self._rate) + copies_s

    @property
    def _rate(self) -> float:
        """Bytes per second of the wire."""
        if self.staging is None:
            return self.bandwidth_bytes_per_s
        return min(self.bandwidth_bytes_per_s, self.staging.wire_bytes_per_s)

    def _on_wire_s(self, num_bytes: float, rate: float) -> float:
        if not self.points:
            return self.latency_s + num_bytes / rate
        before = None
        for size, seconds in self.points:
            if num_bytes <= size:
                if before is None:
                    return seconds
                share = (num_bytes - before[0]) / (size - before[0])
                return before[1] + share * (seconds - before[1])
            before = (size, seconds)
        assert before is not None
        return before[1] + (num_bytes - before[0]) / rate

    def shared_by(self, ranks: float) -> LinkCost:
        """The share of one of that many ranks that send at once; each copies for itself."""
        if ranks == 1:
            return self
        points = tuple((size / ranks, seconds) for size, seconds in self.points)
        return LinkCost(self.latency_s, self.bandwidth_bytes_per_s / ranks, points, self.staging)

    def at_rate(self, bytes_per_s: float | None) -> LinkCost:
        """The same link through a card of that rate, slower or faster; None: as it is."""
        if bytes_per_s is None:
            return self
        return self.shared_by(self.bandwidth_bytes_per_s / bytes_per_s)

    @property
    def line(self) -> tuple[float, float]:
        """(seconds of a message, and of each byte) where it is no smaller than any measured."""
        per_byte_s = 1 / self._rate
        copies_s = 2 / self.staging.copy_bytes_per_s if self.staging else 0.0
        if not self.points:
            return self.latency_s, per_byte_s + copies_s
        size, seconds = self.points[-1]
        return max(0.0, seconds - size * per_byte_s), per_byte_s + copies_s


# Communicators of a rank while a change is prepared: 5 of each epoch (counted on 15 ranks of three
# templates, where none had more) and that of the move.
MOST_GROUPS = 11
MAX_CTAS = 8  # of a communicator of NCCL: its buffers grow with them
# Of a communicator where nobody has measured it.  Modelled: a ring has two peers, with 9.2 MiB for
# each and channel by NCCL's protocols (device.h).
GROUP_BYTES = MAX_CTAS * 2 * 9_650_000


@with_config(STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """A profiled device type.

    Attributes:
        name: as nodes and stages write it.
        memory_bytes: physical memory of one GPU.
        reserve_bytes: of it, what no plan may use (framework, allocator, fragments).
        optimizer_latency_s: of one optimizer step, whatever its size.
        optimizer_s_per_parameter: what each parameter adds to it.
        launch_s: of one pass of the smallest block: the host launches its kernels one by one, so
            no block takes less.  0 where the costs of layers have it within.
        host_copy_bytes_per_s: of a copy from the GPU to its host or back, as measured; None: the
            data sheet says it.
        update_digest: of an update on fixed numbers (`worker.engine.update_digest`); types with
            equal digests get equal bits of an update.  "": nobody has computed it there.
        group_bytes: that NCCL holds for each communicator.  0: nobody has measured it there, and
            `planner.cost.memory.group_bytes` takes the modelled bytes.
    """

    name: str
    memory_bytes: Count
    reserve_bytes: Bytes
    optimizer_latency_s: Seconds
    optimizer_s_per_parameter: Seconds
    launch_s: Seconds = 0.0
    host_copy_bytes_per_s: Rate | None = None
    update_digest: str = ""
    group_bytes: Bytes = 0

    @property
    def usable_bytes(self) -> int:
        """Memory that a plan and its communicators may fill."""
        return self.memory_bytes - self.reserve_bytes


def as_row(entry: LayerCost | LinkCost | GpuType) -> dict[str, Any]:
    """The fields of an entry for a file; those that have their default are left out."""
    return {
        field.name: asdict(value) if isinstance(value, Staging) else value
        for field in fields(entry)
        if (value := getattr(entry, field.name)) != field.default
    }
