"""Input of the network: names, order and number of its features.

Invariant: equal digests mean equal features, so that weights of another digest are refused.
Source: Heddle, section 5.4 and Table 2 (state, candidate features, composition summary).
Legend: N GPU types, K TP degrees, D most stages.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float32]
Bools: TypeAlias = NDArray[np.bool_]

VERSION = 1  # to be raised with every change of a feature's meaning

OF_TYPE = 6  # rho, eta, s, f, m, beyond the paper sigma; and K each of alpha, phi, mu, h
OF_CLUSTER = 2  # log G, t / T_max
OF_BATCH = 5  # beyond the paper: B, and what the plan so far leaves of it
OF_SUMMARY = 7  # size, batch, how uneven
OF_DEPTH = 4  # besides its number, of D + 1
OF_DEPTH_BATCH = 4
OF_STAGE = 10  # besides the type and the degree of the stage before
OF_STAGE_BATCH = 2
OF_DEVICE = 6  # besides its type
OF_DEVICE_LEFT = 6
OF_DEVICE_BATCH = 3
OF_DEGREE = 4  # besides its type and its degree
OF_DEGREE_LEFT = 5
OF_DEGREE_BATCH = 3

HEADS = ("depth", "device", "degree")  # what is chosen, each by a head of the network


@dataclass(frozen=True, slots=True)
class FeatureSchema:
    """Features and limits that a network was built for."""

    types: tuple[str, ...]  # GPU types, in the order of their features
    tp_degrees: tuple[int, ...]  # the paper's K, ascending
    d_max: int  # most stages of a template
    t_max: int  # most templates of a plan
    # whether features tell how n, b and M share the batch B; else they are 0
    sees_batch: bool = True

    @property
    def digest(self) -> str:
        """12 hex digits that name the features."""
        text = json.dumps([VERSION, asdict(self), self.widths], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    @property
    def widths(self) -> dict[str, int]:
        """Numbers of features: of the state, the summary, and each kind of candidate."""
        n, k = len(self.types), len(self.tp_degrees)
        return {
            "state": n * (OF_TYPE + 4 * k) + OF_CLUSTER + OF_BATCH,
            "summary": n + OF_SUMMARY,
            "depth": self.d_max + 1 + OF_DEPTH + OF_DEPTH_BATCH,
            "stage": n + k + OF_STAGE + OF_STAGE_BATCH,
            "device": n + OF_DEVICE + OF_DEVICE_LEFT + OF_DEVICE_BATCH,
            "degree": n + k + OF_DEGREE + OF_DEGREE_LEFT + OF_DEGREE_BATCH,
        }
