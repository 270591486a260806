"""The state to move between two plans: from whom, in which order and how (DSM).

Pure are `layout`, `classes`, `links`, `balance`, `slices` and `transfer`; bytes leave a rank only
through the seam `Transport`.
"""
