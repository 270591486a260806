"""The logits of a model by plain torch: all tokens, heads and experts at once, tensor by tensor.

Source: the architectures as published and as in `transformers`.

Legend: B batch, S sequence, h hidden, V vocabulary, E experts, d width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn.functional import softmax

from planner.model.arithmetic import Rotary, RotaryScaling
from planner.model.experts import Routing
from planner.model.shape import ModelShape
from worker.device.device import CPU
from worker.model.dropout import keep_mask

Weights = dict[str, torch.Tensor]


class Busy(NamedTuple):
    """How busy the experts of one mixture are.

    Attributes:
        unequal: E x sum of f_e P_e of each sample, [B].
        visits: of each expert, [E].
    """

    unequal: torch.Tensor
    visits: torch.Tensor


def forward(
    model: ModelShape,
    w: Weights,
    tokens: torch.Tensor,
    seed: int = 0,
    first_sample: int | None = None,
    begins: torch.Tensor | None = None,
    busy: list[Busy] | None = None,
) -> torch.Tensor:
    """Logits [B, S, V] of token ids [B, S]; rows of the vocabulary that no token has are left out.

    Args:
        model: what is computed.
        w: {tensor name: the whole tensor}.
        tokens: ids.
        seed: of dropout.
        first_sample: id of the first sample, whose numbers dropout depends on; None: no dropout.
        begins: where in its row the document of each token begins, [B, S]; None: at 0, all rows.
        busy: gets how busy the experts of each mixture are.
    """
    a = model.arithmetic
    begins = torch.zeros_like(tokens) if begins is None else begins
    places = torch.arange(tokens.shape[1]) - begins

    def drop(x: torch.Tensor, name: str, rate: float) -> torch.Tensor:
        if first_sample is None or not rate:
            return x
        samples = range(first_sample, first_sample + len(x))
        mask = keep_mask(seed, samples, name, rate, 0, x[0].numel(), CPU)
        return torch.where(mask.view(x.shape), x / (1 - rate), 0.0)

    x = w["0.weight"][tokens]
    if a.padding_token is not None:
        x = torch.where((tokens == a.padding_token)[..., None], x.detach(), x)
    if not model.rotary:
        x = x + w["0.positions"][a.position_offset + places]
    x = drop(x, "0.embedding", a.embedding_dropout)
    for layer in range(1, model.layers + 1):
        own = {name.split(".")[1]: t for name, t in w.items() if name.startswith(f"{layer}.")}
        h = _norm(model, own, "norm1", x)
        heads = _attention(model, own, h, layer, drop, places)
        x = x + drop(_plus(heads @ own["o"].T, own, "o"), f"{layer}.o", a.residual_dropout)
        h = _norm(model, own, "norm2", x)
        if "router" in own:
            mixed, of_block = _mixture(model, own, h)
            x = x + drop(mixed, f"{layer}.down", a.residual_dropout)
            if busy is not None:
                busy.append(of_block)
            continue
        first = "gate" if model.gated else "up"
        wide = _ACTIVATIONS[a.activation](_plus(h @ own[first].T, own, first))
        if model.gated:
            wide = wide * _plus(h @ own["up"].T, own, "up")
        down = _plus(wide @ own["down"].T, own, "down")
        x = x + drop(down, f"{layer}.down", a.residual_dropout)
    last = model.layers + 1
    own = {name.split(".")[1]: t for name, t in w.items() if name.startswith(f"{last}.")}
    rows = w["0.weight"] if model.tied_head else own["weight"]
    return _norm(model, own, "norm", x) @ rows[: model.vocab].T


_LATENT_EPSILON = 1e-6  # of the norms of latent attention
Drop = Callable[[torch.Tensor, str, float], torch.Tensor]
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": lambda x: x * torch.sigmoid(x),
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
}


def _plus(x: torch.Tensor, own: Weights, name: str) -> torch.Tensor:
    bias = own.get(f"{name}_bias")
    return x if bias is None else x + bias


def _norm(model: ModelShape, own: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    if not model.bias:
        return _rms(x, own[name], model.arithmetic.norm_epsilon)
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    scaled = centred * (variance + model.arithmetic.norm_epsilon).rsqrt()
    return (scaled * own[name] + own[f"{name}_bias"]).to(x.dtype)


def _rms(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    wide = x.float()
    scaled = wide * (wide.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight
    return scaled.to(x.dtype)


def _attention(
    model: ModelShape,
    own: Weights,
    h: torch.Tensor,
    layer: int,
    drop: Drop,
    places: torch.Tensor,
) -> torch.Tensor:
    a, (batch, length, _) = model.arithmetic, h.shape
    of_heads = _heads if model.latent is None else _latent_heads
    q, k, v = of_heads(model, own, h, places)
    back = torch.arange(length)[:, None] - torch.arange(length)
    window = a.windows[(layer - 1) % len(a.windows)] or length
    own_document = back <= places[:, :, None]  # no further back than its first token
    mask = torch.where((back >= 0) & (back < window) & own_document, 0.0, float("-inf"))
    scores = q @ k.transpose(-1, -2) * (model.head_dim**-0.5 if a.scale_scores else 1.0)
    scaling = a.rotary.scaling
    if model.latent is not None and scaling is not None and scaling.score_magnitude:
        scores = scores * (1 + 0.1 * scaling.score_magnitude * math.log(scaling.factor)) ** 2
    shares = drop(
        softmax(scores + mask[:, None], dim=-1), f"{layer}.attention", a.attention_dropout
    )
    return (shares @ v).to(h.dtype).transpose(1, 2).reshape(batch, length, -1)


def _heads(
    model: ModelShape, own: Weights, h: torch.Tensor, places: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values of all heads, fp32 [B, heads, S, d]."""
    a, (batch, length, _) = model.arithmetic, h.shape
    heads = []
    for name, count in (("q", model.heads), ("k", model.kv_heads), ("v", model.kv_heads)):
        x = _plus(h @ own[name].T, own, name)
        x = x.view(batch, length, count, model.head_dim).transpose(1, 2)
        if model.query_key_norm and name != "v":
            x = _rms(x, own[f"{name}_norm"], a.norm_epsilon)
        x = _positions(x, a.rotary, places) if model.rotary and name != "v" else x
        heads.append(x.float().repeat_interleave(model.heads // count, dim=1))
    return tuple(heads)


def _latent_heads(
    model: ModelShape, own: Weights, h: torch.Tensor, places: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Likewise of latent attention; neighbours of the rotary part are pairs."""
    latent, rotary, (batch, length, _) = model.latent, model.arithmetic.rotary, h.shape
    assert latent is not None
    if latent.query_rank:
        h_of_q, up = _rms(h @ own["q_down"].T, own["q_norm"], _LATENT_EPSILON), own["q_up"]
    else:
        h_of_q, up = h, own["q"]
    q = (h_of_q @ up.T).view(batch, length, model.heads, model.head_dim).transpose(1, 2)
    down = h @ own["kv_down"].T
    small = _rms(down[..., : latent.kv_rank], own["kv_norm"], _LATENT_EPSILON)
    both = (small @ own["kv_up"].T).view(batch, length, model.heads, -1).transpose(1, 2)
    plain = model.head_dim - latent.rope
    key = _positions(_unpaired(down[..., None, latent.kv_rank :].transpose(1, 2)), rotary, places)
    of_q = _positions(_unpaired(q[..., plain:]), rotary, places)
    q = torch.cat([q[..., :plain], of_q], dim=-1)
    k = torch.cat([both[..., :plain], key.repeat(1, model.heads, 1, 1)], dim=-1)
    return q.float(), k.float(), both[..., plain:].float()


def _unpaired(x: torch.Tensor) -> torch.Tensor:
    """First the even places of the last dimension, then the odd ones."""
    return x.reshape(*x.shape[:-1], -1, 2).transpose(-1, -2).reshape(x.shape)


def _mixture(model: ModelShape, own: Weights, h: torch.Tensor) -> tuple[torch.Tensor, Busy]:
    """What a mixture gives [B, S, h], and how busy its experts are.

    Every expert computes every token; a token takes what its own ones give.
    """
    mixture = model.experts
    assert mixture is not None
    logits = h.float() @ own["router"].float().T
    scores = torch.sigmoid(logits) if mixture.routing.score == "sigmoid" else softmax(logits, -1)
    worth = scores + own["router_bias"] if "router_bias" in own else scores
    is_own = _is_among(_in_best_groups(worth, mixture.routing), mixture.per_token)
    weights = scores * is_own
    if mixture.routing.renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    weights = weights * mixture.routing.scale
    activate = _ACTIVATIONS[model.arithmetic.activation]
    total = torch.zeros_like(h, dtype=torch.float32)
    for expert in range(mixture.count):
        gate, up, down = (own[f"experts_{name}"][expert] for name in ("gate", "up", "down"))
        wide = activate(h @ gate.T) * (h @ up.T)
        total = total + weights[..., expert, None] * (wide @ down.T).float()
    total = total.to(h.dtype)
    if mixture.shared:
        wide = activate(h @ own["shared_gate"].T) * (h @ own["shared_up"].T)
        total = total + wide @ own["shared_down"].T
    shares = scores / scores.sum(-1, keepdim=True)
    # DeepSeek-V3's loss counts the best scores, whatever bias and groups let a token visit
    is_counted = _is_among(shares, mixture.per_token) if "router_bias" in own else is_own
    unequal = mixture.count * (is_counted.float().mean(1) * shares.mean(1)).sum(-1)
    return total, Busy(unequal, is_own.sum((0, 1)))


def _is_among(worth: torch.Tensor, count: int) -> torch.Tensor:
    """Whether fewer than `count` are before it in its row; of equal ones the lower number is."""
    numbers = torch.arange(worth.shape[-1])
    is_before = (worth[..., None, :] > worth[..., None]) | (
        (worth[..., None, :] == worth[..., None]) & (numbers < numbers[:, None])
    )
    return is_before.sum(-1) < count


def _in_best_groups(worth: torch.Tensor, routing: Routing) -> torch.Tensor:
    """Minus infinity where an expert's group is not kept."""
    if routing.groups == 1:
        return worth
    groups = worth.view(*worth.shape[:-1], routing.groups, -1)
    best = groups.max(-1).values
    if routing.group_score == "two":
        best = groups.topk(2, dim=-1).values.sum(-1)
    kept = _is_among(best, routing.groups_kept)
    return torch.where(kept[..., None], groups, float("-inf")).flatten(-2)


def _positions(x: torch.Tensor, rotary: Rotary, places: torch.Tensor) -> torch.Tensor:
    width = x.shape[-1]
    frequency = rotary.base ** (-torch.arange(0, width // 2) / (width // 2))
    scaling = rotary.scaling
    if scaling is not None and scaling.kind == "linear":
        frequency = frequency / scaling.factor
    elif scaling is not None and scaling.kind == "llama3":
        frequency = torch.tensor([_llama3(float(f), scaling) for f in frequency])
    elif scaling is not None:
        kept = _kept(rotary, scaling, width)
        frequency = frequency * kept + frequency / scaling.factor * (1 - kept)
    angle = places[:, None, :, None] * frequency
    length = torch.full_like(angle, 1.0 if scaling is None else _length(scaling))
    turn = torch.polar(length, angle)  # [B, 1, S, d / 2], complex
    wide = x.float()
    pairs = torch.complex(wide[..., : width // 2], wide[..., width // 2 :]) * turn
    return torch.cat([pairs.real, pairs.imag], dim=-1).to(x.dtype)


def _llama3(frequency: float, scaling: RotaryScaling) -> float:
    """A frequency as LLaMA 3.1 stretches it, by its wavelength."""
    length, wave = scaling.original_positions, 2 * math.pi / frequency
    if wave < length / scaling.high_frequency_factor:
        return frequency
    if wave > length / scaling.low_frequency_factor:
        return frequency / scaling.factor
    smooth = (length / wave - scaling.low_frequency_factor) / (
        scaling.high_frequency_factor - scaling.low_frequency_factor
    )
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency


def _kept(rotary: Rotary, scaling: RotaryScaling, width: int) -> torch.Tensor:
    """How much of each frequency YaRN keeps, [d / 2]; between two whole places it falls."""
    first, last = (
        width
        * math.log(scaling.original_positions / (turns * 2 * math.pi))
        / (2 * math.log(rotary.base))
        for turns in (scaling.fast_turns, scaling.slow_turns)
    )
    start, end = max(math.floor(first), 0), min(math.ceil(last), width - 1)
    places = [(place - start) / (end - start or 0.001) for place in range(width // 2)]
    return torch.tensor([1 - min(max(place, 0.0), 1.0) for place in places])


def _length(scaling: RotaryScaling) -> float:
    """By what YaRN stretches what is rotated."""
    if scaling.kind != "yarn" or scaling.factor <= 1:
        return 1.0
    grown = 0.1 * math.log(scaling.factor)
    if scaling.magnitude and scaling.score_magnitude:
        return (1 + scaling.magnitude * grown) / (1 + scaling.score_magnitude * grown)
    return 1 + grown
