"""What the network reads: names, order and number of its features.

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
OF_LAYERS = 8  # the last three are of a policy that learns the fill
OF_REPLICAS = 3
OF_REPLICAS_BATCH = 4
OF_MICRO_BATCH = 2
OF_MICRO_BATCH_BATCH = 3

HEADS = ("depth", "device", "degree")  # what every policy chooses
FILL_HEADS = ("layers", "replicas", "micro_batch")  # what the fill else determines


@dataclass(frozen=True, slots=True)
class FeatureSchema:
    """What a network was built for.

    Attributes:
        types: GPU types, in the order of their features.
        tp_degrees: the paper's K, ascending.
        d_max: most stages of a template.
        t_max: most templates of a plan.
        sees_batch: whether features tell how n, b and M share the batch B; else they are 0.
        learns_fill: whether layers, n and b are chosen like all else, and not filled in.
    """

    types: tuple[str, ...]
    tp_degrees: tuple[int, ...]
    d_max: int
    t_max: int
    sees_batch: bool = True
    learns_fill: bool = False

    @property
    def heads(self) -> tuple[str, ...]:
        """What is chosen."""
        return (*HEADS, *FILL_HEADS) if self.learns_fill else HEADS

    @property
    def digest(self) -> str:
        """12 hex digits that name the features."""
        known = asdict(self)
        del known["learns_fill"]  # the widths tell, and older policies keep their digest
        text = json.dumps([VERSION, known, self.widths], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    @property
    def widths(self) -> dict[str, int]:
        """Numbers of features: of the state, the summary, and each kind of candidate."""
        n, k = len(self.types), len(self.tp_degrees)
        widths = {
            "state": n * (OF_TYPE + 4 * k) + OF_CLUSTER + OF_BATCH,
            "summary": n + OF_SUMMARY,
            "depth": self.d_max + 1 + OF_DEPTH + OF_DEPTH_BATCH,
            "stage": n + k + OF_STAGE + OF_STAGE_BATCH,
            "device": n + OF_DEVICE + OF_DEVICE_LEFT + OF_DEVICE_BATCH,
            "degree": n + k + OF_DEGREE + OF_DEGREE_LEFT + OF_DEGREE_BATCH,
        }
        if self.learns_fill:
            widths["layers"] = OF_LAYERS
            widths["replicas"] = OF_REPLICAS + OF_REPLICAS_BATCH
            widths["micro_batch"] = OF_MICRO_BATCH + OF_MICRO_BATCH_BATCH
        return widths
