"""Rotary positions and how they are stretched.

Source: RoFormer; Peng et al., "YaRN"; LLaMA 3.1's scaling as in its published code and in
`transformers`.
"""

from __future__ import annotations

import functools
import math

import torch

from planner.model.arithmetic import Rotary, RotaryScaling
from worker.device.device import CPU, Device


def frequencies(rotary: Rotary, width: int) -> torch.Tensor:
    """Radians per position of each half of a head, fp32 [width / 2]."""
    half = width // 2
    plain = rotary.base ** (-torch.arange(half) / half)
    scaling = rotary.scaling
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    if scaling.kind == "yarn":
        return _yarn(plain, scaling, rotary.base)
    return _llama3(plain, scaling)


@functools.lru_cache(maxsize=8)
def _frequencies_on(device: Device, rotary: Rotary, width: int) -> torch.Tensor:
    """The processor's numbers, copied once: a device may give another last bit."""
    return device.put(frequencies(rotary, width))


def _llama3(plain: torch.Tensor, scaling: RotaryScaling) -> torch.Tensor:
    """Low frequencies are divided, high ones kept, those between are mixed."""
    turns = scaling.original_positions * plain / (2 * math.pi)  # within the first training
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * kept + plain / scaling.factor * (1 - kept)


def _yarn(plain: torch.Tensor, scaling: RotaryScaling, base: float) -> torch.Tensor:
    """Fast frequencies are kept, slow ones divided; between two whole places they are mixed."""
    half = len(plain)

    def place(turns: float) -> float:
        """Of the frequency that turns so often within the first training."""
        return half * math.log(scaling.original_positions / (turns * 2 * math.pi)) / math.log(base)

    first = max(math.floor(place(scaling.fast_turns)), 0)
    last = min(math.ceil(place(scaling.slow_turns)), 2 * half - 1)
    divided = ((torch.arange(half) - first) / (last - first or 0.001)).clamp(0, 1)
    return plain / scaling.factor * divided + plain * (1 - divided)


def rotate(
    x: torch.Tensor, rotary: Rotary, positions: torch.Tensor | None = None, device: Device = CPU
) -> torch.Tensor:
    """Rotary positions of [b, heads, S, d]; halves are rotated against each other.

    Args:
        x: queries or keys.
        rotary: base and scaling.
        positions: of each token, [b, S]; None: 0 to S - 1 in each row.
        device: that computes.
    """
    half = x.shape[-1] // 2
    places = torch.arange(x.shape[-2], device=x.device) if positions is None else positions[:, None]
    angle = places[..., None] * _frequencies_on(device, rotary, x.shape[-1]).to(x.device)
    cos, sin = angle.cos(), angle.sin()
    if rotary.scaling is not None and rotary.scaling.rotated_scale != 1:
        cos, sin = cos * rotary.scaling.rotated_scale, sin * rotary.scaling.rotated_scale
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)  # in fp32
