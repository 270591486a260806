"""The version of what operator and agents agree on; see `worker.contract`."""

from __future__ import annotations

CONTRACT = 1  # counts what was added; a reader leaves out what it does not know
VARIABLE = "HEDDLE_CONTRACT"  # in the environment of an agent: the version of its operator
