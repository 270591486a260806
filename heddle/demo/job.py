"""The demo's job: a tiny model on real text, with settings under which losses can be compared."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from heddle_operator.apis.heddlejob import HeddleJob, load_job
from planner.model.workload import DEMO_MODELS

MODELS = DEMO_MODELS
STEPS = 205
GLOBAL_BATCH = 20
SEQUENCE_LENGTH = 128


def demo_job(steps: int, seed: int, cooldown_s: float = 0.0, model: str = MODELS[0]) -> HeddleJob:
    """A job that keeps every piece of its state on two nodes, and follows the cluster at once.

    After a change it looks for a better plan only when `cooldown_s` have passed.
    """
    return load_job(
        {
            "apiVersion": "heddle.dev/v1alpha1",
            "kind": "HeddleJob",
            "metadata": {"name": "demo"},
            "spec": {
                "model": {"name": model},
                "data": {"builtin": "text"},
                "training": {
                    "globalBatch": GLOBAL_BATCH,
                    "sequenceLength": SEQUENCE_LENGTH,
                    "seed": seed,
                    "learningRate": 3e-4,
                    "warmupSteps": 50,
                    "epsilon": 1e-6,
                    "betas": [0.9, 0.95],
                    "gradientClip": 1.0,
                },
                "steps": steps,
                "elastic": {
                    "minHolders": 2,
                    "joinDebounceSeconds": 0.2,
                    "cooldownSeconds": cooldown_s,
                    "verify": "Full",  # it is small, and shows that no bit changed
                },
            },
        }
    )


def text_folder() -> Path:
    """The sources of Python's standard library: text that every machine with Python has."""
    return Path(sysconfig.get_paths()["stdlib"])
