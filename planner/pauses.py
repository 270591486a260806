"""The pause before another try, which doubles up to a limit.

Source: Kubernetes' back-off of containers that crash.
"""

from __future__ import annotations


def doubled_s(first_s: float, times: int, limit_s: float) -> float:
    """Seconds to pause after so many failures in a row.

    Args:
        first_s: after one; then twice as long each further time.
        times: at least 1.
        limit_s: at most so long.
    """
    return min(limit_s, first_s * 2.0 ** min(times - 1, 60))
