"""`heddle model`: what a model of the user's own looks like to planner and operator."""

from __future__ import annotations

import json

import click


@click.command()
@click.argument("entry_point")
def model(entry_point: str) -> None:
    """Print the config.json of your own model.

    ENTRY_POINT is module:function, found in the working folder or on PYTHONPATH.

    On a cluster, put the output into the ConfigMap of spec.model.configRef.
    """
    from worker.model.describe import describe

    click.echo(json.dumps(describe(entry_point), indent=1))
