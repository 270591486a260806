"""The one cost model: what an iteration of a placed plan takes, in seconds, bytes and money.

Nothing here knows numba, the estimator or a search.
"""
