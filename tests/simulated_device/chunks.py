"""The parts of a step that work in chunks, on a processor and strictly on the simulated device."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from migration import fingerprint as fingerprints
from worker.device.device import CPU, Device
from worker.engine import gradient_sync, optimizer
from worker.model import attention
from worker.model import loss as losses
from worker.model.parallel import TensorParallel

NAMES = ("window with shared keys", "loss", "square", "update", "fingerprint")


def claims(rank, store):
    """{part: whether the device gives the processor's bits}."""
    from tests.simulated_device.device import SimulatedDevice

    attention.QUERIES = 4
    losses.HOST_AT_ONCE = losses.DEVICE_AT_ONCE = 40
    gradient_sync.SQUARED_AT_ONCE = fingerprints.CHUNK = 8
    optimizer.HOST_CHUNK = optimizer.DEVICE_CHUNK = 8
    with sdpa_kernel(SDPBackend.MATH):  # which both have
        here, there = _of(CPU), _of(SimulatedDevice())
    return {
        name: len(here[name]) > 0 and all(map(torch.equal, here[name], there[name]))
        for name in NAMES
    }


def _of(device: Device) -> dict[str, list[torch.Tensor]]:
    """The numbers of each part, read by the host."""
    generator = torch.Generator().manual_seed(7)

    def numbers(*shape, dtype=torch.float32):
        return device.put(torch.randn(*shape, generator=generator).to(dtype))

    q, k, v = (numbers(2, heads, 11, 4).requires_grad_() for heads in (4, 2, 2))
    seen = attention.attend(q, k, v, scale=0.5, window=3)
    logits = numbers(2, 5, 13, dtype=torch.bfloat16).requires_grad_()
    labels = device.put(torch.randint(13, (2, 5), generator=generator))
    loss = losses.vocabulary_loss(TensorParallel())(logits, labels)
    piece, parts = numbers(6, 5), tuple(numbers(6, 5).abs() for _ in range(3))
    recipe = optimizer.Recipe((0.9, 0.95), 1e-8, 0.1, 1.0)
    optimizer.update_(parts, piece, 2.0, 1e-3, 3, recipe)
    named = fingerprints.integer_fingerprint([piece, parts[0][:, 1:]], device.host)
    found = {
        NAMES[0]: [seen, *torch.autograd.grad(seen.sum(), (q, k, v))],
        NAMES[1]: [loss, *torch.autograd.grad(loss, logits)],
        NAMES[2]: [gradient_sync.square_of(piece)],
        NAMES[3]: list(parts),
        NAMES[4]: [device.put(torch.tensor([named >> 1]))],
    }
    return {name: [device.host(one.detach()) for one in of] for name, of in found.items()}
