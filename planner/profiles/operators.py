"""The operators of each kind of layer, with their work and their traffic.

Everything is per rank of a TP group and per micro-batch.  Legend: b micro-batch, s sequence length,
n = b s tokens, h hidden, t TP degree, e bytes per value, k experts per token.
Invariant: the backward pass has two products for each one of the forward pass (for its input and
for its weight), which is why recorded backward times of half a product are never used.
Source: shapes of Megatron-LM's layers; activations kept are those of Korthikanti et al. (2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.cluster.hardware import GpuHardware, Operator, product, traffic
from planner.model.experts import equal_rows
from planner.model.shape import Kind, ModelShape, Scores

VALUE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
# What an elementwise operator moves in its backward pass, over its forward pass.
BACKWARD_TRAFFIC = 1.5
# Bytes moved for each logit: cast to fp32, maximum, exponential, sum, target; and back.
LOGIT_FORWARD_BYTES = 36
LOGIT_BACKWARD_BYTES = 14
# Reads and writes of GELU's tanh form where each of its eight operations is a kernel.
GELU_PASSES = 18
# Of the peak that fused attention reaches against a plain product; it recomputes the scores in its
# backward pass, so that has 5 products for 2.
FLASH_OF_GEMM = 0.75
FLASH_BACKWARD = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTraffic:
    """Bytes moved and kept for each attention score (one per head, query and key).

    Attributes:
        forward: between the two products of the forward pass.
        backward: the same of the backward pass.
        kept: for the backward pass.
        dropout_forward: more of it with dropout: value in, value out, mask.
        dropout_backward: the same of the backward pass.
        dropout_kept: the same of what is kept.
    """

    forward: float
    backward: float
    kept: float
    dropout_forward: float
    dropout_backward: float
    dropout_kept: float


SCORE_TRAFFIC: dict[Scores, ScoreTraffic] = {
    # scaled, masked and normalised by one kernel
    "fused": ScoreTraffic(
        forward=4, backward=6, kept=2, dropout_forward=5, dropout_backward=5, dropout_kept=3
    ),
    # scale, mask and softmax each read and write all scores
    "eager": ScoreTraffic(
        forward=13, backward=16, kept=2, dropout_forward=5, dropout_backward=5, dropout_kept=3
    ),
    # mask, mask, softmax on fp32 values, a cast, a dropout of nothing; kept as measured (no fp32
    # copy of the softmax beside its cast)
    "fp32": ScoreTraffic(
        forward=35, backward=35, kept=6, dropout_forward=0, dropout_backward=0, dropout_kept=0
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """The operators of one layer.

    Attributes:
        products: products of matrices, with how many times each runs forward.
        elementwise: other operators; their backward pass moves `BACKWARD_TRAFFIC` as much.
        core_forward: attention core or loss, whose backward pass follows a rule of its own.
        core_backward: its backward pass.
        reduced_bytes: of each all-reduce of the TP group in the forward pass; as many go back.
        kept_bytes: kept from the forward to the backward pass, without the attention core.
        core_kept_bytes: of the attention core; selective recomputation does not keep it.
        input_bytes: of the layer's input, all that full recomputation keeps.
    """

    products: tuple[Operator, ...]
    elementwise: tuple[Operator, ...] = ()
    core_forward: tuple[Operator, ...] = ()
    core_backward: tuple[Operator, ...] = ()
    reduced_bytes: tuple[float, ...] = ()
    kept_bytes: float = 0.0
    core_kept_bytes: float = 0.0
    input_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Settings that a layer's operators depend on besides the model.

    Attributes:
        tp: t.
        micro_batch: b.
        sequence_length: s.
        value_bytes: e.
        sequence_parallel: whether norms and residuals are cut along the sequence.
        ep: degree over which whole experts are spread.
        etp: degree over which each expert is cut.
    """

    tp: int
    micro_batch: int
    sequence_length: int
    value_bytes: int
    sequence_parallel: bool = False
    ep: int = 1
    etp: int = 0

    @property
    def tokens(self) -> int:
        """N of one micro-batch."""
        return self.micro_batch * self.sequence_length

    @property
    def whole(self) -> int:
        """Ranks that share what TP leaves whole."""
        return self.tp if self.sequence_parallel else 1


def layer_work(model: ModelShape, kind: Kind, shape: Shape) -> LayerWork:
    """The operators of one layer of that kind."""
    if kind == "embedding":
        return _embedding(model, shape)
    if kind == "head":
        return _head(model, shape)
    return _block(model, shape, routed=kind == "moe_block")


def _embedding(model: ModelShape, shape: Shape) -> LayerWork:
    activation = shape.tokens * model.hidden * shape.value_bytes
    dropped = shape.tokens * model.hidden if model.dropout else 0
    return LayerWork(
        products=(),
        elementwise=(traffic(2 * activation),) * (2 if model.max_positions else 1),
        reduced_bytes=(activation,) if shape.tp > 1 else (),
        kept_bytes=dropped / shape.whole + 8 * shape.tokens,
        input_bytes=8 * shape.tokens,
    )


def _head(model: ModelShape, shape: Shape) -> LayerWork:
    n, h, e = shape.tokens, model.hidden, shape.value_bytes
    logits = n * model.padded_vocab / shape.tp
    return LayerWork(
        products=(product(n, model.padded_vocab / shape.tp, h, value_bytes=e),),
        elementwise=(traffic(2 * n * h * e),),
        core_forward=(traffic(LOGIT_FORWARD_BYTES * logits),),
        core_backward=(traffic(LOGIT_BACKWARD_BYTES * logits),),
        reduced_bytes=(n * h * e, 4.0 * n, 4.0 * n) if shape.tp > 1 else (),
        kept_bytes=2 * n * h * e / shape.whole,
        input_bytes=n * h * e / shape.whole,
    )


def _block(model: ModelShape, shape: Shape, *, routed: bool) -> LayerWork:
    n, h, e, t = shape.tokens, model.hidden, shape.value_bytes, shape.tp
    activation = n * h * e
    masks = n * h if model.dropout else 0
    # inputs of both norms and of what follows them, and the masks of both residual branches
    whole = (4 * activation + 2 * masks) / shape.whole
    residual = traffic((3 * activation + masks) / shape.whole)
    norm = traffic(2 * activation / shape.whole)
    attention = _attention(model, shape)
    feed = _experts(model, shape) if routed else _feed_forward(model, shape)
    reduced: tuple[float, ...] = (activation,) * (t > 1)
    return LayerWork(
        products=(*attention.products, *feed.products),
        elementwise=(norm, *attention.elementwise, residual, norm, *feed.elementwise, residual),
        core_forward=attention.core_forward,
        core_backward=attention.core_backward,
        reduced_bytes=reduced + feed.reduced_bytes,
        kept_bytes=whole + attention.kept_bytes + feed.kept_bytes,
        core_kept_bytes=attention.core_kept_bytes,
        input_bytes=activation / shape.whole,
    )


def _attention(model: ModelShape, shape: Shape) -> LayerWork:
    n, h, e, t = shape.tokens, model.hidden, shape.value_bytes, shape.tp
    heads, width = model.heads / t, model.head_dim
    queries = heads * width
    latent = model.latent
    if latent is None:
        values = width
        keys = model.kv_heads * width / t
        into: tuple[Operator, ...] = (product(n, queries + 2 * keys, h, value_bytes=e),)
        kept = queries + 2 * keys
    else:
        values = latent.value
        keys = heads * width
        into = (product(n, queries, h, value_bytes=e),)
        if latent.query_rank:
            into = (
                product(n, latent.query_rank, h, value_bytes=e),
                product(n, queries, latent.query_rank, value_bytes=e),
            )
        into += (
            product(n, latent.kv_rank + latent.rope, h, value_bytes=e),
            product(n, heads * (width - latent.rope + values), latent.kv_rank, value_bytes=e),
        )
        kept = 2 * (latent.query_rank + latent.kv_rank) + queries + keys + heads * values
    out = product(n, h, heads * values, value_bytes=e)
    moved = (queries + keys) * n * e
    per_head = traffic(2 * moved)
    elementwise = (per_head,) * (model.rotary + model.query_key_norm)
    if model.query_key_norm:
        kept += queries + keys
    forward, backward, core_kept = _scores(model, shape, values)
    return LayerWork(
        products=(*into, out),
        elementwise=elementwise,
        core_forward=forward,
        core_backward=backward,
        kept_bytes=(kept + heads * values) * n * e,
        core_kept_bytes=core_kept,
    )


def _scores(
    model: ModelShape, shape: Shape, value_width: int
) -> tuple[tuple[Operator, ...], tuple[Operator, ...], float]:
    """(forward, backward, bytes kept) of the attention core."""
    s, b, e = shape.sequence_length, shape.micro_batch, shape.value_bytes
    heads = b * model.heads / shape.tp
    width = model.head_dim
    if model.scores == "flash":
        # causal: half of the scores are never computed
        flops = 2.0 * heads * s * s * (width + value_width) / 2
        moved = heads * s * (2 * width + 2 * value_width) * e
        tiles = max(1, round(heads * s / 128))
        forward = Operator(flops / FLASH_OF_GEMM, moved, tiles)
        backward = Operator(FLASH_BACKWARD * flops / FLASH_OF_GEMM, 2.5 * moved, tiles)
        return (forward,), (backward,), heads * s * 4.0
    cost = SCORE_TRAFFIC[model.scores]
    wide = model.scores == "fp32" or e == 4
    scores = float(heads) * s * s
    scale = e / 2 if model.scores != "fp32" else 1.0
    width_bytes = 4 if wide else e
    query_key = product(s, s, width, batch=heads, value_bytes=width_bytes)
    with_values = product(s, value_width, s, batch=heads, value_bytes=e)
    drop = model.dropout
    forward_bytes = cost.forward + (cost.dropout_forward if drop else 0)
    backward_bytes = cost.backward + (cost.dropout_backward if drop else 0)
    kept = cost.kept + (cost.dropout_kept if drop else 0)
    products = (query_key, with_values)
    return (
        (*products, traffic(forward_bytes * scale * scores)),
        (*products, *products, traffic(backward_bytes * scale * scores)),
        kept * scale * scores,
    )


def _feed_forward(model: ModelShape, shape: Shape) -> LayerWork:
    n, h, e = shape.tokens, model.hidden, shape.value_bytes
    work = _matrices(model, n, model.ffn / shape.tp, e)
    return replace(work, reduced_bytes=(n * h * e,) * (shape.tp > 1))


def _matrices(model: ModelShape, tokens: float, ffn: float, e: int) -> LayerWork:
    """Up, activation and down over that many tokens."""
    ups = 2 if model.gated else 1
    if model.scores == "fp32":  # GPT-Neo's own code computes GELU by eight kernels
        activation = [traffic(GELU_PASSES / 8 * tokens * ffn * e)] * 8
    else:
        activation = [traffic((ups + 1) * tokens * ffn * e)]
    return LayerWork(
        products=(
            product(tokens, ups * ffn, model.hidden, value_bytes=e),
            product(tokens, model.hidden, ffn, value_bytes=e),
        ),
        elementwise=tuple(activation),
        kept_bytes=(ups + 1) * tokens * ffn * e,
    )


def _experts(model: ModelShape, shape: Shape) -> LayerWork:
    """Router, dispatch, the experts that this rank holds, combine."""
    experts = model.experts
    assert experts is not None
    n, h, e = shape.tokens, model.hidden, shape.value_bytes
    etp = shape.etp or shape.tp
    routed = equal_rows(experts.per_token, n, shape.tp, etp)
    held = max(1, experts.count // shape.ep)
    each = routed / held
    width = experts.ffn / etp
    products: list[Operator] = [product(n, experts.count, h, value_bytes=e)]
    for columns, inner in ((2 * width, h), (h, width)):
        products.append(product(each, columns, inner, batch=held, value_bytes=e))
    # TP groups that cut every expert add what the k experts of a token give before they sum it; any
    # other tiling gathers the tokens that its ranks had split (half an all-reduce);
    # `planner.cost.expert_parallel` prices the rest
    plain = (shape.ep, etp) == (1, shape.tp)
    gathered = n * h * e if plain else n * h * e / 2
    work = LayerWork(
        reduced_bytes=(gathered,) * (shape.tp > 1),
        products=tuple(products),
        elementwise=(traffic(4 * routed * h * e), traffic(3 * routed * width * e)),
        kept_bytes=(2 * routed * h + 3 * routed * width) * e,
    )
    if not experts.shared:
        return work
    shared = _matrices(model, n, experts.shared * experts.ffn / shape.tp, e)
    return LayerWork(
        products=(*work.products, *shared.products),
        elementwise=(*work.elementwise, *shared.elementwise),
        reduced_bytes=work.reduced_bytes + (n * h * e,) * (shape.tp > 1),
        kept_bytes=work.kept_bytes + shared.kept_bytes,
    )


def forward_seconds(work: LayerWork, gpu: GpuHardware) -> float:
    """The forward pass on the device, or its launches by the host where those take longer."""
    operators = (*work.products, *work.elementwise, *work.core_forward)
    collectives = len(work.reduced_bytes)
    device_s = sum(map(gpu.seconds, operators))
    return max(device_s, (len(operators) + collectives) * gpu.host_forward_s)


def backward_seconds(work: LayerWork, gpu: GpuHardware) -> float:
    """The same of the backward pass."""
    device_s = (
        2 * sum(map(gpu.seconds, work.products))
        + sum(gpu.seconds(traffic(BACKWARD_TRAFFIC * o.num_bytes)) for o in work.elementwise)
        + sum(map(gpu.seconds, work.core_backward))
    )
    count = 2 * len(work.products) + len(work.elementwise) + len(work.core_backward)
    collectives = len(work.reduced_bytes)
    return max(device_s, (count + collectives) * gpu.host_backward_s)


def attention_seconds(work: LayerWork, gpu: GpuHardware) -> float:
    """The attention core of the forward pass: what selective recomputation repeats."""
    return sum(map(gpu.seconds, work.core_forward))


def reduce_seconds(sizes: Sequence[float], gpu: GpuHardware, tp: int) -> float:
    """The all-reduces of one pass."""
    ring = gpu.ring(tp)
    return sum(ring.all_reduce_s(size, tp) for size in sizes)
