"""The oracle: the same training in one process of plain torch.

It shares data and their order, initial weights, what dropout keeps and the learning rate with the
engine, and nothing else: its model, loss, norm, clipping and step are written apart, without
groups, pieces or DeepSpeed, so that an error there cannot hide here.
Source: the architectures as published and as in `transformers`.

Legend: B global batch, S sequence, h hidden, V vocabulary.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.nn.functional import cross_entropy, softmax

from planner.model.arithmetic import Rotary, RotaryScaling
from planner.model.shape import ModelShape
from planner.model.tensors import model_tensors
from worker.contract import TrainingSpec
from worker.data.batches import MicroBatch, micro_batches
from worker.data.dataset import Dataset
from worker.device.device import CPU
from worker.engine.learning_rate import learning_rate
from worker.errors import WorkerError
from worker.model.dropout import keep_mask
from worker.model.initial_weights import initial_rows

Weights = dict[str, torch.Tensor]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def forward(
    model: ModelShape,
    w: Weights,
    tokens: torch.Tensor,
    seed: int = 0,
    first_sample: int | None = None,
    begins: torch.Tensor | None = None,
    busy: list[torch.Tensor] | None = None,
) -> torch.Tensor:
    """Logits [B, S, V] of token ids [B, S]; rows of the vocabulary that no token has are left out.

    Args:
        model: what is computed.
        w: {tensor name: the whole tensor}.
        tokens: ids.
        seed: of dropout.
        first_sample: id of the first sample, whose numbers dropout depends on; None: no dropout.
        begins: where in its row the document of each token begins, [B, S]; None: at 0, all rows.
        busy: gets how unequally busy the experts of each mixture are, [B].
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
            mixed, unequal = _mixture(model, own, h)
            x = x + drop(mixed, f"{layer}.down", a.residual_dropout)
            if busy is not None:
                busy.append(unequal)
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
    heads = []
    for name, count in (("q", model.heads), ("k", model.kv_heads), ("v", model.kv_heads)):
        x = _plus(h @ own[name].T, own, name)
        x = x.view(batch, length, count, model.head_dim).transpose(1, 2)
        if model.query_key_norm and name != "v":
            x = _rms(x, own[f"{name}_norm"], a.norm_epsilon)
        heads.append(
            (_positions(x, a.rotary, places) if model.rotary and name != "v" else x).float()
        )
    q, (k, v) = (
        heads[0],
        (t.repeat_interleave(model.heads // model.kv_heads, dim=1) for t in heads[1:]),
    )
    back = torch.arange(length)[:, None] - torch.arange(length)
    window = a.windows[(layer - 1) % len(a.windows)] or length
    own_document = back <= places[:, :, None]  # no further back than its first token
    mask = torch.where((back >= 0) & (back < window) & own_document, 0.0, float("-inf"))
    scores = q @ k.transpose(-1, -2) * (model.head_dim**-0.5 if a.scale_scores else 1.0)
    shares = drop(
        softmax(scores + mask[:, None], dim=-1), f"{layer}.attention", a.attention_dropout
    )
    return (shares @ v).to(h.dtype).transpose(1, 2).reshape(batch, length, -1)


def _mixture(model: ModelShape, own: Weights, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a mixture gives [B, S, h], and E x sum of f_e P_e of each sample [B].

    Every expert computes every token; a token takes what its own ones give.
    """
    mixture = model.experts
    assert mixture is not None
    shares = softmax(h.float() @ own["router"].float().T, dim=-1)
    # An expert is chosen if fewer than k are before it; of equal shares the lower number is.
    numbers = torch.arange(mixture.count)
    is_before = (shares[..., None, :] > shares[..., None]) | (
        (shares[..., None, :] == shares[..., None]) & (numbers < numbers[:, None])
    )
    is_own = is_before.sum(-1) < mixture.per_token
    weights = shares * is_own
    if mixture.routing.renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    weights = weights * mixture.routing.scale
    activate = _ACTIVATIONS[model.arithmetic.activation]
    total = torch.zeros_like(h, dtype=torch.float32)
    for expert in range(mixture.count):
        gate, up, down = (own[f"experts_{name}"][expert] for name in ("gate", "up", "down"))
        wide = activate(h @ gate.T) * (h @ up.T)
        total = total + weights[..., expert, None] * (wide @ down.T).float()
    visits = is_own.float().mean(1)
    return total.to(h.dtype), mixture.count * (visits * shares.mean(1)).sum(-1)


def _positions(x: torch.Tensor, rotary: Rotary, places: torch.Tensor) -> torch.Tensor:
    width = x.shape[-1]
    frequency = rotary.base ** (-torch.arange(0, width // 2) / (width // 2))
    scaling = rotary.scaling
    if scaling is not None and scaling.kind == "linear":
        frequency = frequency / scaling.factor
    elif scaling is not None:
        frequency = torch.tensor([_llama3(f, scaling) for f in frequency.tolist()])
    angle = places[:, None, :, None] * frequency
    turn = torch.polar(torch.ones_like(angle), angle)  # [B, 1, S, d / 2], complex
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


class Scale:
    """The loss scale of fp16; 1 for ever in any other precision."""

    def __init__(self, spec: TrainingSpec) -> None:
        self._scaling = spec.scaling
        self.now = float(self._scaling.initial) if self._scaling else 1.0
        self._finite = 0

    def learn(self, is_finite: bool) -> None:
        """Halve it after an overflow, and double it after a window without one."""
        if self._scaling is None:
            return
        self._finite = self._finite + 1 if is_finite else 0
        if not is_finite:
            self.now = max(1.0, self.now / 2)
        elif self._finite == self._scaling.window:
            self.now, self._finite = self.now * 2, 0


def training(
    spec: TrainingSpec, model: ModelShape, micro_batch: int | None = None
) -> Iterator[tuple[float, Weights]]:
    """Train for ever: after each step its loss, and the weights, which the next step changes.

    Args:
        spec: what is trained.
        model: its shape.
        micro_batch: samples of a forward pass; None: the whole batch.

    Raises:
        WorkerError: the model is of the user's own.
    """
    if model.own is not None:
        raise WorkerError(
            f"the reference computes no model of your own, such as {model.name}", code="Unsupported"
        )
    dataset = Dataset(spec.data, spec.sequence_length, model.vocab)
    weights = {
        tensor.name: initial_rows(
            spec.seed, tensor, 0, tensor.shape[tensor.dim or 0]
        ).requires_grad_()
        for tensor in model_tensors(model)
    }
    groups: list[dict[str, object]] = [
        {"params": [w for w in weights.values() if w.dim() > 1]},
        {"params": [w for w in weights.values() if w.dim() == 1], "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(
        groups,
        lr=spec.learning_rate,
        betas=spec.betas,
        eps=spec.epsilon,
        weight_decay=spec.weight_decay,
    )
    shown = {name: weight.detach() for name, weight in weights.items()}
    size, scale = micro_batch or spec.global_batch, Scale(spec)
    for step in itertools.count():
        count = spec.global_batch // size
        batches = micro_batches(dataset, spec.seed, step, spec.global_batch, 0, count, size)
        adam.zero_grad()
        first = step * spec.global_batch
        loss = sum(
            _backward(spec, model, weights, batch, first + index * size, scale.now, dataset)
            for index, batch in enumerate(batches)
        )
        for weight in weights.values():
            assert weight.grad is not None
            weight.grad.mul_(1 / scale.now)
        norm = torch.nn.utils.clip_grad_norm_(list(weights.values()), spec.gradient_clip)
        for group in adam.param_groups:
            group["lr"] = learning_rate(spec, step)
        is_finite = math.isfinite(norm.item())
        if is_finite:
            adam.step()
        scale.learn(is_finite)
        yield loss, shown


def train(
    spec: TrainingSpec,
    model: ModelShape,
    steps: int,
    progress: Callable[[int, float], None] | None = None,
    micro_batch: int | None = None,
) -> tuple[list[float], Weights]:
    """Losses of the first `steps` steps, of which there is at least one, and the final weights.

    `progress(step, loss)` is called after each.
    """
    losses: list[float] = []
    weights: Weights = {}
    found = itertools.islice(training(spec, model, micro_batch), steps)
    for step, (loss, held) in enumerate(found):
        losses.append(loss)
        weights = held
        if progress:
            progress(step, loss)
    return losses, weights


def _backward(
    spec: TrainingSpec,
    model: ModelShape,
    weights: Weights,
    batch: MicroBatch,
    first_sample: int,
    scale: float,
    dataset: Dataset,
) -> float:
    """Add the gradients of one micro-batch in fp32; what its loss adds to that of the step."""
    dtype = _DTYPES[spec.precision]
    used = {name: w.to(dtype) for name, w in weights.items()}  # autograd casts gradients back
    begins = None
    if spec.data.document_mask:
        samples = range(first_sample, first_sample + len(batch.tokens))
        begins = begins_of([dataset.documents(spec.seed, sample) for sample in samples])
    busy: list[torch.Tensor] = []
    logits = forward(model, used, batch.tokens, spec.seed, first_sample, begins, busy).float()
    loss = cross_entropy(logits.flatten(0, 1), batch.labels.flatten()) * batch.weight
    whole = loss
    if busy and model.experts is not None:
        mean = torch.stack(busy).mean(0).sum() / spec.global_batch
        whole = loss + model.experts.auxiliary * mean
    (whole * scale).backward()  # type: ignore[no-untyped-call] # torch leaves it untyped
    return loss.item()


def begins_of(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Where the document of each token begins, from the lengths of the documents of each row."""
    starts = [
        [sum(lengths[:index]) for index, length in enumerate(lengths) for _ in range(length)]
        for lengths in rows
    ]
    return torch.tensor(starts)
