"""What random jobs answered, beside plain torch: losses, bits of all holders, visits of experts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from tests.distributed.exact.exactness import BATCH, Case, cases
from tests.distributed.exact.state_bits import digest_of
from tests.distributed.exact.visits import visits_of

TOLERANCE = 1e-5  # of fp32
MICRO_BATCHES = (1, 2, 4)  # of the references in low precision
SPREAD = 2.0  # times the largest difference between two of them,
SPREAD_STEPS = 50  # over at most so many steps; in a few they have hardly parted
Visits = list[list[int]]  # of a step, of each mixture: visits of each expert


class Found(NamedTuple):
    """What came of a case.

    Attributes:
        worst: largest difference of a loss from the reference's, of the nearest one in low
            precision.
        allowed: TOLERANCE, or SPREAD times what the references differ by.
        copies: compared, bit by bit, with those of another rank.
        visits: of experts in all steps.
        elsewhere: of them, those that plain torch sends to another expert; 0 in fp32.
    """

    worst: float
    allowed: float
    copies: int
    visits: int = 0
    elsewhere: int = 0


def claim(
    wanted: tuple[Any, ...], prefix: str, answers: Sequence[Sequence[dict[str, Any]]], index: int
) -> None:
    """Case `index` of `cases(*wanted)` trains as plain torch does, and its holders are equal."""
    case = cases(*wanted)[index]
    result = judged(case, prefix, answers[index])
    assert result.worst <= result.allowed
    assert (result.visits > 0) == (case.model.experts is not None)
    assert result.copies > 0 or all(plan.gpus == 1 for plan in case.plans)


def judged(case: Case, prefix: str, answers: Sequence[Sequence[dict[str, Any]]]) -> Found:
    """What came of a case.

    Raises:
        AssertionError: two holders of a piece differ in a bit, two ranks in loss, norm, scale or
            the visits of a micro-batch, an expert of fp32 has other visits than in plain torch, or
            a step or a visit is missing.
    """
    rows: dict[int, list[dict[str, Any]]] = {}
    for row in (row for answer in answers for row in answer if "final" not in row):
        rows.setdefault(row["step"], []).append(row)
    assert sorted(rows) == list(range(1, case.spec.steps + 1)), str(case)
    copies = 0
    for of_step in rows.values():
        told = {(row["loss"], row["norm"], *row["agreed"]) for row in of_step}
        assert len(told) == 1, str(case)
        bits: dict[str, list[str]] = {}
        for row in of_step:
            for piece, digest in row["bits"].items():
                bits.setdefault(piece, []).append(digest)
        assert all(len(set(digests)) == 1 for digests in bits.values()), str(case)
        copies += sum(len(digests) for digests in bits.values() if len(digests) > 1)
    losses = [rows[step][0]["loss"] for step in sorted(rows)]
    last = {piece: bits for row in rows[case.spec.steps] for piece, bits in row["bits"].items()}
    routes = [visits_of([row["visits"] for row in rows[step]]) for step in sorted(rows)]
    worst, allowed, elsewhere = _distance(case, prefix, losses, last, routes)
    return Found(worst, allowed, copies, sum(map(_total, routes)), elsewhere)


def _total(visits: Visits) -> int:
    return sum(map(sum, visits))


def _distance(
    case: Case, prefix: str, losses: list[float], bits: dict[str, str], routes: list[Visits]
) -> tuple[float, float, int]:
    """(how far the losses are from those of plain torch, how far they may be, other visits).

    Raises:
        AssertionError: in fp32, `bits` of a tensor that is counted, or the visits of a step, are
            not those of plain torch.
    """
    from worker.engine.reference.training import train, training

    spec, model, steps = case.on(prefix), case.model, len(losses)
    if spec.precision == "fp32":
        visits: list[Visits] = []
        plain, weights = train(spec, model, steps, micro_batch=BATCH, visits=visits)
        elsewhere = elsewhere_of(routes, visits)
        assert elsewhere == 0, f"{case}: {elsewhere} visits are of other experts"
        _assert_counted(case, bits, weights)
        return _apart(losses, plain), TOLERANCE, elsewhere
    of_plain: list[list[Visits]] = [[] for _ in MICRO_BATCHES]
    plains = (
        training(spec, model, size, visits=of)
        for size, of in zip(MICRO_BATCHES, of_plain, strict=True)
    )
    of_sizes = zip(*plains, strict=True)
    found = [[loss for loss, _ in of_step] for of_step in islice(of_sizes, steps)]
    elsewhere = min(elsewhere_of(routes, of[:steps]) for of in of_plain)
    worst = min(_apart(losses, one) for one in zip(*found, strict=True))
    allowed = SPREAD * max(max(row) - min(row) for row in found)
    for of_step in islice(of_sizes, max(0, SPREAD_STEPS - steps)):
        if worst <= allowed:
            break  # further steps only allow more
        row = [loss for loss, _ in of_step]
        allowed = max(allowed, SPREAD * (max(row) - min(row)))
    return worst, allowed, elsewhere


def _assert_counted(case: Case, bits: dict[str, str], weights: dict[str, Any]) -> None:
    from planner.model.tensors import model_tensors

    for tensor in model_tensors(case.model):
        if tensor.is_counted:
            bias = weights[tensor.name]
            moment = bias.new_zeros(len(bias))
            assert bits[f"multiplied {tensor.name}/0/0"] == digest_of(bias), str(case)
            wanted = digest_of(bias, moment, moment)
            assert bits[f"state {tensor.name}/0/0"] == wanted, str(case)


def elsewhere_of(routes: list[Visits], plain: list[Visits]) -> int:
    """Visits of the one that are of other experts in the other."""
    found = 0
    for own, theirs in zip(routes, plain, strict=True):
        for one, other in zip(own, theirs, strict=True):
            assert sum(one) == sum(other), "each token visits k experts"
            found += sum(abs(a - b) for a, b in zip(one, other, strict=True)) // 2
    return found


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
