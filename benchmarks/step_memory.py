"""Memory and time of the parts of a step, beside the plain form of each.

    python -m benchmarks.step_memory [--pairs N]

The plain form computes all at once: logits in fp32, scores of all pairs of tokens, a whole piece in
fp64, a whole tensor in the update.  Dropout's is torch's own, from a generator.  Peaks are torch's
own count of tensors on the processor, so they do not depend on the machine; times are of the
processor, in pairs.  Writes docs/results/step_memory.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, dropout, scaled_dot_product_attention

from benchmarks.pages import PAGES, header
from migration import fingerprint as fingerprints
from tests.peak_memory import peak_bytes
from worker.engine import gradient_sync, optimizer
from worker.model.attention import attend, visible
from worker.model.dropout import dropped_scores
from worker.model.forward_context import ForwardContext
from worker.model.loss import vocabulary_loss
from worker.model.parallel import TensorParallel

PAIRS = 10
TOKENS, VOCABULARY = 512, 32768
LENGTH, WINDOW, HEADS, WIDTH = 2048, 512, 4, 64
DROPPED = 0.1  # GPT-2's default
NUMEL = 1 << 23  # of a piece, and of a tensor
Work = Callable[[], object]


class Part(NamedTuple):
    """One part of a step.

    Attributes:
        name: in the table.
        ours, plain: do the same.
    """

    name: str
    ours: Work
    plain: Work


def parts() -> Iterator[Part]:
    """Each part on numbers of its own."""
    yield from map(_loss, (torch.float32, torch.bfloat16))
    for backend, said in ((SDPBackend.FLASH_ATTENTION, "fused"), (SDPBackend.MATH, "plain")):
        yield _window(backend, said)
    yield _shared_keys()
    yield _dropout()
    yield _norm()
    yield _update()
    yield _fingerprint()


def _loss(dtype: torch.dtype) -> Part:
    logits = torch.randn(1, TOKENS, VOCABULARY).to(dtype).requires_grad_()
    labels = torch.randint(VOCABULARY, (1, TOKENS))
    ours = vocabulary_loss(TensorParallel())

    def plain() -> object:
        wide = logits.float().flatten(0, 1)
        return torch.autograd.grad(cross_entropy(wide, labels.flatten()), logits)

    name = f"loss of {TOKENS} x {VOCABULARY} logits, {str(dtype).removeprefix('torch.')}"
    return Part(name, lambda: torch.autograd.grad(ours(logits, labels), logits), plain)


def _heads(count: int) -> torch.Tensor:
    return torch.randn(1, LENGTH, count, WIDTH).transpose(1, 2).requires_grad_()


def _window(backend: SDPBackend, said: str) -> Part:
    given = tuple(_heads(HEADS) for _ in "qkv")
    q, k, v = given

    def plain() -> object:
        mask = visible(LENGTH, LENGTH, WINDOW, q.device)
        with sdpa_kernel(backend):
            found = scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return torch.autograd.grad(found.sum(), given)

    def ours() -> object:
        with sdpa_kernel(backend):
            found = attend(q, k, v, scale=WIDTH**-0.5, window=WINDOW)
            return torch.autograd.grad(found.sum(), given)

    return Part(f"attention, window {WINDOW} of {LENGTH}, torch's {said} kernel", ours, plain)


def _shared_keys() -> Part:
    given = (_heads(HEADS), _heads(1), _heads(1))
    q, k, v = given

    def plain() -> object:
        wide = (t.repeat_interleave(HEADS, 1) for t in (k, v))
        found = scaled_dot_product_attention(q, *wide, is_causal=True)
        return torch.autograd.grad(found.sum(), given)

    def ours() -> object:
        return torch.autograd.grad(attend(q, k, v, scale=WIDTH**-0.5).sum(), given)

    return Part(f"attention, {HEADS} query heads share keys", ours, plain)


def _dropout() -> Part:
    """Beside dropout by torch's generator, which drops others at each run and in each plan."""
    given, scale = tuple(_heads(HEADS) for _ in "qkv"), WIDTH**-0.5
    q, k, v = given
    context = ForwardContext(seed=0, samples=range(1))

    def drop(x: torch.Tensor, queries: range, keys: range) -> torch.Tensor:
        return dropped_scores(
            x,
            queries,
            keys,
            context=context,
            name="probabilities",
            rate=DROPPED,
            heads=range(HEADS),
            length=LENGTH,
        )

    def plain() -> object:
        scores = q @ k.transpose(-1, -2) * scale
        seen = visible(LENGTH, LENGTH, 0, q.device)
        kept = dropout(scores.masked_fill(~seen, float("-inf")).softmax(-1), DROPPED)
        return torch.autograd.grad((kept @ v).sum(), given)

    def ours() -> object:
        return torch.autograd.grad(attend(q, k, v, scale=scale, drop=drop).sum(), given)

    name = f"attention of {LENGTH}, dropout of probabilities"
    return Part(name, ours, plain)


def _norm() -> Part:
    piece = torch.randn(NUMEL // 1024, 1024)
    return Part(
        f"square of a piece of {NUMEL >> 20} Mi",
        lambda: gradient_sync.square_of(piece),
        lambda: piece.double().square().sum(),
    )


def _update() -> Part:
    shards, gradient = tuple(torch.rand(NUMEL) for _ in range(3)), torch.rand(NUMEL)
    recipe = optimizer.Recipe((0.9, 0.95), 1e-8, 0.1, 1.0)

    def of(chunk: int) -> Work:
        def work() -> None:
            before, optimizer.HOST_CHUNK = optimizer.HOST_CHUNK, chunk
            optimizer.update_(shards, gradient, 2.0, 1e-9, 3, recipe)
            optimizer.HOST_CHUNK = before

        return work

    return Part(f"update of {NUMEL >> 20} Mi weights", of(optimizer.HOST_CHUNK), of(NUMEL))


def _fingerprint() -> Part:
    def of(chunk: int) -> Work:
        def work() -> None:
            before, fingerprints.CHUNK = fingerprints.CHUNK, chunk
            fingerprints.integer_fingerprint([message])
            fingerprints.CHUNK = before

        return work

    message = torch.randn(NUMEL)
    name = f"fingerprint of {NUMEL >> 18} MiB by a device's operations"
    return Part(name, of(fingerprints.CHUNK), of(NUMEL))


def ratios(part: Part, pairs: int) -> list[float]:
    """Time of ours over that of the plain form, in each of so many pairs."""
    found = []
    for index in range(pairs + 1):  # the first pair warms up
        works = (part.ours, part.plain) if index % 2 else (part.plain, part.ours)
        seconds = {work: _seconds(work) for work in works}
        found.append(seconds[part.ours] / seconds[part.plain])
    return found[1:]


def _seconds(work: Work) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    pairs = parser.parse_args().pairs
    torch.set_num_threads(1)  # as in a rank
    torch.manual_seed(0)
    rows = []
    for part in parts():
        peaks = [peak_bytes(work) / (1 << 20) for work in (part.ours, part.plain)]
        found = ratios(part, pairs)
        rows.append(
            f"| {part.name} | {peaks[0]:.1f} | {peaks[1]:.1f} | {statistics.median(found):.2f} | "
            f"{min(found):.2f} to {max(found):.2f} |"
        )
        print(rows[-1], flush=True)
    (PAGES / "step_memory.md").write_text(page(rows, pairs))


def page(rows: list[str], pairs: int) -> str:
    """The page of results."""
    command = f"python -m benchmarks.step_memory --pairs {pairs}"
    return (
        "\n".join(
            [
                "# Memory of the parts of a step",
                "",
                header(command, ["worker/engine", "worker/model", "migration"], ", one core."),
                "",
                "Peak of the tensors that a part makes, in MiB, its gradients with it.",
                "The plain form computes all at once. Times are those of the processor:",
                f"Heddle's over the plain form's, in {pairs} pairs.",
                "",
                "| part | Heddle | plain form | time (median) | least to most |",
                "| --- | --- | --- | --- | --- |",
                *rows,
                "",
                "- Losses and their gradients agree to the rounding of sums.",
                "- Updates and fingerprints agree to the bit.",
                "- Dropout's plain form draws from torch's generator. Heddle hashes each",
                "  probability, in the backward pass again; every plan drops the same ones.",
                "- On a GPU the chunks are larger. They were never measured on one.",
            ]
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
