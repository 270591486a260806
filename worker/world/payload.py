"""Which wire carries the payload of a rank: one rule, and what it says of itself.

gloo     host tensors, between processors
staged   tensors of a GPU through memory of the host
nccl     between GPUs, without the host
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

from migration.gloo_transport import GlooTransport
from migration.nccl_transport import NcclTransport
from migration.transport import Transport
from planner.profiles.entries import GROUP_BYTES
from worker.control.connections import connections, cut
from worker.device.broken import Broken
from worker.device.device import CPU, Device
from worker.errors import SetupUnusable
from worker.gpu_wire import VARIABLE, WireName, wire_asked
from worker.world.forming import ends_if_given_up
from worker.world.gloo_wire import GlooWire
from worker.world.nccl_groups import (
    Version,
    form_new,
    form_old,
    has_new,
    has_old,
    runtime_version,
    version_text,
)
from worker.world.nccl_wire import NcclWire
from worker.world.sentinel import Sentinel
from worker.world.staged_transport import StagedTransport
from worker.world.staged_wire import StagedWire
from worker.world.wire import FormWire

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Waiting = Callable[[], AbstractContextManager[None]]
LEAST: Version = (2, 14, 0)  # the first NCCL whose communicators form without blocking
REVOKES: Version = (2, 28, 7)  # the first with a revoke, by which the new class ends its waits
_SETTINGS = ("NCCL_", "TORCH_NCCL_")


class Nccl(NamedTuple):
    """What this process has of NCCL.

    Attributes:
        version: of the library; None: torch was built without.
        is_new: torch has the class that can be formed anew.
    """

    version: Version | None
    is_new: bool

    @property
    def uses_new(self) -> bool:
        """Whether groups are of the new class, which needs the library's revoke."""
        return self.is_new and self.version is not None and self.version >= REVOKES


class Payload(NamedTuple):
    """The wire of a rank.

    Attributes:
        name: of the wire.
        about: one line for the log and the records of steps: class, version, settings.
        form_wire: forms one.
        group_bytes: of the device, that each group holds by itself, as modelled.
    """

    name: WireName
    about: str
    form_wire: FormWire
    group_bytes: int = 0


def own_nccl() -> Nccl:
    """That of this process."""
    return Nccl(runtime_version() if has_old() else None, has_new())


def wire_of(device: str, environment: Mapping[str, str], nccl: Nccl) -> WireName:
    """The wire of a rank.

    Args:
        device: cpu or cuda.
        environment: of the process, with what was asked for.
        nccl: of the process.

    Raises:
        SetupUnusable: what was asked for cannot be had.
    """
    name = wire_asked(device, environment.get(VARIABLE, ""))
    if name != "nccl":
        return name
    if nccl.version is None:
        raise SetupUnusable(
            "{field} asks for nccl, and this torch was built without NCCL; choose another image "
            "or the wire staged",
            field=VARIABLE,
            code="Missing",
        )
    if nccl.version < LEAST:
        raise SetupUnusable(
            f"NCCL is version {version_text(nccl.version)}, the worker needs "
            f"{version_text(LEAST)} or newer; choose another image or the wire staged",
            field=VARIABLE,
            code="Unsupported",
        )
    return "nccl"


def about(name: WireName, environment: Mapping[str, str], nccl: Nccl) -> str:
    """One line on a wire: class and version of NCCL, and the settings that it reads."""
    if name != "nccl" or nccl.version is None:
        return name
    kind = "nccl2" if nccl.uses_new else "nccl-legacy"
    settings = sorted(f"{k}={v}" for k, v in environment.items() if k.startswith(_SETTINGS))
    return " ".join((kind, version_text(nccl.version), *settings))


def form_nccl(device: Device, nccl: Nccl) -> FormWire:
    """What forms wires of NCCL for a device, by the class that this process has."""
    form_group = form_new if nccl.uses_new else form_old
    return NcclWire.over(form_group(device.torch_device, device.identity))


def payload_of(device: Device) -> Payload:
    """The wire of this process for its device.

    Raises:
        SetupUnusable: see `wire_of`.
    """
    kind = device.torch_device.type
    nccl = own_nccl() if kind == "cuda" else Nccl(None, is_new=False)
    name: WireName = "staged" if kind not in ("cpu", "cuda") else wire_of(kind, os.environ, nccl)
    form_wire: FormWire = GlooWire.form
    if name == "nccl":
        return Payload(name, about(name, os.environ, nccl), form_nccl(device, nccl), GROUP_BYTES)
    if device is not CPU:
        name, form_wire = "staged", StagedWire.over(GlooWire.form, device)
    return Payload(name, about(name, os.environ, nccl), form_wire)


def form_transport(
    payload: Payload,
    device: Device,
    store: Store,
    prefix: str,
    rank: int,
    size: int,
    *,
    patience_s: float,
    waiting: Waiting = nullcontext,
    reading: Waiting = nullcontext,
) -> Transport:
    """The transport of a change over the wire of a rank.

    `waiting` is entered while a message of gloo is awaited, `reading` while the device is awaited
    for what a peer has a part in.
    """
    if payload.name == "nccl":
        return nccl_transport(
            store,
            prefix,
            rank,
            size,
            form_wire=payload.form_wire,
            device=device,
            patience_s=patience_s,
            waiting=waiting,
            reading=reading,
        )
    with ends_if_given_up(store):
        gloo = GlooTransport.form(store, prefix, rank, size, patience_s, waiting)
    return gloo if device is CPU else StagedTransport(gloo, device)


def nccl_transport(
    store: Store,
    prefix: str,
    rank: int,
    size: int,
    *,
    form_wire: FormWire,
    device: Device,
    patience_s: float,
    waiting: Waiting = nullcontext,
    reading: Waiting = nullcontext,
) -> NcclTransport:
    """Meet the other members: on gloo for what decides, then on a wire for the state."""
    before = connections()
    with ends_if_given_up(store):
        control = GlooTransport.form(store, prefix, rank, size, patience_s, waiting)
    own, broken = connections() - before, Broken()
    try:
        wire = form_wire(store, f"{prefix}/payload", rank, size)
    except BaseException:
        control.close()
        cut(own)
        raise
    numbers = (functools.partial(device.host, broken=broken), device.fill)
    end = functools.partial(cut, own)
    transport = NcclTransport(control, wire, device.torch_device, numbers, broken, end, reading)
    Sentinel(control, rank, size, transport.break_)
    return transport
