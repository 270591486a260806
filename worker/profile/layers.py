"""Measure what one layer costs on the device that is here: time forward and backward, bytes kept.

One block stands for all blocks.  A rank of a TP group is measured alone, on its shard and without
its collectives; those are measured among processes (`worker.profile.links`) and added by size.
Where experts are spread, peers are played by silent groups: the rank computes for as many rows as
equally busy experts would get.  The way of the rows is priced apart.
Invariant: every time is the smallest of its repeats, of the layers that the worker trains with.
Source: Heddle, section 5.2 (profiling of one layer per repeated structure).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from planner.errors import InvalidWorkload
from planner.model.shape import Kind, ModelShape
from planner.model.tensors import Tensor
from planner.profiles.entries import LayerCost
from planner.profiles.operators import VALUE_BYTES
from worker.device.device import Device
from worker.model.attention import attend
from worker.model.experts.exchange import Place
from worker.model.experts.mixture import ExpertPlace
from worker.model.forward_context import CurrentContext, ForwardContext
from worker.model.latent import padded
from worker.model.model import Layer, MoeBlock
from worker.model.own import class_of, loss_of
from worker.model.parallel import TensorParallel
from worker.model.rotary import rotate
from worker.profile.bench import Bench
from worker.profile.rows import Part
from worker.trainable import why_untrainable
from worker.world.silent import SilentGroup

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def check_model(model: ModelShape) -> None:
    """Refuse a model whose layers the worker does not have.

    Raises:
        InvalidWorkload: one sentence that names what is missing.
    """
    reason = why_untrainable(model, sequence_length=1)
    if reason is not None:
        raise InvalidWorkload(f"{reason}; its modelled profile is there", code="Unsupported")


def parts_of(model: ModelShape, tp: int = 1, ways: int = 1) -> tuple[Part, ...]:
    """What is measured of a model.

    Args:
        model: whose layers the worker has.
        tp: TP degree.
        ways: most parts, EP x ETP, into which experts are divided beside the plain division.
    """
    kinds: tuple[Kind, ...] = ("embedding", *model.block_kinds, "head")
    experts = model.experts
    if experts is None:
        return tuple(map(Part, kinds))
    degrees = [1 << power for power in range(ways.bit_length())]
    tilings = (
        Part("moe_block", ep, etp)
        for ep in degrees
        for etp in degrees
        if experts.count % ep == 0 and experts.ffn % etp == 0 and ep * etp <= ways
        if (ep, etp) != (1, tp)
    )
    return (*map(Part, kinds), *tilings)


def measure_layer(
    bench: Bench,
    model: ModelShape,
    part: Part,
    tp: int,
    micro_batch: int,
    sequence_length: int,
    precision: str,
    reduce_s: Callable[[float], float],
) -> LayerCost:
    """The cost of one layer on one rank of a TP group.

    Args:
        bench: where and how often.
        model: whose layers the worker has.
        part: kind of the layer, and how its experts are divided.
        tp: TP degree; the shard of slot 0 is measured.
        micro_batch: b.
        sequence_length: tokens a sample.
        precision: of weights and activations.
        reduce_s: seconds of an all-reduce of that many bytes among `tp` ranks.
    """
    kind = part.kind
    index = {"embedding": 0, "block": 1, "moe_block": model.layers, "head": model.layers + 1}[kind]
    dtype = DTYPES[precision]
    device = bench.device
    layer = _shard(model, index, tp, part, dtype, device)
    layer.current.context = ForwardContext(seed=0, samples=range(micro_batch), device=device)
    tokens = device.put(torch.randint(0, model.vocab // tp, (micro_batch, sequence_length)))
    loss = loss_of(model, TensorParallel())
    hidden = device.put(torch.randn(micro_batch, sequence_length, model.hidden, dtype=dtype))

    def forward() -> torch.Tensor:
        x = tokens if kind == "embedding" else hidden.detach().requires_grad_()
        out: torch.Tensor = layer(x)
        if kind == "head":
            out = loss(out, tokens)
        return out

    forward_s = bench.seconds(forward)
    both_s = bench.seconds(lambda: torch.autograd.backward(forward().sum()))
    kept = _kept_bytes(layer, forward)
    attention_s, attention_bytes = 0.0, 0
    if kind in model.block_kinds:
        if model.own is None:
            core = _attention(model, tp, micro_batch, sequence_length, dtype, device)
            attention_s = bench.seconds(core)
        layer.recompute = "selective"
        attention_bytes = max(0, kept - _kept_bytes(layer, forward))
    message = micro_batch * sequence_length * model.hidden * VALUE_BYTES[precision]
    reductions = _reductions(model, part) if tp > 1 else 0
    return LayerCost(
        forward_s=forward_s,
        backward_s=max(0.0, both_s - forward_s),
        tp_communication_s=reductions * reduce_s(message) if reductions else 0.0,
        activation_bytes=kept,
        attention_s=attention_s,
        attention_bytes=attention_bytes,
        input_bytes=8 * tokens.numel() if kind == "embedding" else message,
    )


def _reductions(model: ModelShape, part: Part) -> int:
    """All-reduces of whole activations in both passes of a layer."""
    shared = 2 if model.experts is not None and model.experts.shared else 0
    if part.etp:  # tokens that a TP group had divided are gathered, which is half an all-reduce
        return 3 + shared
    return {"embedding": 1, "block": 4, "moe_block": 4 + shared, "head": 1}[part.kind]


def _shard(
    model: ModelShape, index: int, tp: int, part: Part, dtype: torch.dtype, device: Device
) -> Layer:
    def source(tensor: Tensor) -> torch.Tensor:
        shape = list(tensor.shape)
        if tensor.experts:
            shape[0] //= part.ep
        if tensor.dim is not None:
            shape[tensor.dim] //= (part.etp or tp) if tensor.experts else tp
        kind = torch.float32 if tensor.is_counted else dtype
        return device.put(torch.randn(shape, dtype=kind) * 0.02)

    group = TensorParallel()  # alone: what its group would add is priced apart
    if part.etp and tp > 1:  # each rank takes a run of the tokens
        group = TensorParallel(tp, 0, SilentGroup(tuple(range(tp))))
    layer = class_of(model, index)(model, index, group, source, CurrentContext())
    if isinstance(layer, MoeBlock) and part.etp:
        ep, etp = (Place(SilentGroup(tuple(range(n))), 0) for n in (part.ep, part.etp))
        layer.place = ExpertPlace(
            is_tiled=True,
            ep=ep if part.ep > 1 else None,
            etp=etp if part.etp > 1 else None,
            host=device.host,
        )
    return layer


def _attention(
    model: ModelShape, tp: int, b: int, s: int, dtype: torch.dtype, device: Device
) -> Callable[[], object]:
    def random(heads: int) -> torch.Tensor:
        return device.put(torch.randn(b, heads // tp, s, model.head_dim, dtype=dtype))

    q, k, v = random(model.heads), random(model.kv_heads), random(model.kv_heads)
    rotary, scale = model.arithmetic.rotary, model.head_dim**-0.5
    if model.latent is not None:  # whose heads are rotated before
        narrow = v[..., : model.latent.value]
        return lambda: attend(q, k, padded(narrow, model.head_dim), scale=scale)
    if not model.rotary:
        return lambda: attend(q, k, v, scale=scale)
    turned = partial(rotate, rotary=rotary, device=device)
    return lambda: attend(turned(q), turned(k), v, scale=scale)


def _kept_bytes(layer: Layer, forward: Callable[[], torch.Tensor]) -> int:
    """Bytes of everything that autograd keeps for the backward pass, weights apart."""
    weights = {weight.untyped_storage()._cdata for weight in layer.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:  # by the storage, not its address, which a device hides
            kept[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = forward()
    del out
    return sum(kept.values())
