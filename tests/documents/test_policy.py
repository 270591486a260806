"""docs/policy.md names each policy that comes with Heddle, its GPU types and its quality."""

from __future__ import annotations

import re
from pathlib import Path

from planner.cluster.gpu_types import HARDWARE
from planner.policy.card import PolicyCard
from planner.profiles.profile import PROFILES

TEXT = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()
HEAD = "| model | GPU types | compositions, groups | processor time | best of 16 | best of 128 |"


def row_of(card: PolicyCard) -> str:
    """The row of a policy, by its card."""
    others = sorted(HARDWARE.keys() - set(card.types))
    is_few = len(card.types) <= len(others)
    types = ", ".join(card.types) if is_few else f"all but {', '.join(others)}" if others else "all"
    found = [card.evaluation[f"best_of_{n}_percent"] for n in (16, 128)]
    cells = (
        *(card.model, types, f"{card.num_compositions:,}, {card.groups:,}"),
        f"{card.seconds['processor']:.0f} s",
        *(f"{one['mean']:.1f} % ({one['worst']:.1f} %)" for one in found),
    )
    return f"| {' | '.join(cells)} |"


def test_the_table_of_policies_is_that_of_their_cards():
    cards = [
        PolicyCard.from_text(file.read_text(), str(file))
        for file in PROFILES.glob("*/policy/card.json")
    ]
    (table,) = re.findall(rf"^{re.escape(HEAD)}\n\|[- |]+\|\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    assert sorted(table.splitlines()) == sorted(map(row_of, cards))
