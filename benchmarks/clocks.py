"""The clocks that a benchmark can count seconds by."""

from __future__ import annotations

import time

CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
