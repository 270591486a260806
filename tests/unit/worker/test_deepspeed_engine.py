"""worker/deepspeed_engine.py: a DeepSpeed whose seams were not tried is refused by name."""

from __future__ import annotations

import pytest

from worker.errors import EngineFailed

pytestmark = pytest.mark.slow  # imports DeepSpeed


@pytest.fixture(scope="module")
def engine():
    from worker import deepspeed_engine

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
