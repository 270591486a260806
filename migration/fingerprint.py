"""64 bits that name bytes and their order: a flipped bit or two swapped rows give another number.

Sender and receiver of a message each take it of the tensors themselves, before the send and after
the receive, so that a fault in copying is found like one on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import xxhash

CHUNK = 1 << 20  # elements at a time, and two vectors of 8 bytes for each: 16 MiB
_MULTIPLIERS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of splitmix64


Host = Callable[[torch.Tensor], torch.Tensor]  # the numbers of a tensor in memory of the host


def as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the host is where it can be read."""
    return tensor


def fingerprint(views: Iterable[torch.Tensor], host: Host = as_it_is) -> int:
    """64 bits of the elements of some views in row-major order, one view after the other.

    On the host by xxh3, else by integer operations on the device, one number of which `host` reads;
    both ends use the same device type, so they use the same law.
    """
    views = tuple(views)
    if any(view.device.type != "cpu" for view in views):
        return integer_fingerprint(views, host)
    hasher = xxhash.xxh3_64()
    for view in views:
        for part in _contiguous_parts(view.detach()):
            hasher.update(part.reshape(-1).view(torch.uint8).numpy().data)
    return hasher.intdigest()


def integer_fingerprint(views: Iterable[torch.Tensor], host: Host = as_it_is) -> int:
    """The same contract by 64-bit integer operations that every device has.

    The sum, modulo 2^64, of each 32-bit word times an odd number that its place gives (splitmix64):
    a single flipped bit always changes it, and words that change places do but by chance.
    """
    totals: list[torch.Tensor] = []
    place = 0
    for view in views:
        for part in _contiguous_parts(view.detach()):
            words = part.reshape(-1).view(torch.int32)
            totals.append(_odd(place, len(words), words.device).mul_(words).sum())
            place += len(words)
    return int(host(torch.stack(totals).sum())) % (1 << 64) if totals else 0


def _odd(first: int, count: int, device: torch.device) -> torch.Tensor:
    """A pseudo-random odd 64-bit number for each place from `first` on; arithmetic wraps."""
    increment, *rest = (_signed(number) for number in _MULTIPLIERS)
    mixed = torch.arange(first + 1, first + 1 + count, device=device).mul_(increment)
    for bits, multiplier in zip((30, 27), rest, strict=True):
        mixed.bitwise_xor_(_shifted(mixed, bits)).mul_(multiplier)
    return mixed.bitwise_xor_(_shifted(mixed, 31)).bitwise_or_(1)


def _shifted(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Shifted right, with zeros from the left."""
    return (numbers >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _contiguous_parts(view: torch.Tensor) -> Iterable[torch.Tensor]:
    """A view in order, a chunk at a time: parts of it, or contiguous copies of some of its rows."""
    if view.is_contiguous():
        return torch.split(view.reshape(-1), CHUNK)
    rows = max(1, CHUNK // max(1, view[0].numel()))
    return (part.contiguous() for part in torch.split(view, rows))
