"""worker/engine/deepspeed.py: a DeepSpeed whose seams were not tried is refused by name."""

from __future__ import annotations

import contextlib
import os
import sys

import pytest

from tests.unit.worker.ranks import run_ranks
from worker.errors import EngineFailed

pytestmark = pytest.mark.slow  # imports DeepSpeed


@pytest.fixture(scope="module")
def engine():
    from worker.engine import deepspeed as deepspeed_engine

    return deepspeed_engine


def test_the_locked_deepspeed_has_every_seam(engine):
    engine.check_deepspeed()


def test_another_version_is_refused_with_what_to_install(engine, monkeypatch):
    monkeypatch.setattr(engine.deepspeed, "__version__", "0.99.0+local")
    with pytest.raises(EngineFailed, match=r"0\.99\.0 was not tried .* install 0\.19\.8"):
        engine.check_deepspeed()


@pytest.mark.parametrize("name", ["_exec_reduce_grads", "_exec_optimizer_step", "_INSTRUCTION_MAP"])
def test_a_seam_that_vanished_would_be_an_override_without_effect(engine, monkeypatch, name):
    monkeypatch.delattr(engine.PipelineEngine, name)
    with pytest.raises(EngineFailed, match=rf"lacks PipelineEngine\.{name}"):
        engine.check_deepspeed()


def claims(_rank, store):
    """Which groups have fp32 gradients while each is stepped, and the types of all weights."""
    with contextlib.redirect_stdout(sys.stderr):  # where DeepSpeed's log goes from its import on
        return _step(store)


def _step(store):
    import deepspeed
    import torch
    from deepspeed.accelerator import get_accelerator
    from torch import distributed as dist

    from worker.engine.deepspeed import adopt_world, forget_world, warm_up

    warm_up()
    os.environ["LOCAL_RANK"] = "0"
    type(get_accelerator()).is_fp16_supported = lambda _: True  # on a CPU it says no, and computes
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    adopt_world()
    blocks = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
    adam = torch.optim.Adam([{"params": list(block.parameters())} for block in blocks])
    config = {
        "train_batch_size": 1,
        "fp16": {"enabled": True, "loss_scale": 1.0},
        "zero_optimization": {"stage": 1},
    }
    engine, optimizer, *_ = deepspeed.initialize(model=blocks, optimizer=adam, config=config)
    seen = []
    step = adam.step

    def watched():
        masters = optimizer.single_partition_of_fp32_groups
        seen.append([i for i, master in enumerate(masters) if master.grad is not None])
        step()

    adam.step = watched
    engine.backward(engine(torch.ones(1, 8, dtype=torch.half)).float().sum())
    engine.step()
    kinds = {str(parameter.dtype) for parameter in blocks.parameters()}
    forget_world()
    dist.destroy_process_group()
    return {"seen": seen, "kinds": sorted(kinds)}


def test_fp16_gradients_become_fp32_one_group_of_parameters_at_a_time():
    """The planner's memory of fp16 rests on it."""
    (found,) = run_ranks("tests.unit.worker.engine.test_deepspeed:claims", 1)
    assert found == {"seen": [[0], [1], [2], [3]], "kinds": ["torch.float16"]}
