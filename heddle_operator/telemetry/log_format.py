"""How the operator logs: one line each, as text or as JSON."""

from __future__ import annotations

import json
import logging


class JsonLines(logging.Formatter):
    """A record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def configure_logs(log_format: str, log_level: str) -> None:
    """Log to standard error; of Kopf only what went wrong."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonLines()
        if log_format == "json"
        else logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    )
    logging.basicConfig(level=log_level.upper(), handlers=[handler], force=True)
    if log_level != "debug":
        logging.getLogger("kopf").setLevel(logging.WARNING)
        logging.getLogger("aiohttp").setLevel(logging.WARNING)
