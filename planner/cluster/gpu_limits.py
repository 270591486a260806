"""How many GPUs a plan may use: in all, and of a GPU type.

A quota, a share of a cluster or a user says so; which of the GPUs that there are a plan then takes
is the search's choice.
Invariant: limits are sorted by type, so equal limits are equal objects; without one of a type, or
in all, nothing limits there.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.cluster.composition import Composition
from planner.errors import InvalidRequest
from planner.wording import counted, kind_of

_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """The most GPUs that a plan may use; those of no limit let every plan through."""

    total: int | None = None  # of all types together; None: no limit
    by_type: tuple[tuple[str, int], ...] = ()  # (GPU type, most GPUs); 0: none of this type

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_type", tuple(sorted(self.by_type)))
        names = [name for name, _ in self.by_type]
        for name in names:
            if names.count(name) > 1:
                raise InvalidRequest(
                    f"{{field}} limits {name!r} twice; give one limit for a type",
                    field="max_gpus",
                    code="GivenTwice",
                )
        for name, most in (("all GPUs", self.total or 0), *self.by_type):
            if most < 0:
                raise InvalidRequest(
                    f"max_gpus of {name} is {most}; it must be 0 or more",
                    field="max_gpus",
                    code="OutOfRange",
                )

    def __bool__(self) -> bool:
        """Whether there is any limit."""
        return self.total is not None or bool(self.by_type)

    def __str__(self) -> str:
        """In words, for a sentence: `8 GPUs`, `4 h100`, `8 GPUs and 4 h100`."""
        parts = [] if self.total is None else [counted(self.total, "GPU")]
        return " and ".join([*parts, *(f"{most:,} {name}" for name, most in self.by_type)])

    def most(self, gpu_type: str) -> int:
        """The most GPUs of a type that may be used; `sys.maxsize` without a limit."""
        total = sys.maxsize if self.total is None else self.total
        return min(total, dict(self.by_type).get(gpu_type, sys.maxsize))

    def allows(self, counts: Mapping[str, int]) -> bool:
        """Whether a plan may use so many GPUs of each type."""
        if self.total is not None and sum(counts.values()) > self.total:
            return False
        return all(counts.get(name, 0) <= most for name, most in self.by_type)

    def allowed(self, composition: Composition) -> int:
        """The GPUs of a composition that a plan may use at most."""
        there = gpus_by_type(composition)
        total = sum(min(gpus, self.most(name)) for name, gpus in there.items())
        return total if self.total is None else min(total, self.total)

    def binds(self, composition: Composition) -> bool:
        """Whether a plan may not use all GPUs of a composition."""
        return self.allowed(composition) < composition.gpus

    def to_json(self) -> dict[str, Any]:
        """`{"total": 8, "by_type": {"h100": 4}}`; the total is null without a limit."""
        return {"total": self.total, "by_type": dict(self.by_type)}

    @staticmethod
    def from_json(row: object) -> GpuLimits:
        """Read what `to_json` wrote; both keys may be left out.

        Raises:
            InvalidRequest: the first mistake.
        """
        if not isinstance(row, Mapping):
            raise InvalidRequest(
                f"max_gpus is {kind_of(row)}; it must be a mapping",
                field="max_gpus",
                code="Malformed",
            )
        unknown = sorted(set(map(str, row)) - {"total", "by_type"})
        if unknown:
            raise InvalidRequest(
                f"max_gpus has the unknown key {unknown[0]!r}; allowed are total, by_type",
                field="max_gpus",
                code="Unknown",
            )
        by_type = row.get("by_type", {})
        if not isinstance(by_type, Mapping):
            raise InvalidRequest(
                f"max_gpus has by_type {kind_of(by_type)}; it must map GPU types to numbers",
                field="max_gpus",
                code="Malformed",
            )
        total = row.get("total")
        for name, most in (("total", 0 if total is None else total), *by_type.items()):
            if not isinstance(most, int) or isinstance(most, bool):
                raise InvalidRequest(
                    f"max_gpus has {name} {kind_of(most)}; it must be a whole number",
                    field="max_gpus",
                    code="Malformed",
                )
        return GpuLimits(total, tuple((str(name), most) for name, most in by_type.items()))

    @staticmethod
    def from_text(texts: Iterable[str]) -> GpuLimits:
        """Read the values of an option: `8`, `h100=8`, or several joined by commas.

        Raises:
            InvalidRequest: the part that does not read so, or a limit that is given twice.
        """
        total, by_type = None, dict[str, int]()
        for part in (piece.strip() for text in texts for piece in text.split(",")):
            name, equals, number = (piece.strip() for piece in part.rpartition("="))
            if not _NUMBER.fullmatch(number) or (equals and not name):
                raise InvalidRequest(
                    f"{{field}} {part!r} is not a number of GPUs; write for example 8, or h100=8 "
                    f"for one GPU type",
                    field="max_gpus",
                    code="Unreadable",
                )
            if not equals and total is None:
                total = int(number)
            elif equals and name not in by_type:
                by_type[name] = int(number)
            else:
                raise InvalidRequest(
                    f"{{field}} limits {name or 'all GPUs'} twice; give one limit",
                    field="max_gpus",
                    code="GivenTwice",
                )
        if total == 0:
            raise InvalidRequest(
                "{field} 0 allows no GPU; give at least 1, or leave it out",
                field="max_gpus",
                code="OutOfRange",
            )
        return GpuLimits(total, tuple(by_type.items()))


UNLIMITED = GpuLimits()


def gpus_by_type(composition: Composition) -> Counter[str]:
    """How many GPUs there are of each type."""
    found: Counter[str] = Counter()
    for node in composition.nodes:
        found[node.gpu_type] += node.gpus
    return found
