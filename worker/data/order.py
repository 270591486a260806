"""The order of samples: a keyed permutation in constant memory, evaluated one place at a time.

A Feistel network is a bijection of the numbers of k bits, whatever its round function is.  A value
at or beyond the size is sent through again until it falls below (cycle walking): the path of a
number below the size ends below it, and two paths never meet, so what is left is a bijection of
the numbers below the size.  With 2^(k-1) < size that takes fewer than 2 turns on average.
Source: Luby and Rackoff 1988 (the network); Black and Rogaway 2002, "Ciphers with arbitrary finite
domains" (cycle walking); Steele, Lea and Flood 2014, SplitMix64 (the round function).
"""

from __future__ import annotations

import hashlib
import struct

ROUNDS = 8  # two halves of few bits mix fully; a BLAKE2b digest has as many keys of 64 bits
_MASK = (1 << 64) - 1
_KEYS = struct.Struct(f"<{ROUNDS}Q")
_SUBJECT = struct.Struct("<QQQ")


class Permutation:
    """A permutation of the numbers below a size, which (seed, stream, data epoch) decide.

    Attributes:
        size: how many numbers there are, at least 1.
    """

    def __init__(self, size: int, seed: int, stream: int, data_epoch: int) -> None:
        """Make the keys of the rounds; nothing depends on the size.

        Args:
            size: how many numbers there are, at least 1.
            seed: of the job; its lowest 64 bits count.
            stream: tells corpora and parts of a split apart.
            data_epoch: which pass over the data.
        """
        self.size = size
        subject = _SUBJECT.pack(seed & _MASK, stream, data_epoch)
        self._keys = _KEYS.unpack(hashlib.blake2b(subject, digest_size=_KEYS.size).digest())
        bits = max(2, (size - 1).bit_length())
        self._low = bits // 2
        self._high = bits - self._low

    def __call__(self, place: int) -> int:
        """The number at a place, both below the size."""
        found = self._turn(place)
        while found >= self.size:
            found = self._turn(found)
        return found

    def _turn(self, value: int) -> int:
        """Once through the network."""
        low_bits, high_bits = self._low, self._high
        low_mask, high_mask = (1 << low_bits) - 1, (1 << high_bits) - 1
        low, high = value & low_mask, value >> low_bits
        for index, key in enumerate(self._keys):
            if index % 2:
                high ^= _mix(low + key) & high_mask
            else:
                low ^= _mix(high + key) & low_mask
        return high << low_bits | low


def _mix(value: int) -> int:
    """64 bits; each depends on all bits of the value."""
    value &= _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
