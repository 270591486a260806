"""worker/agent/folders.py: a folder that takes no weights, or is another model's, is a sentence."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from worker.agent import folders
from worker.training_settings import Corpus, DataSpec, TrainingSpec
from worker.weights.run_record import RunRecord


def probed(folder):
    return asyncio.run(folders.probe(str(folder)))


def test_a_folder_is_made_and_left_empty(tmp_path):
    assert probed(tmp_path / "new" / "folder") is None
    assert list((tmp_path / "new" / "folder").iterdir()) == []


def test_the_output_of_another_job_is_refused(tmp_path):
    first, second = RunRecord(run="uid-1", job="tiny"), RunRecord(run="uid-2", job="tiny")
    assert asyncio.run(folders.probe(str(tmp_path), first)) is None
    assert asyncio.run(folders.probe(str(tmp_path), first)) is None
    assert "belongs to job tiny, run uid-1" in asyncio.run(folders.probe(str(tmp_path), second))


def test_a_file_in_the_way_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        sentence = probed(folder)
        assert sentence.startswith(f"output {str(folder)!r} cannot be written: ")
        assert "\n" not in sentence


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may become another user")
def test_a_folder_of_somebody_else_is_one_sentence(tmp_path):
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    os.seteuid(65534)
    try:
        sentence = probed(tmp_path)
    finally:
        os.seteuid(0)
    assert sentence == (
        f"output {str(tmp_path)!r} cannot be written: permission denied; final weights could not "
        "be kept there; mount a disk that the job's user can write"
    )


def test_the_loop_goes_on_while_a_disk_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "ANSWER_S", 0.2)
    fifo = tmp_path / f".probe-{os.uname().nodename}-{os.getpid()}"
    os.mkfifo(fifo)  # opened for writing it waits for a reader, as a dead disk does

    async def main():
        looks = 0
        probing = asyncio.ensure_future(folders.probe(str(tmp_path)))
        while not probing.done():
            await asyncio.sleep(0.01)
            looks += 1
        return looks, probing.result()

    looks, sentence = asyncio.run(main())
    assert looks >= 2
    assert sentence.startswith(f"output {str(tmp_path)!r} did not take a small file within 0.2 s; ")
    with fifo.open("rb"):  # let the thread end
        pass


CONFIG = {"model_type": "llama", "hidden_size": 64, "transformers_version": "5.0.0"}


def test_a_tokenizer_that_the_model_cannot_take_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 300}}}))
    assert asyncio.run(folders.fit(str(tmp_path), 301)) is None
    sentence = asyncio.run(folders.fit(str(tmp_path), 300))
    assert "has 1 token beyond the model's vocabulary of 300, the first is 'b'" in sentence


def test_a_folder_that_is_model_and_tokenizer_is_asked_as_both():
    data = DataSpec(blend=(Corpus(path="text"),), tokenizer="/m")
    spec = TrainingSpec(model="tiny-llama", data=data, global_batch=1, sequence_length=8, steps=1)
    spec = spec.model_copy(update={"folder": "/m", "output": "/out"})
    assert set(folders.questions(spec, "tiny")) == {
        ("output", "/out"), ("model", "/m"), ("tokenizer", "/m")
    }  # fmt: skip


def compared(folder, found):
    (folder / "config.json").write_text(json.dumps(found))
    return asyncio.run(folders.compare(str(folder), CONFIG))


def test_a_folder_of_the_same_model_is_taken_however_its_config_is_written(tmp_path):
    assert compared(tmp_path, dict(reversed(CONFIG.items()))) is None
    assert compared(tmp_path, CONFIG | {"transformers_version": "4.0.0", "dtype": "x"}) is None


def test_a_folder_of_another_model_is_refused_by_digest_and_key(tmp_path):
    sentence = compared(tmp_path, CONFIG | {"hidden_size": 32})
    assert sentence.startswith("the job's config.json has digest ")
    assert f"and hidden_size 64, that of {tmp_path} has " in sentence
    assert sentence.endswith("and 32; give the job the config.json of its own folder")


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    sentence = asyncio.run(folders.compare(str(tmp_path / "none"), CONFIG))
    assert sentence.startswith(f"{tmp_path / 'none' / 'config.json'} cannot be read: ")
