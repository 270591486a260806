"""The state to move between two plans: from whom, in which order and how (DSM).

`layout`, `tuples` and `schedule` are pure and reach no framework; bytes leave a rank only through
the seam `Transport`.
"""
