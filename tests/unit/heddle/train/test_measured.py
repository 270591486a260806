"""heddle/train/measured.py: a profile is measured once for all that a time depends on."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from heddle.train.machine import Machine
from heddle.train.measured import NAME, copy_for, folder_of, measured_folder
from heddle_operator.apis.errors import ProcessFailed
from planner.model.catalogue import find_model
from planner.model.config import model_of_config
from planner.model.workload import Workload
from planner.profiles.entries import GpuType, LayerCost, LinkCost
from tests.refusals import refused
from worker.profile.files import write_layers, write_links
from worker.profile.rows import Part, Row
from worker.weights.hugging_face.config import config_of

MACHINE = Machine("AMD EPYC", 2, 1 << 34)
LINK = LinkCost(1e-4, 1e9)
TINY = Workload(model=find_model("tiny-llama"), global_batch=20, sequence_length=128)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_what_a_time_depends_on_names_the_folder_and_nothing_else_does():
    here = folder_of(MACHINE, TINY, "2")
    wider = replace(TINY, model=replace(TINY.model, hidden=128))
    renamed = replace(TINY, global_batch=8, model=replace(TINY.model, name="mine"))
    others = [
        folder_of(replace(MACHINE, processor="other"), TINY, "2"),
        folder_of(replace(MACHINE, cores=4), TINY, "2"),
        folder_of(MACHINE, replace(TINY, sequence_length=256), "2"),
        folder_of(MACHINE, replace(TINY, precision="bf16"), "2"),
        folder_of(MACHINE, wider, "2"),
        folder_of(MACHINE, TINY, "3"),
    ]
    assert len({here, *others}) == 7
    assert folder_of(replace(MACHINE, memory_bytes=5), renamed, "2") == here


def test_a_model_of_a_folder_has_the_profile_of_its_name():
    """Its config.json says in full what the catalogue leaves to the usual rule."""
    read = model_of_config(config_of(TINY.model), "pretrained")
    assert folder_of(MACHINE, replace(TINY, model=read), "2") == folder_of(MACHINE, TINY, "2")


class Measured(Exception):
    """What progress raises here, in place of a measurement."""


def kept_profile(load: float, seconds=(1.0, 2.0, 4.0)) -> Path:
    """A profile in the cache whose rows were measured at that load."""
    folder = folder_of(MACHINE, TINY, version("torch"))
    head = {"model": NAME, "sequence_length": 128, "precision": "fp32", "provenance": {}}
    costs = [
        LayerCost(forward_s=s, backward_s=2 * s, tp_communication_s=0.0, activation_bytes=1)
        for s in seconds
    ]
    rows = {
        (Part(kind), 1, b): Row(cost, 0.0, load)
        for kind in ("embedding", "block", "head")
        for b, cost in zip((1, 2, 4), costs, strict=True)
    }
    type_ = GpuType(
        name=MACHINE.gpu_type,
        memory_bytes=1 << 34,
        reserve_bytes=1,
        optimizer_latency_s=1e-3,
        optimizer_s_per_parameter=1e-9,
    )
    write_layers(folder / NAME / f"{MACHINE.gpu_type}.json", head, type_, rows)
    write_links(folder / NAME, MACHINE.gpu_type, {}, message=LINK, network=LINK)
    return folder


def found() -> Path:
    def progress(*_):
        raise Measured

    return asyncio.run(measured_folder(MACHINE, TINY, {}, progress))


def test_what_was_measured_is_not_measured_again():
    assert kept_profile(load=0.0) == found()


def test_what_was_measured_on_a_busy_machine_is_measured_again_on_a_quieter_one():
    kept_profile(load=1e6)
    with pytest.raises(Measured):
        found()


def test_rows_of_earlier_files_that_contradict_each_other_are_measured_again():
    folder = kept_profile(load=0.0, seconds=(1.0, 9.0, 4.0))
    file = folder / NAME / f"{MACHINE.gpu_type}.json"
    body = json.loads(file.read_text())
    for row in body["layers"]:
        del row["load"], row["spread"]
    file.write_text(json.dumps(body))
    with pytest.raises(Measured):
        found()


@pytest.mark.parametrize("name", [f"{MACHINE.gpu_type}.json", "links.json"])
@pytest.mark.parametrize("share", [0.0, 0.5, None])
def test_a_profile_that_is_cut_off_is_measured_anew(name, share):
    file = kept_profile(load=0.0) / NAME / name
    body = file.read_bytes()
    file.unlink() if share is None else file.write_bytes(body[: int(share * len(body))])
    with pytest.raises(Measured):
        found()
    assert not file.parent.exists()


def test_a_model_that_cannot_be_measured_ends_in_one_sentence():
    llama = find_model("tiny-llama")
    model = replace(llama, arithmetic=replace(llama.arithmetic, lacking=("the key 'x'",)))
    lacking = Workload(model=model, global_batch=20, sequence_length=128)
    with pytest.raises(ProcessFailed, match="this machine could not be measured: "):
        asyncio.run(measured_folder(MACHINE, lacking, dict(os.environ), lambda *_: None))


def test_each_rank_of_a_run_has_its_share_of_the_memory(tmp_path):
    kept = tmp_path / "kept" / NAME
    kept.mkdir(parents=True)
    file = kept / "cpu-amd-epyc.json"
    file.write_text(json.dumps({"model": NAME, "gpu_type": {"memory_bytes": 1 << 34}}))
    copied = copy_for(kept.parent, tmp_path / "run", "tiny-llama", MACHINE, 4)
    found = json.loads((copied / "tiny-llama" / "cpu-amd-epyc.json").read_text())
    assert (found["model"], found["gpu_type"]["memory_bytes"]) == ("tiny-llama", 1 << 32)
    assert json.loads(file.read_text())["gpu_type"]["memory_bytes"] == 1 << 34


@pytest.mark.parametrize("content", [None, "", '{"gpu_type', "[]", "{}", "[" * 100_000])
def test_a_profile_that_is_damaged_is_named_with_what_to_do(tmp_path, content):
    kept = tmp_path / "kept"
    if content is not None:
        (kept / NAME).mkdir(parents=True)
        (kept / NAME / f"{MACHINE.gpu_type}.json").write_text(content)
    with refused(ProcessFailed, "Damaged"):
        copy_for(kept, tmp_path / "copy", "tiny-llama", MACHINE, 2)
