"""Prints the config.json of an entry point: `python -m worker.model.own_config module:function`."""

from __future__ import annotations

import contextlib
import json
import sys

from planner.errors import HeddleError
from planner.model.config import OWN
from worker.model.own import shape_of


def main(arguments: list[str]) -> int:
    """Print it; the exit status."""
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what the user's module prints
            config = {"model_type": OWN, **shape_of(arguments[0]).to_json()}
    except HeddleError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except SystemExit as error:
        sys.stderr.write(
            f"entry point {arguments[0]} ended its process (sys.exit({error.code})); let it return "
            "the layers and the loss\n"
        )
        return 2
    sys.stdout.write(json.dumps(config, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
