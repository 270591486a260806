"""What the processes of a check do: `cuda_...` on the GPU, `dry_...` on the simulated device."""

from __future__ import annotations

import hashlib
import time
from functools import partial
from itertools import pairwise


def device_of_way(way):
    """The device of a check."""
    if way == "dry":
        from tests.simulated_device.device import SimulatedDevice

        return SimulatedDevice()
    from worker.device.choice import own_device

    return own_device("cuda", 0)


def _multiplies(way, rank, store):
    """The sum of a product, seconds until it was there, and bytes that the device gave for it."""
    import torch

    start_s = time.monotonic()
    device = device_of_way(way)
    square = device.put(torch.eye(4) * 2.0)
    total = float(device.host(square @ square).sum()) / 2
    return {
        "sum": total,
        "first_s": time.monotonic() - start_s,
        "held_bytes": device.held_bytes(),
    }


def _keeps(way, rank, store):
    from tests.contracts.device_contract import kept

    return kept(device_of_way(way))


def _sends(way, rank, store):
    from tests.contracts.wire_contract import kept
    from worker.world.gloo_wire import GlooWire
    from worker.world.staged_wire import StagedWire

    device = device_of_way(way)
    return kept(rank, store, StagedWire.over(GlooWire.form, device), device)


def _updates(way, rank, store):
    """{how the tensors lie: digest of what one update makes of fixed numbers}."""
    import torch

    from worker.device.device import CPU
    from worker.engine.optimizer import Recipe, update_

    recipe = Recipe((0.9, 0.95), 1e-8, 0.1, 1.0)
    generator = torch.Generator().manual_seed(7)
    numbers = [torch.randn(96, 64, generator=generator) for _ in range(4)]
    numbers[2].abs_()

    def digest(device, lay, cuts=(0, 96)):
        parts = [lay(device.put(one.clone())) for one in numbers]
        for start, stop in pairwise(cuts):
            *own, gradient = (part[start:stop] for part in parts)
            update_(tuple(own), gradient, 3.0, 1e-3, 4, recipe)
        hasher = hashlib.blake2b(digest_size=8)
        for part in parts[:3]:
            hasher.update(device.host(part).contiguous().numpy().tobytes())
        return hasher.hexdigest()

    def strided(tensor):
        return tensor.t().contiguous().t()

    device, as_it_is = device_of_way(way), lambda tensor: tensor
    return {
        "whole": digest(device, as_it_is),
        "cut": digest(device, as_it_is, (0, 5, 48, 96)),
        "strided": digest(device, strided),
        "processor": digest(CPU, as_it_is),
    }


cuda_multiplies, dry_multiplies = (partial(_multiplies, way) for way in ("cuda", "dry"))
cuda_keeps, dry_keeps = (partial(_keeps, way) for way in ("cuda", "dry"))
cuda_sends, dry_sends = (partial(_sends, way) for way in ("cuda", "dry"))
cuda_updates, dry_updates = (partial(_updates, way) for way in ("cuda", "dry"))
