"""What Helm makes of charts/heddle."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.cluster.assets import Assets

CHART = Path(__file__).parents[1] / "charts" / "heddle"
HELM = Assets.of(os.environ).path("helm")
needs_helm = pytest.mark.skipif(not HELM.exists(), reason="helm is built by: make kube-assets")


def bodies(*options):
    """The objects of the chart."""
    return [body for body in yaml.safe_load_all(template(*options).stdout) if body]


def template(*options):
    """What `helm template` says."""
    command = [str(HELM), "template", "trial", str(CHART), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)
