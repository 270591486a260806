"""Where halted survivors can go on."""

import pytest

from worker.contract import RankReport, Resume, resume_of


def rank(
    step: int, gradients: int | None = None, norm: tuple[int, float] | None = None
) -> RankReport:
    return RankReport(
        slot=0, pid=1, started_s=0.0, phase="halted", epoch=1, step=step, gradients_step=gradients,
        norm_step=norm[0] if norm else None, gradient_norm=norm[1] if norm else None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("survivors", "expected"),
    [
        pytest.param([], None, id="nobody-is-left"),
        pytest.param([rank(7), rank(7)], Resume(step=7), id="all-before-the-norm"),
        pytest.param([rank(7, 7), rank(7)], Resume(step=7), id="sums-done-somewhere-norm-nowhere"),
        pytest.param([rank(7, 7), rank(7, 7)], Resume(step=7), id="all-sums-done-norm-nowhere"),
        pytest.param(
            [rank(7, 7, (7, 2.5)), rank(7, 7, (6, 1.0))],
            Resume(step=8, gradient_norm=2.5),
            id="one-knows-the-norm",
        ),
        pytest.param(
            [rank(8, None, (7, 2.5)), rank(7, 7)],
            Resume(step=8, gradient_norm=2.5),
            id="one-has-applied-the-step",
        ),
        pytest.param(
            [rank(8, None, (7, 2.5)), rank(8, None, (7, 2.5))],
            Resume(step=8),
            id="all-have-applied",
        ),
        pytest.param([rank(8, None, (7, 2.5)), rank(7)], None, id="gradients-lost"),
        pytest.param([rank(9), rank(7, 7)], None, id="two-steps-apart"),
    ],
)
def test_survivors_roll_forward_once_any_of_them_passed_the_norm(
    survivors: list[RankReport], expected: Resume | None
) -> None:
    assert resume_of(survivors) == expected
