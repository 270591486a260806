"""Groups of NCCL in torch: the class that can be formed anew and revoked, and the older one.

Both form without a first operation, do not block and end by a deadline; torch's watchdogs are
switched off by `worker.device.environment`.  Nothing here has run on a GPU: without a driver only
the options, the handles and the refusals can be tried.
Source: torch's `ProcessGroupNCCL.hpp` and `nccl2/ReconfigureNCCL.cpp`; NCCL's user guide,
"Communicators" and "Fault tolerance".
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed.distributed_c10d import PrefixStore

from migration.transport import FORM_S
from planner.profiles.entries import MAX_CTAS
from planner.wording import counted, first_line
from worker.control.store_client import PATIENCE_S
from worker.errors import FabricHangs, RendezvousFailed, SetupUnusable

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Version = tuple[int, int, int]
SHARES: Version = (2, 30, 0)  # the first that lets two ranks use one GPU
SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"
DEADLINE = "TORCH_NCCL_NONBLOCKING_TIMEOUT"  # to connect, of the older class
LATE = 0.9  # of a deadline: who fails before it was not kept waiting


def own_end(group: Any) -> str | None:
    """Why torch has ended a group by itself; None: it has not.

    Its watchdog notes an error or a deadline, and only then revokes the communicator, by which what
    is awaited ends with garbage.
    """
    if (found := group.get_error()) == c10d.ErrorType.SUCCESS:
        return None
    return f"torch has ended a communicator: {found.name}"


FormGroup = Callable[["Store", str, int, int], Any]  # torch's stubs know few methods of a group


def version_text(version: Version) -> str:
    """Such as 2.30.7."""
    return ".".join(map(str, version))


class Own(NamedTuple):
    """What a member has, as far as the others must know it.

    Attributes:
        version: of its NCCL.
        gpu: identity of its GPU; empty: it has none.
    """

    version: Version
    gpu: str = ""


def meet(store: Store, name: str, place: int, size: int, word: str, own: Own) -> list[str]:
    """Say a word to the other members and hear theirs, in the order of their places.

    It waits for a member that is late, as long as the store's client does.

    Raises:
        SetupUnusable: a member has another version of NCCL, or this one's GPU, by which none would
            ever connect.
    """
    store.set(f"{name}/word{place}", f"{version_text(own.version)} {own.gpu or '-'} {word}")
    said = [store.get(f"{name}/word{of}").decode().split(" ", 2) for of in range(size)]
    found = sorted({of for of, _, _ in said})
    if len(found) > 1:
        raise SetupUnusable(
            f"ranks of this job have NCCL {' and '.join(found)}, and one version is needed; give "
            "all pods one image",
            code="Mismatch",
        )
    gpus = [gpu for _, gpu, _ in said if gpu != "-"]
    if len(set(gpus)) < len(gpus):
        check_shared(own.version, os.environ)
    return [word for _, _, word in said]


def check_shared(version: Version, environment: Mapping[str, str]) -> None:
    """Refuse two ranks of a group on one GPU, unless this NCCL lets them and was told to.

    Raises:
        SetupUnusable: it does not, or was not.
    """
    if version < SHARES:
        raise SetupUnusable(
            f"NCCL is version {version_text(version)}, two ranks on one GPU need "
            f"{version_text(SHARES)} or newer; choose another image or the wire staged",
            field="HEDDLE_WIRE",
            code="Unsupported",
        )
    if environment.get(SHARING) != "1":
        raise SetupUnusable(
            "two ranks share a GPU and {field} is not 1; set it, or choose the wire staged",
            field=SHARING,
            code="Missing",
        )


def join(
    group: Any,
    store: Store,
    name: str,
    place: int,
    size: int,
    own: Own,
    deadline_s: float = FORM_S,
) -> None:
    """Form a group of torch by the handles of all its members.

    Raises:
        FabricHangs: the members have met, and did not connect in time.
        RendezvousFailed: they failed before, as when a peer goes.
    """
    options = c10d.ReconfigureOptions()
    options.handles = meet(store, name, place, size, group.get_reconfigure_handle(), own)
    options.uuid = 1  # a group is formed once in its life, under a name that is never used twice
    options.timeout = datetime.timedelta(seconds=deadline_s)
    with connecting(name, size, deadline_s):
        group.reconfigure(options).wait()


@contextmanager
def connecting(name: str, size: int, deadline_s: float) -> Iterator[None]:
    """Members that have met connect within.

    Where NCCL connects while it forms (`NCCL_RUNTIME_CONNECT=0`), a network that hangs is found
    out here, and not at the first operation.

    Raises:
        FabricHangs: they did not connect in time.
        RendezvousFailed: they failed before.
    """
    began_s = time.monotonic()
    try:
        yield
    except torch.OutOfMemoryError:  # no peer's fault
        raise
    except RuntimeError as error:
        said = f"{counted(size, 'rank')} met as {name} and did not connect"
        if time.monotonic() - began_s < LATE * deadline_s:
            raise RendezvousFailed(f"{said} ({first_line(error)})") from None
        raise FabricHangs(
            f"{said} within {deadline_s:g} s; look at the network between their nodes "
            f"({first_line(error)})"
        ) from None


def options_of() -> Any:
    """Options of a communicator that neither blocks nor ends its process."""
    options = c10d.ProcessGroupNCCL.Options()
    options.config.blocking = 0
    options._timeout = datetime.timedelta(seconds=PATIENCE_S)  # a slow peer is waited for
    options.config.max_ctas = MAX_CTAS
    return options


def form_new(device: torch.device, gpu: str = "") -> FormGroup:
    """Groups of the new class: formed by handles, ended by a revoke, which frees nothing.

    Args:
        device: of the rank.
        gpu: its identity.
    """

    def form(store: Store, name: str, place: int, size: int) -> Any:
        options = options_of()
        options.enable_reconfigure = True
        prefixed = PrefixStore(name, store)
        group: Any = c10d.ProcessGroupNCCL2(prefixed, place, size, options, device)
        join(group, store, name, place, size, Own(runtime_version(), gpu))
        return group

    return form


def form_old(device: torch.device, gpu: str = "") -> FormGroup:
    """Groups of the older class: an abort waits for the device, see `worker.world.wire.abort_all`.

    Its deadline to connect is `DEADLINE` of the environment.
    """

    def form(store: Store, name: str, place: int, size: int) -> Any:
        meet(store, name, place, size, "", Own(runtime_version(), gpu))
        options = options_of()
        group: Any = c10d.ProcessGroupNCCL(PrefixStore(name, store), place, size, options)
        with connecting(name, size, float(os.environ.get(DEADLINE, FORM_S))):
            group.eager_connect_single_device(device)
        return group

    return form


def runtime_version() -> Version:
    """Of the NCCL that this process has loaded."""
    ask: Any = c10d.ProcessGroupNCCL.get_runtime_nccl_version
    major, minor, patch = ask()
    return major, minor, patch


def has_new() -> bool:
    """Whether this torch has the class that can be formed anew."""
    return hasattr(c10d, "ProcessGroupNCCL2")


def has_old() -> bool:
    """Whether this torch was built with NCCL at all."""
    return hasattr(c10d, "ProcessGroupNCCL")
