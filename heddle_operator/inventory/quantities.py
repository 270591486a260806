"""How many a quantity of Kubernetes is: `8`, `1.5`, `"1k"` (so `"1000"` is stored), `2e3`, `4Ki`.

Invariant: never raises, whatever an object holds; what is no quantity counts as nothing.
Source: apimachinery's `resource.Quantity`; the tests hold it to the kubernetes client's own parser.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

_FORM = re.compile(
    r"([+-]?(?:[0-9]{1,32}(?:\.[0-9]{0,32})?|\.[0-9]{1,32}))"
    r"(?:[eE]([+-]?[0-9]{1,2})|([numkMGTPE]|[KMGTPE]i))?"
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = "KMGTPE"  # of 1024, 1024**2, ...


def whole(quantity: object) -> int:
    """The number of whole things, such as GPUs, rounded up as the scheduler counts; at least 0."""
    return max(0, int(amount(quantity).to_integral_value(ROUND_CEILING)))


def amount(quantity: object) -> Decimal:
    """The exact number, in the resource's own unit (cores, bytes, pods)."""
    if isinstance(quantity, bool) or not isinstance(quantity, int | float | str):
        return Decimal(0)
    found = _FORM.fullmatch(str(quantity))
    if found is None:
        return Decimal(0)
    number, exponent, suffix = Decimal(found[1]), found[2], found[3] or ""
    if suffix.endswith("i"):
        number *= 1024 ** (_BINARY.index(suffix[0]) + 1)
    else:
        number = number.scaleb(int(exponent) if exponent else _DECIMAL.get(suffix, 0))
    return number


def times(quantity: str, count: int) -> str:
    """So many of a quantity: `times("500m", 3)` is `1500m`.

    Raises:
        ValueError: it is no quantity.
    """
    found = _FORM.fullmatch(quantity)
    if found is None:
        raise ValueError(f"{quantity!r} is no quantity; write for example 8, 500m or 64Gi")
    return f"{Decimal(found[1]) * count}{quantity[found.end(1) :]}"
