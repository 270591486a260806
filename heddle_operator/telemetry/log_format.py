"""How the operator logs: as the workers do, and of Kopf only what went wrong."""

from __future__ import annotations

import logging

from worker.log_lines import configure


def configure_logs(log_format: str, log_level: str) -> None:
    """Log to standard error; of Kopf only what went wrong."""
    configure(log_format, log_level)
    if log_level != "debug":
        logging.getLogger("kopf").setLevel(logging.WARNING)
        logging.getLogger("aiohttp").setLevel(logging.WARNING)
