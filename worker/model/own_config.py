"""Prints the config.json of an entry point: `python -m worker.model.own_config module:function`.

An error is the line of a `planner.failure.Failure` on stderr.
"""

from __future__ import annotations

import contextlib
import json
import sys

from planner.errors import HeddleError, InvalidWorkload
from planner.failure import Failure
from planner.model.config import OWN
from worker.model.own import shape_of


def main(arguments: list[str]) -> int:
    """Print it; the exit status."""
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what the user's module prints
            config = {"model_type": OWN, **shape_of(arguments[0]).to_json()}
    except HeddleError as error:
        return _refused(error)
    except SystemExit as error:
        return _refused(
            InvalidWorkload(
                f"entry point {arguments[0]} ended its process (sys.exit({error.code})); let it "
                "return the layers and the loss",
                code="Failed",
            )
        )
    sys.stdout.write(json.dumps(config, indent=1) + "\n")
    return 0


def _refused(error: HeddleError) -> int:
    sys.stderr.write(f"{Failure.of(error).to_line()}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
