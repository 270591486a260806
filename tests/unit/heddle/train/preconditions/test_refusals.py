"""train/preconditions/refusals.py: `--check` finds what the run would refuse."""

from __future__ import annotations

import os
import subprocess

import pytest
import torch
from safetensors.torch import save_file

from heddle.train.choices import TrainOptions, choose
from heddle.train.preconditions.refusals import refusals, weights_bytes
from tests.unit.heddle.commands.test_weights import hugging_face_folder
from tests.unit.heddle.train.test_choices import MACHINE, TINY, job_file


def found(path, is_fresh=False, reads_weights=True, **options):
    return refusals(
        choose(path, TrainOptions(**options), MACHINE),
        is_fresh=is_fresh,
        reads_weights=reads_weights,
    )


def test_a_job_that_runs_is_refused_nothing(tmp_path):
    assert found(job_file(tmp_path)) == ()


def test_emulated_types_without_a_profile_of_the_model_are_found(tmp_path):
    nodes, script = tmp_path / "nodes.yaml", tmp_path / "script.yaml"
    nodes.write_text("- {name: a, type: demo-fast, gpus: 1}")
    assert found(job_file(tmp_path), nodes=nodes) == ()
    other, *_ = found(job_file(tmp_path, spec__model={"name": "llama3-8b"}), nodes=nodes)
    assert "is of GPU type 'demo-fast', for which llama3-8b has no profile" in other.message
    assert (other.code, other.field) == ("Unknown", "type")
    script.write_text("- {at_step: 3, join: {name: b, type: h100, gpus: 1}}")
    (joined,) = found(job_file(tmp_path), nodes=nodes, script=script)
    assert "node 'b' is of GPU type 'h100'" in joined.message


def test_a_sequence_length_that_the_profile_of_an_emulated_type_lacks_is_found(tmp_path):
    nodes, path = tmp_path / "nodes.yaml", job_file(tmp_path, spec__training__sequenceLength=64)
    nodes.write_text("- {name: a, type: demo-fast, gpus: 1}")
    (line,) = found(path, nodes=nodes)
    assert "the profile holds tiny-llama with sequence length 128 in fp32, asked" in line.message
    assert line.code == "Mismatch"
    assert found(path) == ()  # a profile is measured for it


def test_a_node_without_a_price_is_found_where_money_decides(tmp_path):
    nodes, job = tmp_path / "nodes.yaml", job_file(tmp_path, spec__planner={"objective": "Cost"})
    nodes.write_text("- {name: a, type: demo-fast, gpus: 1}")
    (line,) = found(job, nodes=nodes)
    assert "node 'a' has no price" in line.message
    assert (line.code, line.field) == ("PriceMissing", "price")
    nodes.write_text("- {name: a, type: demo-fast, gpus: 1, price: 2}")
    assert found(job, nodes=nodes) == ()


def test_a_folder_that_holds_a_run_is_found(tmp_path):
    (tmp_path / "out" / "measurements").mkdir(parents=True)
    (tmp_path / "out" / "measurements" / "steps-epoch-0001.jsonl").touch()
    (line,) = found(job_file(tmp_path))
    assert "holds files of another run" in line.message
    assert found(job_file(tmp_path), is_fresh=True) == ()


def test_a_weight_that_is_not_finite_is_found_where_they_are_read(tmp_path):
    folder = tmp_path / "llama"
    folder.mkdir()
    held = hugging_face_folder(folder)
    held["model.norm.weight"][0] = torch.inf
    save_file(held, folder / "model.safetensors")
    path = job_file(tmp_path, spec__model={"path": str(folder)})
    (line,) = found(path)
    assert "'model.norm.weight' in " in line.message
    assert found(path, reads_weights=False) == ()
    seeded = job_file(tmp_path, spec__model={"path": str(folder), "init": "Seed"})
    assert found(seeded) == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount the disk of this test")
def test_a_disk_that_is_too_small_for_the_weights_is_found(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    size = f"size={weights_bytes(TINY) * 3 // 2}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", disk], check=True)
    try:
        (line,) = found(job_file(tmp_path), output=disk / "new")
        assert (
            f"the final weights need 2.2 MB in {disk / 'new'}, 2 times their size" in line.message
        )
        assert "make room, or name another folder with --output-path" in line.message
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
