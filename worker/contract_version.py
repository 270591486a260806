"""The version of what operator and agents agree on; `worker.contract` is the agreement itself.

It is apart from that, because `--help` of the agent is to be quick and imports no pydantic.
"""

from __future__ import annotations

CONTRACT = 1  # counts what was added; a reader leaves out what it does not know
VARIABLE = "HEDDLE_CONTRACT"  # in the environment of an agent: the version of its operator
