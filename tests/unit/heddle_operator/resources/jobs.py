"""The job whose objects the tests of this folder build."""

from __future__ import annotations

from heddle_operator.apis.heddlejob import load_job


def a_job(template=None, **data):
    return load_job(
        {
            "apiVersion": "heddle.dev/v1alpha1",
            "kind": "HeddleJob",
            "metadata": {"name": "tiny", "namespace": "ns", "uid": "u-1"},
            "spec": {
                "model": {"name": "tiny-llama"},
                "data": data or {"builtin": "text"},
                "training": {"globalBatch": 32, "sequenceLength": 128},
                "steps": 5,
                "worker": {"template": template or {}},
            },
        }
    )
