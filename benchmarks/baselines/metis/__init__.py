"""Metis: device groups of powers of two over all orders of GPU types, DP before TP in each.

Faults of the release, off unless `as_released` is asked for:

- its memory rule charges one replica of a stage, so that DP is free; here every replica counts,
- its memory rule takes the profile of the first GPU type for all; here each stage has its own,
- its transfer between stages counts elements for bytes,
- on the next order of types the stage counter falls back to 1 while the groups are those of two
  stages, so that wrong plans rank first; this one is not rebuilt.

The release takes the size of the first node for all; here a TP group that would cross nodes leaves
the search, so that nodes of any sizes are said.  Plans with a stage without a block are left out.
Source: Um et al., Metis, USENIX ATC 2024.
"""

from benchmarks.baselines.metis.search import plan as plan
