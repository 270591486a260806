"""Whether the network that NCCL was told to use is there, before a rank waits for it.

It imports nothing heavy, so an agent may ask before its fork server forks.
Source: NCCL's user guide, "Environment variables": NCCL_SOCKET_IFNAME, NCCL_IB_HCA, NCCL_NET.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from worker.errors import DeviceUnusable

INTERFACE, ADAPTER, NET = "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_NET"
_INTERFACES, _ADAPTERS = Path("/sys/class/net"), Path("/sys/class/infiniband")


def interfaces() -> tuple[str, ...]:
    """Network interfaces of this machine, or of this pod."""
    return _names(_INTERFACES)


def adapters() -> tuple[str, ...]:
    """Its adapters for RDMA: InfiniBand, RoCE, EFA."""
    return _names(_ADAPTERS)


def check_fabric(
    environment: Mapping[str, str], interfaces: Sequence[str], adapters: Sequence[str]
) -> None:
    """Refuse settings of NCCL that name what is not there.

    Args:
        environment: of the ranks.
        interfaces: that the pod has.
        adapters: for RDMA that it has.

    Raises:
        DeviceUnusable: NCCL would wait for ever, or take another way.
    """
    asked = environment.get(INTERFACE, "")
    if asked and not asked.startswith("^") and not _found(asked, interfaces):
        raise DeviceUnusable(
            f"{{field}} is {asked}, and this pod has {', '.join(interfaces) or 'none'}; name one "
            "of them",
            field=INTERFACE,
            code="Unknown",
        )
    hca = environment.get(ADAPTER, "")
    field = ADAPTER if hca and not hca.startswith("^") else NET
    is_asked = field == ADAPTER or environment.get(NET, "").upper() == "IB"
    if is_asked and not adapters:
        raise DeviceUnusable(
            f"{{field}} is {environment[field]}, and this pod has no InfiniBand adapter; give it "
            "one, or take the setting away",
            field=field,
            code="Missing",
        )


def _found(asked: str, names: Sequence[str]) -> bool:
    """Whether a list of beginnings, or after `=` of whole names, has a match."""
    is_exact = asked.startswith("=")
    wanted = [one for one in asked.removeprefix("=").split(",") if one]
    return any(
        name == one if is_exact else name.startswith(one) for name in names for one in wanted
    )


def _names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else ()
