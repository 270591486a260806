"""Run a command of Heddle's as a program: what every one of them does with an error.

Invariant: an error that a user can cause ends in one sentence on stderr and exit code 2, never in a
traceback.  Source: sysexits; 130 and 141 are what a shell says of SIGINT and SIGPIPE.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from planner.errors import HeddleError


def run(command: click.Command) -> NoReturn:
    """Run a command with the arguments of this program, and exit."""
    try:
        status = command(standalone_mode=False)
    except HeddleError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
    sys.exit(status if isinstance(status, int) else 0)
