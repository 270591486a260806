"""Whether the network of gloo and NCCL is there as asked for, and between whom it hangs.

It imports nothing heavy, so an agent may ask before its fork server forks.
Source: NCCL's user guide, "Environment variables": NCCL_SOCKET_IFNAME, NCCL_IB_HCA, NCCL_NET;
torch's documents of its distributed backends: GLOO_SOCKET_IFNAME.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from planner.wording import counted
from worker.errors import DeviceUnusable, FabricHangs

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
INTERFACE, ADAPTER, NET = "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_NET"
NAMED = 3  # peers that a sentence names
_INTERFACES, _ADAPTERS = Path("/sys/class/net"), Path("/sys/class/infiniband")


def interfaces() -> tuple[str, ...]:
    """Network interfaces of this machine, or of this pod."""
    return _names(_INTERFACES)


def adapters() -> tuple[str, ...]:
    """Its adapters for RDMA: InfiniBand, RoCE, EFA."""
    return _names(_ADAPTERS)


def check_gloo(environment: Mapping[str, str], interfaces: Sequence[str]) -> None:
    """Refuse an interface that gloo is told to use and that is not there; it takes whole names.

    Args:
        environment: of the ranks.
        interfaces: that the pod has; none: this system does not list them.

    Raises:
        DeviceUnusable: no rank would ever meet another one.
    """
    asked = environment.get(GLOO_INTERFACE, "")
    if interfaces and not {*filter(None, asked.split(","))} <= {*interfaces}:
        raise _unknown(GLOO_INTERFACE, asked, interfaces)


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
        raise _unknown(INTERFACE, asked, interfaces)
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


def _unknown(field: str, asked: str, interfaces: Sequence[str]) -> DeviceUnusable:
    has = ", ".join(interfaces) or "none"
    words = f"{{field}} is {asked}, and this pod has {has}; name one of them"
    return DeviceUnusable(words, field=field, code="Unknown")


def between(rank: int, ranks: Collection[int], nodes: Sequence[str]) -> str:
    """A rank and its peers, with their nodes, for a sentence.

    Args:
        rank: that speaks.
        ranks: its peers; maybe with itself.
        nodes: of each rank; empty: nobody knows them.
    """

    def name(one: int) -> str:
        return f"rank {one} on {nodes[one]}" if nodes else f"rank {one}"

    peers = sorted({*ranks} - {rank})
    more = f" and {counted(len(peers) - NAMED, 'more rank')}" if len(peers) > NAMED else ""
    return f"{name(rank)} with {', '.join(map(name, peers[:NAMED]))}{more}"


@contextmanager
def named(rank: int, ranks: Collection[int], nodes: Sequence[str]) -> Iterator[None]:
    """Say of a network that hangs within between whom it does; see `between`."""
    try:
        yield
    except FabricHangs as hang:
        raise FabricHangs(f"{between(rank, ranks, nodes)}: {hang}") from None


def _found(asked: str, names: Sequence[str]) -> bool:
    """Whether a list of beginnings, or after `=` of whole names, has a match."""
    is_exact = asked.startswith("=")
    wanted = [one for one in asked.removeprefix("=").split(",") if one]
    return any(
        name == one if is_exact else name.startswith(one) for name in names for one in wanted
    )


def _names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else ()
