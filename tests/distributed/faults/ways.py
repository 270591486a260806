"""Ways of a fault as parameters of tests: one that cannot be here is skipped, and says why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.distributed.faults.campaign import lacking


def marked(ways: Iterable[str]) -> list[Any]:
    """Each way, to be skipped where this machine lacks something for it."""
    whys = {way: lacking(way) for way in ways}
    return [
        pytest.param(way, marks=pytest.mark.skipif(bool(why), reason=f"{way}: {why}"))
        for way, why in whys.items()
    ]
