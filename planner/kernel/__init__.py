"""The pricing kernel: plain scalar loops over arrays, jitted by numba.

`tables` says what flows in, `pricing_tables` (one level up) fills it from a profile.  Everything
here estimates: a plan that leaves the planner is placed and priced by `planner.cost.evaluate`.
Invariant: every function runs un-jitted as well (`NUMBA_DISABLE_JIT=1`) and gives the same numbers;
the tests compare both.
Source: design, section 2 ("One kernel"); research on plan pricing.
"""
