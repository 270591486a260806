"""Random numbers that are the same jitted and un-jitted: the minimal standard generator.

Source: Park and Miller, "Random number generators: good ones are hard to find" (1988).
"""

from __future__ import annotations

from planner.estimator.jit import inlined
from planner.estimator.tables import Ints
from planner.estimator.workspace import MODULUS

MULTIPLIER = 48271


@inlined
def below(state: Ints, bound: int) -> int:
    """A whole number from 0 to `bound` - 1; `state` is [1]."""
    state[0] = (state[0] * MULTIPLIER) % MODULUS
    return (state[0] * bound) // MODULUS


@inlined
def uniform(state: Ints) -> float:
    """A number above 0 and below 1."""
    state[0] = (state[0] * MULTIPLIER) % MODULUS
    return state[0] / MODULUS
