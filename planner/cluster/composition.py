"""The GPUs that there are now, node by node.

Invariant: nodes are sorted by name, names are unique, so equal compositions are equal objects with
equal digests.  What nobody stated (price, network card) is not written either.
Source: Heddle, section 5.1; node sizes and straggler factors are the design's.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from planner.errors import InvalidComposition
from planner.wording import did_you_mean, kind_of

_GROUP = re.compile(r"^(?P<nodes>[0-9]{1,99})x(?P<gpus>[0-9]{1,99})$")
_NODE_KEYS = ("name", "type", "gpus", "link_domain", "speed_factor", "price", "nic_gbit_s", "hosts")
_BYTES_PER_GBIT = 1e9 / 8
# Beyond these somebody has mistyped, and a search would take for ever.
MOST_NODES = 100_000
MOST_GPUS = 1024  # of one node
# A name that is also that of a file or a pod: a node's, a GPU type's; the value of a label.
SLOWEST, FASTEST = 1e-4, 1e4  # speed factors
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class HostOf(NamedTuple):
    """The node of a host, and the place of the host in it."""

    node: str  # its name
    first: int  # GPU of the node that the host begins with
    gpus: int  # of the node
    alike: int  # hosts of the node with as many GPUs as this one


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Node:
    """One node, or one GPU type of a node that holds several."""

    name: str  # unique in its composition
    gpu_type: str  # a profiled device type, for example `h100`
    gpus: int  # free GPUs, at least 1
    link_domain: str = "default"  # nodes of one domain reach each other over the same fabric
    speed_factor: float = 1.0  # 1 unless measured; a straggler is a node with 0.8
    price: float | None = None  # money per hour of the whole node; None: nobody said
    # of its network card; None: as the profile has it for its type
    nic_bytes_per_s: float | None = None
    # GPUs of each host, in the order of the node's GPUs; (): the node is one host.  They cover the
    # node: what is beyond its GPUs is cut off, and what is left is a further host.
    hosts: tuple[int, ...] = ()
    # the node that this one is a host of; never written.  None: a node
    host_of: HostOf | None = None

    def __post_init__(self) -> None:
        if self.name.split() != [self.name]:
            raise InvalidComposition(
                f"a node has the name {self.name!r}; give it one without blanks",
                field="name",
                code="Malformed",
            )
        if self.gpu_type.split() != [self.gpu_type]:
            raise InvalidComposition(
                f"node {self.name!r} has the type {self.gpu_type!r}; give it one without blanks",
                field="type",
                code="Malformed",
            )
        if self.gpus < 1:
            raise InvalidComposition(
                f"node {self.name!r} has {self.gpus} GPUs; give at least 1, or leave the node out",
                field="gpus",
                code="OutOfRange",
            )
        if self.gpus > MOST_GPUS:
            raise InvalidComposition(
                f"node {self.name!r} has {self.gpus} GPUs; a node has at most {MOST_GPUS}",
                field="gpus",
                code="OutOfRange",
            )
        if not SLOWEST <= self.speed_factor <= FASTEST:
            raise InvalidComposition(
                f"node {self.name!r} has speed factor {self.speed_factor}; it must be between "
                f"{SLOWEST:g} and {FASTEST:g}, 1 as profiled; leave out a node that is slower",
                field="speed_factor",
                code="OutOfRange",
            )
        if self.price is not None and not 0 <= self.price < math.inf:
            raise InvalidComposition(
                f"node {self.name!r} has price {self.price}; it must be money per hour, 0 or more",
                field="price",
                code="OutOfRange",
            )
        if self.nic_bytes_per_s is not None and not 0 < self.nic_bytes_per_s < math.inf:
            raise InvalidComposition(
                f"node {self.name!r} has a network card of {self.nic_bytes_per_s} bytes/s; its "
                f"nic_gbit_s must be above 0",
                field="nic_gbit_s",
                code="OutOfRange",
            )
        if min(self.hosts, default=1) < 1:
            raise InvalidComposition(
                f"node {self.name!r} has a host of {min(self.hosts)} GPUs; give each at least 1",
                field="hosts",
                code="OutOfRange",
            )
        object.__setattr__(self, "hosts", _covering(self.hosts, self.gpus))

    @property
    def whole(self) -> str:
        """Its name; of a host that of the node, which is paid and fails as a whole."""
        return self.host_of.node if self.host_of else self.name

    def to_json(self) -> dict[str, Any]:
        """The node as `Composition.from_json` reads it."""
        row: dict[str, Any] = {
            "name": self.name,
            "type": self.gpu_type,
            "gpus": self.gpus,
            "link_domain": self.link_domain,
            "speed_factor": self.speed_factor,
        }
        if self.price is not None:
            row["price"] = self.price
        if self.nic_bytes_per_s is not None:
            row["nic_gbit_s"] = self.nic_bytes_per_s / _BYTES_PER_GBIT
        if self.hosts:
            row["hosts"] = list(self.hosts)
        return row


@dataclass(frozen=True, slots=True)
class Composition:
    """All nodes that are available now, sorted by name."""

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        if len(names) > MOST_NODES:
            raise InvalidComposition(
                f"there are {len(names):,} nodes; give at most {MOST_NODES:,}", code="OutOfRange"
            )
        if len(set(names)) != len(names):
            twice = min(name for name, times in Counter(names).items() if times > 1)
            raise InvalidComposition(
                f"node name {twice!r} appears twice; every node needs a name of its own",
                field="name",
                code="GivenTwice",
            )
        object.__setattr__(self, "nodes", tuple(sorted(self.nodes)))

    @property
    def gpus(self) -> int:
        """The number of free GPUs."""
        return sum(node.gpus for node in self.nodes)

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """The types present, sorted."""
        return tuple(sorted({node.gpu_type for node in self.nodes}))

    @property
    def largest_gpus(self) -> dict[str, int]:
        """{GPU type: free GPUs of its largest node}."""
        largest: dict[str, int] = {}
        for node in self.nodes:
            largest[node.gpu_type] = max(largest.get(node.gpu_type, 0), node.gpus)
        return largest

    @property
    def num_nodes(self) -> int:
        """The number of nodes; hosts of one node count once."""
        return len({node.whole for node in self.nodes})

    @property
    def nics(self) -> dict[str, float]:
        """{node: bytes per second of its network card}, of the nodes that state one."""
        return {n.name: n.nic_bytes_per_s for n in self.nodes if n.nic_bytes_per_s is not None}

    @property
    def digest(self) -> str:
        """12 hex digits that name this composition."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    def node(self, name: str) -> Node:
        """The node of that name; KeyError if it is not here."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    def without(self, names: Iterable[str]) -> Composition:
        """The composition that is left when these nodes go."""
        gone = set(names)
        return Composition(tuple(node for node in self.nodes if node.name not in gone))

    def to_json(self) -> list[dict[str, Any]]:
        """A list of nodes, the form of a nodes file."""
        return [node.to_json() for node in self.nodes]

    @staticmethod
    def from_json(rows: object) -> Composition:
        """Read a list of nodes, each with name, type and gpus.

        May also say: link_domain, speed_factor, price (money per hour of the whole node),
        nic_gbit_s (of its network card, in 10^9 bits per second), and hosts (GPUs of each).

        Raises:
            InvalidComposition: the first mistake, with the row it is in.
        """
        if not isinstance(rows, list):
            raise InvalidComposition(
                f"a nodes file holds a list of nodes, found {kind_of(rows)}; write one `- "
                f"name: ...` per node",
                code="Malformed",
            )
        return Composition(tuple(_node(row, index) for index, row in enumerate(rows)))

    @staticmethod
    def from_text(text: str) -> Composition:
        """Read `h100=8x4,a100-40=10x4+12x1`.

        Type = nodes x GPUs per node, several sizes joined by `+`.

        Raises:
            InvalidComposition: the part that does not read so.
        """
        nodes: list[Node] = []
        found: Counter[str] = Counter()
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name_part, equals, sizes = part.partition("=")
            gpu_type = name_part.strip()
            counts = [_GROUP.match(size.strip()) for size in sizes.split("+")]
            if not equals or not gpu_type or not all(counts):
                raise InvalidComposition(
                    f"{reprlib.repr(part)} is not TYPE=NODESxGPUS; write for example h100=8x4 or "
                    f"a100-40=10x4+12x1",
                    code="Malformed",
                )
            for match in counts:
                assert match is not None
                if min(int(match["nodes"]), int(match["gpus"])) < 1:
                    raise InvalidComposition(
                        f"{part!r} has {match['nodes']} nodes of {match['gpus']} GPUs; give at "
                        f"least 1 of each, or leave it out",
                        code="OutOfRange",
                    )
                if found.total() + int(match["nodes"]) > MOST_NODES:
                    raise InvalidComposition(
                        f"{part!r} makes more than {MOST_NODES:,} nodes; give fewer",
                        code="OutOfRange",
                    )
                for _ in range(int(match["nodes"])):
                    name = f"{gpu_type}-{found[gpu_type]}"
                    nodes.append(Node(name=name, gpu_type=gpu_type, gpus=int(match["gpus"])))
                    found[gpu_type] += 1
        return Composition(tuple(nodes))


def _node(row: object, index: int) -> Node:
    if not isinstance(row, Mapping):
        raise InvalidComposition(
            f"node {index + 1} is {reprlib.repr(row)}; a node is a mapping with name, type and "
            "gpus",
            code="Malformed",
        )
    unknown = sorted(set(row) - set(_NODE_KEYS), key=str)
    if unknown:
        near = did_you_mean(str(unknown[0]), _NODE_KEYS)
        raise InvalidComposition(
            f"node {index + 1} has the unknown key {unknown[0]!r}{near}; allowed are "
            f"{', '.join(_NODE_KEYS)}",
            field=str(unknown[0]),
            code="Unknown",
        )
    for key, kind, kind_name in (
        ("name", str, "a text"),
        ("type", str, "a text"),
        ("gpus", int, "a whole number"),
    ):
        if not isinstance(row.get(key), kind) or isinstance(row.get(key), bool):
            raise InvalidComposition(
                f"node {index + 1} has {key} {reprlib.repr(row.get(key))}; it must be {kind_name}",
                field=key,
                code="Malformed",
            )
    price, gbit_s = _number(row, "price", index), _number(row, "nic_gbit_s", index)
    return Node(
        name=row["name"],
        gpu_type=row["type"],
        gpus=row["gpus"],
        link_domain=str(row.get("link_domain", "default")),
        speed_factor=1.0
        if "speed_factor" not in row
        else _number(row, "speed_factor", index) or 0.0,
        price=price,
        # whole bytes, so that a node is the same after it was written and read
        nic_bytes_per_s=None if gbit_s is None else float(round(gbit_s * _BYTES_PER_GBIT)),
        hosts=_hosts(row, index),
    )


def _hosts(row: Mapping[Any, Any], index: int) -> tuple[int, ...]:
    """GPUs of each host of a row; () if the row has none."""
    hosts = row.get("hosts", [])
    if not isinstance(hosts, list) or any(type(gpus) is not int for gpus in hosts):
        raise InvalidComposition(
            f"node {index + 1} has hosts {reprlib.repr(hosts)}; it must be a list of whole "
            f"numbers, the GPUs of each host",
            field="hosts",
            code="Malformed",
        )
    if hosts and sum(hosts) != row["gpus"]:
        raise InvalidComposition(
            f"node {index + 1} has hosts of {sum(hosts)} GPUs together and {row['gpus']} GPUs; "
            f"both must be as many",
            field="hosts",
            code="Contradiction",
        )
    return tuple(hosts)


def _covering(hosts: Iterable[int], gpus: int) -> tuple[int, ...]:
    """The hosts of so many GPUs, what is left as one more; () where that is one host."""
    found: list[int] = []
    for host in hosts:
        found.append(min(host, gpus - sum(found)))
        if sum(found) == gpus:
            break
    if found and sum(found) < gpus:
        found.append(gpus - sum(found))
    return tuple(found) if len(found) > 1 else ()


def _number(row: Mapping[Any, Any], key: str, index: int) -> float | None:
    """A finite number of a row, from 0 on; None if the row does not have it."""
    if key not in row:
        return None
    number = row[key]
    usable = isinstance(number, int | float) and not isinstance(number, bool)
    if not usable or not 0 <= number < 1e15:
        raise InvalidComposition(
            f"node {index + 1} has {key} {reprlib.repr(number)}; it must be a number from 0 to "
            "1e15",
            field=key,
            code="OutOfRange",
        )
    return float(number)
