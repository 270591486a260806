"""worker/agent/checkpoint_look.py: a folder that hangs costs one thread, however often."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from worker.agent.checkpoint_look import CheckpointLook
from worker.checkpoint.attempts import Attempt
from worker.contract import TrainingSpec

PATIENCE_S = 30.0


@pytest.fixture
def hung(tmp_path):
    """A folder of checkpoints whose only manifest does not answer until it is written to."""
    manifest = tmp_path / Attempt(epoch=1, step=10).manifest
    manifest.parent.mkdir()
    os.mkfifo(manifest)
    return tmp_path, manifest


def question(folder, epoch):
    spec = TrainingSpec(
        model="tiny-llama",
        data="text",
        global_batch=8,
        sequence_length=16,
        steps=400,
        checkpoint={"path": str(folder), "every_steps": 10},
    )
    return {"epoch": epoch, "training": spec.model_dump(mode="json")}


def lookers():
    return sum(thread.name == "look" for thread in threading.enumerate())


def test_looks_at_a_folder_that_hangs_share_a_thread_and_the_last_is_answered(hung):
    folder, manifest = hung

    async def main():
        news = asyncio.Event()
        look, errors = CheckpointLook(news.set, answer_s=0.2), []
        for epoch in (1, 1, 2, 3):
            news.clear()
            assert look.begin(question(folder, epoch)) is None
            await asyncio.wait_for(news.wait(), PATIENCE_S)
            assert look.answer.epoch == epoch
            errors.append(look.answer.error)
            assert lookers() == 1
        news.clear()
        look._answer_s = PATIENCE_S
        assert look.begin(question(folder, 4)) is None
        writer = os.open(manifest, os.O_WRONLY)  # the thread reads
        manifest.unlink()
        manifest.write_bytes(b"{}")
        os.close(writer)  # the disk comes back
        await asyncio.wait_for(news.wait(), PATIENCE_S)
        return errors, look.answer

    errors, answer = asyncio.run(main())
    assert errors == ["the folder did not answer within 0.2 s"] * 4
    assert (answer.epoch, answer.error) == (4, None)
