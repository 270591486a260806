"""A small question on real profiles, and a network that nobody trained."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cluster.composition import Composition
from planner.cluster.gpu_limits import UNLIMITED
from planner.estimator.build_tables import pricing_of
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.policy.environment import Environment, no_limits
from planner.policy.network import Network, shapes
from planner.policy.schema import FeatureSchema
from planner.profiles.generator import find_profile

GPUS = "h100=2x4,a100-40=2x2+3x1"


def environment_on(gpus, schema, *, batch=256, d_max=24, max_gpus=UNLIMITED):
    workload = Workload(
        model=find_model("llama3-8b"), global_batch=batch, sequence_length=2048, precision="fp16"
    )
    there = Composition.from_text(gpus)
    pricing = pricing_of(workload, there, find_profile(workload), max_gpus=max_gpus)
    return Environment.of(pricing, schema, no_limits(d_max, 8))


def untrained(schema, seed=0):
    draws = np.random.default_rng(seed)
    weights = {
        name: (0.2 * draws.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes(schema).items()
    }
    return Network(weights)


@pytest.fixture(scope="session")
def schema():
    return FeatureSchema(("a100-40", "h100"), (1, 2, 4, 8), 24, 8)


@pytest.fixture(scope="session")
def environment(schema):
    return environment_on(GPUS, schema)


@pytest.fixture(scope="session")
def network(schema):
    return untrained(schema)
