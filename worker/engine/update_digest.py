"""The bits of an update on a device, as a short digest.

Replicas on unlike devices each update their own copy of a piece, and survivors of a loss apply an
update that others have applied.  Both keep replicas equal only where the update has equal bits.
IEEE 754 determines each operation of the update, so one digest is right on every device.
Invariant: the numbers are exact in fp32, so that no device has a part in them but by its update.
"""

from __future__ import annotations

import functools
import hashlib

import torch

from worker.device.device import Device
from worker.engine.optimizer import Recipe, update_
from worker.errors import SetupUnusable

UPDATE_DIGEST = "6db6b2fd7b35"  # on any device that follows IEEE 754
ROWS, COLUMNS = 32, 48
CUTS = (1, 9, 20)  # rows at which a tensor is cut
UPDATES = 3
# Of the recipe's constants none is a power of two, so that every product is rounded.
RECIPE = Recipe(betas=(0.9, 0.95), epsilon=1e-8, weight_decay=0.1, gradient_clip=1.0)
NORM, LEARNING_RATE = 3.7, 3e-4


@functools.lru_cache(maxsize=1)
def update_digest(device: Device) -> str:
    """12 hex digits of some updates: of a whole tensor, of its rows in parts, and of its columns.

    Waits for the device.
    """
    rows = [slice(start, stop) for start, stop in zip((0, *CUTS), (*CUTS, ROWS), strict=True)]
    half = COLUMNS // 2
    columns = [(slice(None), slice(0, half)), (slice(None), slice(half, COLUMNS))]
    hasher = hashlib.blake2b(digest_size=6)
    for cuts in ([slice(None)], rows, columns):
        weight, mean, square = (_on(device, seed) for seed in (1, 3, 5))
        square.abs_()
        copy = weight.to(torch.bfloat16)
        for updates in range(UPDATES):
            gradient = _on(device, 7 + updates)
            for cut in cuts:
                parts = weight[cut], mean[cut], square[cut]
                rate = LEARNING_RATE
                update_(parts, gradient[cut], NORM, rate, updates, RECIPE, copy[cut])
        for tensor in (weight, mean, square, copy.float()):
            hasher.update(device.host(tensor).numpy().tobytes())
    return hasher.hexdigest()


def check_update(device: Device, gpu_types: frozenset[str]) -> None:
    """Refuse a plan over unlike devices on one whose update has other bits than IEEE 754 gives.

    Raises:
        SetupUnusable: it has, and the plan has more than one GPU type.
    """
    if len(gpu_types) > 1 and update_digest(device) != UPDATE_DIGEST:
        raise SetupUnusable(
            f"an update on this device has the digest {update_digest(device)}, on others "
            f"{UPDATE_DIGEST}, so replicas on {' and '.join(sorted(gpu_types))} would drift apart; "
            "train on GPUs of one type",
            code="Mismatch",
        )


def _on(device: Device, seed: int) -> torch.Tensor:
    """Numbers of many sizes, fp32 [ROWS, COLUMNS], of 24 bits each."""
    index = torch.arange(1, ROWS * COLUMNS + 1)
    sizes = torch.tensor([2.0**-power for power in range(24)], dtype=torch.float64)
    numbers = (index * seed * 2654435761 % 2**24).double() / 2**24 - 0.5
    return device.put((numbers * sizes[index % 24]).float().view(ROWS, COLUMNS))
