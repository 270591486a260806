"""Seconds of work of every port and network card by the plan of a transfer."""

from __future__ import annotations

from migration.balance import Loads
from migration.links import Links
from migration.transfer import Transfer


def loads_of(transfer: Transfer, links: Links) -> Loads:
    """Load of every port and card, over those links; `longest_s` is the makespan."""
    loads = Loads(links=links, nodes=transfer.nodes)
    for run in transfer.runs:
        loads.add(run)
    return loads


def makespan_s(transfer: Transfer) -> float:
    """Predicted seconds, over the links that decided: those of the busiest port or card."""
    return loads_of(transfer, transfer.links).longest_s()
