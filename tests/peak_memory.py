"""The most memory that the tensors of a piece of work hold beside what was there before it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch


def peak_bytes(work: Callable[[], object]) -> int:
    """Peak of the bytes of the processor's tensors in a call, less those before, by torch's count.

    The call is made once before, so that what is made once for ever does not count.
    """
    work()
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        work()
    changes = (event for event in profile.kineto_results.events() if event.name() == "[memory]")
    in_order = sorted(changes, key=lambda event: event.start_ns())
    return max(itertools.accumulate(event.nbytes() for event in in_order), default=0)
