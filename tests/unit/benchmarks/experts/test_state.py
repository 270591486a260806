"""benchmarks/experts/state.py: what ranks allocate under ZeRO is what the planner counts."""

from __future__ import annotations

from benchmarks.experts.state import MODEL, rows_of, section

NEAR = 1e-3  # as the rule promises


def test_the_state_of_every_rank_is_that_of_the_rule_without_zero_and_with_it():
    rows = list(rows_of(MODEL))
    for row in rows:
        assert len(row.found) == row.replicas
        assert abs(row.apart) <= NEAR
        assert row.zero or set(row.found) == {row.rule}
    assert f"{max(abs(row.apart) for row in rows):.3%}" in section(rows)


def test_stage_1_takes_less_where_a_tensor_has_copies():
    rows = list(rows_of(MODEL))
    for plain, zero in zip(rows[::2], rows[1::2], strict=True):
        assert (plain.zero, zero.zero) == (0, 1)
        assert (max(zero.found) < max(plain.found)) == (plain.replicas > 1)
