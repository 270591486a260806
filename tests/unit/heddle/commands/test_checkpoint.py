"""heddle/commands/checkpoint.py: checkpoints are listed, checked, exported and removed."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner
from safetensors.torch import load_file
from torch.distributed.checkpoint import HuggingFaceStorageReader

from heddle.commands.checkpoint import checkpoint
from planner.errors import HeddleError
from planner.model.catalogue import MODELS
from planner.model.config import model_of_config
from planner.model.shape import ModelShape
from planner.model.tensors import model_tensors
from tests.builders import MOE, tiled
from tests.checkpoints import of_a_job, save, state
from tests.drafts import old_draft
from tests.hugging_face import CONFIGS, config_of
from worker.checkpoint.attempts import Attempt
from worker.checkpoint.manifest import Manifest
from worker.checkpoint.vaults.folder_vault import FolderVault

TINY, ROOT = MODELS["tiny-llama"], Path(__file__).parents[4]
OLD, NEW = Attempt(1, 10), Attempt(2, 20)
PLAN = tiled("2x1 1x2", replicas=2)
SUFFIXES = ("", "/exp_avg", "/exp_avg_sq")


def saved(folder, *attempts, model=MOE, plan=PLAN, **job):
    """A folder of checkpoints."""
    vault = FolderVault(folder)
    for attempt in attempts:
        known = of_a_job(model, attempt.step, **job)
        assert save(vault, attempt, plan, state(model, attempt.step), known) is not None
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two whole checkpoints of the model with experts."""
    return saved(tmp_path_factory.mktemp("two"), OLD, NEW)


@pytest.fixture
def folder(two, tmp_path):
    """A copy of them that a test may change."""
    return shutil.copytree(two, tmp_path / "checkpoints")


def run(*arguments):
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(checkpoint, words, catch_exceptions=False)


def said(*arguments):
    return json.loads(run(*arguments, "--output", "json").stdout)


def refused(*arguments):
    """The code of the one sentence."""
    with pytest.raises(HeddleError) as refusal:
        run(*arguments)
    assert "\n" not in str(refusal.value)
    return refusal.value.code


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_the_list_has_a_row_for_each_attempt_the_newest_first(folder):
    (folder / OLD.manifest).unlink()
    newest, oldest = said("ls", folder)
    files = list((folder / str(NEW)).glob("*.safetensors"))
    manifest = Manifest.from_bytes((folder / NEW.manifest).read_bytes())
    assert newest == {
        "step": 20, "epoch": 2, "saved": newest["saved"], "files": len(files),
        "bytes": sum(path.stat().st_size for path in files), "precision": "fp32",
        "plan": manifest.plan_digest, "held_out_loss": None, "condition": "whole",
        "fault": None, "is_best": False,
    }  # fmt: skip
    assert newest["saved"].endswith("Z")
    assert (oldest["condition"], oldest["saved"], oldest["plan"]) == ("incomplete", None, None)


def test_the_table_of_the_list_is_aligned_and_has_a_dash_for_what_nobody_knows(folder):
    (folder / OLD.manifest).write_bytes(b"")
    head, newest, oldest = (line.split() for line in run("ls", folder).stdout.splitlines())
    assert head[:3] == ["step", "epoch", "saved"]
    assert head[-4:] == ["plan", "loss", "best", "condition"]
    assert (newest[0], newest[-1]) == ("20", "whole")
    assert (oldest[0], oldest[-3:]) == ("10", ["-", "-", "damaged"])


def test_the_best_checkpoint_is_marked_and_stays_where_only_the_newest_are_to(tmp_path):
    vault = FolderVault(tmp_path)
    for attempt, loss in ((OLD, 1.5), (Attempt(1, 15), 2.5), (NEW, None)):
        known = of_a_job(MOE, attempt.step).model_copy(update={"held_out_loss": loss})
        save(vault, attempt, PLAN, state(MOE, attempt.step), known)
    assert [row["is_best"] for row in said("ls", tmp_path)] == [False, False, True]
    cells = [line.split()[-3:-1] for line in run("ls", tmp_path).stdout.splitlines()[1:]]
    assert cells == [["-", "-"], ["2.5000", "-"], ["1.5000", "best"]]
    assert said("show", tmp_path, "--step", 10)["is_best"]
    said("rm", tmp_path, "--all-but", 1)
    assert [row["step"] for row in said("ls", tmp_path)] == [20, 10]


def test_the_time_of_a_checkpoint_is_that_of_its_manifest(folder):
    os.utime(folder / NEW.manifest, (0, 86_399))
    assert said("ls", folder)[0]["saved"] == "1970-01-01T23:59:59Z"


def test_files_of_somebody_else_are_no_part_of_a_checkpoint(folder):
    for stray in ("notes.txt", f"{OLD}/a copy.safetensors", ".snapshot/step-3.e9/manifest.json"):
        (folder / stray).parent.mkdir(parents=True, exist_ok=True)
        (folder / stray).touch()
    old_draft(folder)
    assert [row["condition"] for row in said("ls", folder)] == ["whole", "whole"]
    said("rm", folder, "--step", 10)
    assert ([row["step"] for row in said("ls", folder)], *folder.glob("step-8*")) == ([20],)


def test_settings_and_sizes_of_a_checkpoint_are_shown(tmp_path):
    job = {"precision": "bf16", "seed": 7, "learning_rate": 0.5}
    found = said("show", saved(tmp_path, OLD, NEW, **job), "--step", 10)
    assert found["bytes"] > found["weight_bytes"] + found["moment_bytes"]
    numbers = 4 * sum(tensor.numel for tensor in model_tensors(MOE))
    assert found["weight_bytes"] == numbers
    assert found["moment_bytes"] == 2 * numbers
    assert {key: found[key] for key in ("step", "epoch", "model", "loss_scale", "updates")} == {
        "step": 10, "epoch": 1, "model": "moe", "loss_scale": 1, "updates": 10,
    }  # fmt: skip
    settings = ("global_batch", "sequence_length", "seed", "precision", "steps", "learning_rate")
    assert [found[key] for key in settings] == [8, 16, 7, "bf16", 400, 0.5]
    manifest = Manifest.from_bytes((tmp_path / OLD.manifest).read_bytes())
    assert (found["files"], found["boxes"]) == (len(manifest.files), len(manifest.boxes))


def test_the_newest_whole_checkpoint_is_shown_unasked(folder):
    assert said("show", folder)["step"] == 20
    (folder / NEW.manifest).unlink()
    assert said("show", folder)["step"] == 10
    rows = {line.split()[0]: line.split()[-1] for line in run("show", folder).stdout.splitlines()}
    assert rows["step"] == "10"


def test_a_whole_checkpoint_is_verified(folder):
    found = said("verify", folder)
    manifest = Manifest.from_bytes((folder / NEW.manifest).read_bytes())
    assert found == {
        "path": str(folder),
        "step": 20,
        "epoch": 2,
        "is_whole": True,
        "files": len(manifest.files),
        "boxes": len(manifest.boxes),
        "bytes": sum(saved.num_bytes for saved in manifest.boxes),
    }
    assert said("verify", folder, "--step", 10)["step"] == 10


def test_the_first_damaged_object_is_named_and_the_command_fails(folder):
    file = sorted((folder / str(NEW)).glob("*.safetensors"))[1]
    flip(file, -1)
    done = CliRunner().invoke(checkpoint, ["verify", str(folder), "--output", "json"])
    assert isinstance(done.exception, HeddleError)
    assert done.exception.code == "damaged"
    assert file.name in str(done.exception)
    found = json.loads(done.stdout)
    assert (found["is_whole"], found["damaged"]) == (False, f"{NEW}/{file.name}")
    assert said("verify", folder, "--step", 10)["is_whole"]


@pytest.mark.parametrize("verb", ["show", "verify", "export"])
@pytest.mark.parametrize(("content", "code"), [(b"", "damaged"), (None, "newer")])
def test_a_manifest_that_cannot_be_read_is_refused(tmp_path, verb, content, code):
    folder = saved(tmp_path / "checkpoints", OLD)
    manifest = Manifest.from_bytes((folder / OLD.manifest).read_bytes())
    newer = manifest.model_copy(update={"version": 2}).to_bytes()
    (folder / OLD.manifest).write_bytes(newer if content is None else content)
    more = [tmp_path / "out"] if verb == "export" else []
    assert refused(verb, folder, *more) == (code if verb == "verify" else "whole")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", ["ls", "show", "verify", "export", "rm"])
def test_a_path_without_checkpoints_is_refused(tmp_path, verb):
    (tmp_path / "file").touch()
    more = {"export": [tmp_path / "out"], "rm": ["--step", 1]}.get(verb, [])
    for path, code in (
        (tmp_path / "none", "missing"),
        (tmp_path, "empty"),
        (tmp_path / "file", "folder"),
        ("gs://bucket/x", "scheme"),
        ("", "name"),
    ):
        assert refused(verb, path, *more) == code


@pytest.mark.parametrize("verb", ["show", "verify", "export", "rm"])
def test_a_step_that_is_not_there_is_refused(folder, tmp_path, verb):
    more = [tmp_path / "out"] if verb == "export" else []
    assert refused(verb, folder, *more, "--step", 11) == "step"


def test_the_exported_folder_has_the_bits_of_the_state(tmp_path):
    folder = saved(tmp_path / "checkpoints", OLD, model=TINY, plan=tiled("2x3 1x3"))
    found = said("export", folder, tmp_path / "out")
    assert found["files"] == ["model.safetensors", "config.json"]
    assert found["bytes"] == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    held = load_file(tmp_path / "out" / "model.safetensors")
    truth = state(TINY, 10).parts
    assert torch.equal(held["model.layers.4.mlp.down_proj.weight"], truth["5.down"][0])
    assert torch.equal(held["model.norm.weight"], truth["7.norm"][0])
    assert sum(tensor.numel() for tensor in held.values()) == sum(
        tensor.numel - tensor.padding * tensor.row_numel for tensor in model_tensors(TINY)
    )


LIMITED = """
import re, resource, sys
import torch
from click.testing import CliRunner
from heddle.commands.checkpoint import checkpoint
import rich.progress, worker.checkpoint.exporting, worker.weights.hugging_face.writing
torch.set_num_threads(1)
used = int(re.search(r"VmData:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
room = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_DATA, (used + room, resource.RLIM_INFINITY))
try:
    torch.ones(2 * room // 4)
except RuntimeError:
    pass
else:
    raise SystemExit("the limit is none")
CliRunner().invoke(checkpoint, sys.argv[2:], catch_exceptions=False)
"""


@pytest.mark.slow
def test_a_checkpoint_is_read_and_exported_in_far_less_memory_than_it_has(tmp_path):
    """58 MB of weights, some of them transposed, and 117 MB of moments, with room for 40 MB."""
    model = ModelShape(
        name="gpt", layers=1, hidden=512, heads=8, kv_heads=8, ffn=2048, vocab=24_000, gated=False,
        rotary=False, max_positions=64, tied_head=True, bias=True, qkv_bias=True,
    )  # fmt: skip
    config = {"model_type": "gpt2", "n_embd": 512}
    folder = saved(tmp_path / "in", OLD, model=model, plan=tiled("2x1"), config=config)
    for verb in (["verify", folder], ["export", folder, tmp_path / "out"]):
        command = [sys.executable, "-c", LIMITED, 40 * 2**20, *verb]
        words = list(map(str, command))
        found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert found.returncode == 0, found.stderr[-2000:]
    assert (tmp_path / "out" / "model.safetensors").stat().st_size > 55 * 2**20


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.slow
def test_transformers_loads_the_exported_folder(tmp_path, kind):
    """GPT-2 keeps some tensors fused and transposed."""
    from transformers import AutoModelForCausalLM

    config = {**config_of(kind).to_dict(), "model_type": kind}
    model = model_of_config(config, kind)
    folder = saved(tmp_path / "in", OLD, model=model, plan=tiled("2x2"), config=config)
    run("export", folder, tmp_path / "out", "--dtype", "bf16")
    held = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    truth = state(model, 10).parts
    vocabulary = CONFIGS[kind]["vocab_size"]
    name = {"gpt2": "transformer.wte.weight", "llama": "model.embed_tokens.weight"}[kind]
    assert torch.equal(held[name], truth["0.weight"][0][:vocabulary].to(torch.bfloat16))
    if kind == "gpt2":
        joined = torch.cat([truth[f"1.{part}"][0] for part in "qkv"]).T.to(torch.bfloat16)
        assert torch.equal(held["transformer.h.0.attn.c_attn.weight"], joined)


def test_torch_loads_the_whole_state_from_the_other_format(folder, tmp_path):
    found = said("export", folder, tmp_path / "out", "--format", "dcp", "--step", 10)
    assert sorted(found["files"]) == sorted(names(tmp_path / "out"))
    truth = state(MOE, 10).parts
    target = {
        tensor.name + suffix: torch.empty(tensor.shape)
        for tensor in model_tensors(MOE)
        for suffix in SUFFIXES
    }
    reader = HuggingFaceStorageReader(str(tmp_path / "out"))
    dcp.load(target, storage_reader=reader, no_dist=True)
    for name, numbers in truth.items():
        for suffix, part in zip(SUFFIXES, numbers, strict=True):
            assert torch.equal(target[name + suffix], part)


@pytest.mark.parametrize("form", ["hugging-face", "dcp"])
def test_an_older_export_is_replaced_when_asked_only(tmp_path, form):
    folder = saved(tmp_path / "in", OLD, model=TINY, plan=tiled("2x3 1x3"))
    saved(folder, NEW, model=TINY, plan=tiled("1x6"))
    export = ("export", folder, tmp_path / "out", "--format", form)
    first = said(*export, "--step", 10)["files"]
    before = {name: (tmp_path / "out" / name).read_bytes() for name in first}
    assert refused(*export) == "Taken"
    assert {name: (tmp_path / "out" / name).read_bytes() for name in first} == before
    assert sorted(said(*export, "--overwrite")["files"]) == names(tmp_path / "out")


def test_an_export_goes_nowhere_where_it_would_be_taken_for_something_else(folder, tmp_path):
    export = ("export", folder)
    for inside in (folder, folder / str(OLD), folder / "new"):
        assert refused(*export, inside, "--overwrite") == "Taken"
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert refused(*export, tmp_path / "file") == "Taken"
    for odd in (tmp_path / ("x" * 300), tmp_path / "loop", tmp_path / "file" / "out"):
        assert refused(*export, odd, "--format", "dcp") == "Unwritable"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.safetensors").touch()
    assert refused(*export, tmp_path / "out", "--format", "dcp", "--overwrite") == "Taken"
    with pytest.raises(click.UsageError):
        CliRunner().invoke(
            checkpoint,
            ["export", str(folder), str(tmp_path / "new"), "--format", "dcp", "--dtype", "bf16"],
            catch_exceptions=False,
            standalone_mode=False,
        )


@pytest.mark.parametrize("form", ["hugging-face", "dcp"])
def test_a_damaged_checkpoint_is_never_exported_as_a_whole(tmp_path, form):
    folder = saved(tmp_path / "in", OLD, model=TINY, plan=tiled("1x6"))
    run("export", folder, tmp_path / "out", "--format", form)
    manifest = Manifest.from_bytes((folder / OLD.manifest).read_bytes())
    weight = next(one for one in manifest.boxes if one.box.tensor == "5.q")
    flip(folder / OLD.name(weight.file), weight.start)
    assert refused("export", folder, tmp_path / "out", "--format", form, "--overwrite") == "damaged"
    assert "config.json" not in names(tmp_path / "out")
    assert not set(manifest.files) <= set(names(tmp_path / "out"))


def test_a_checkpoint_is_removed_with_all_its_files(folder):
    found = said("rm", folder, "--step", 10)
    assert found["removed"] == [str(OLD)]
    assert found["kept"] == names(folder) == [str(NEW)]


def test_the_newest_whole_checkpoint_goes_only_when_that_is_said(folder):
    before = names(folder / str(NEW))
    assert refused("rm", folder, "--step", 20) == "Refused"
    assert names(folder / str(NEW)) == before
    assert said("rm", folder, "--step", 20, "--yes")["kept"] == [str(OLD)]


def test_all_but_the_newest_are_removed(folder):
    later = Attempt(3, 15)
    saved(folder, later)
    assert said("rm", folder, "--all-but", 2)["removed"] == [str(OLD)]
    assert said("rm", folder, "--all-but", 2)["removed"] == []
    assert said("rm", folder, "--all-but", 1)["kept"] == [str(later)]


@pytest.mark.parametrize("words", [[], ["--step", "10", "--all-but", "1"]])
def test_one_of_step_and_number_is_needed(folder, words):
    done = CliRunner().invoke(checkpoint, ["rm", str(folder), *words])
    assert done.exit_code == 2
    assert names(folder) == [str(OLD), str(NEW)]


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "left"), [("n", [str(OLD), str(NEW)]), ("y", [str(NEW)])])
def test_a_person_at_a_terminal_is_asked(folder, answer, left):
    command = [Path(sys.executable).with_name("heddle"), "checkpoint", "rm", folder, "--step", "10"]
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            list(map(str, command)), stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            os.write(ours, f"{answer}\n".encode())
            _, asked = process.communicate(timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert f"Remove {OLD}?" in asked.decode()
    assert process.returncode == 0
    assert names(folder) == left
