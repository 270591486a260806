"""heddle/train/choices.py: everything that is wrong is said at once, before a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from heddle.train.choices import NODE, TrainOptions, as_run_here, choose
from heddle.train.machine import Machine
from heddle_operator.apis.errors import InvalidJob
from planner.model.catalogue import MODELS
from planner.profiles.generator import find_profile
from tests.fakes.driver import H100, FakeDriver, FakeLibrary
from tests.refusals import refused
from tests.unit.worker.data.texts import write_pair
from worker.device.gpus import Nvml
from worker.weights.hugging_face.config import config_of
from worker.weights.hugging_face.families import FAMILIES
from worker.weights.hugging_face.tensors import stored_tensors

TINY = MODELS["tiny-llama"]
MACHINE = Machine("AMD EPYC", 2, 1 << 34)
EXAMPLE = Path(__file__).parents[4] / "manifests" / "examples" / "tiny.yaml"


def job_file(tmp_path, **changes):
    """The example with an output and other values at `section.key`, written as a file."""
    body = yaml.safe_load(EXAMPLE.read_text())
    body["spec"]["output"] = {"path": str(tmp_path / "out")}
    for where, value in changes.items():
        *path, last = where.split("__")
        part = body
        for key in path:
            part = part.setdefault(key, {})
        part[last] = value
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


def mistakes(path, **options):
    with pytest.raises(InvalidJob) as error:
        choose(path, TrainOptions(**options), MACHINE)
    return str(error.value).splitlines()


def test_a_job_for_a_cluster_runs_here_on_one_node_of_this_processor(tmp_path):
    template = {"spec": {"containers": [{"name": "worker"}]}}
    path = job_file(
        tmp_path, spec__elastic__gpuTypes={"allow": ["h100"]}, spec__worker={"template": template}
    )
    found = choose(path, TrainOptions(), MACHINE)
    (node,) = found.nodes.nodes
    assert (node.name, node.gpu_type, node.gpus) == (NODE, "cpu-amd-epyc", 2)
    assert not found.emulates
    assert found.job.spec.elastic.gpu_types.allow == ()
    assert any("gpuTypes.allow (h100)" in note for note in found.notes)
    assert any("spec.worker.template" in note for note in found.notes)
    assert found.job.spec.output.path == str(tmp_path / "out")


def test_ranks_and_output_are_the_users(tmp_path):
    found = choose(job_file(tmp_path), TrainOptions(ranks=3, output=tmp_path / "mine"), MACHINE)
    assert found.nodes.gpus == 3
    assert found.job.spec.output.path == str(tmp_path / "mine")


def test_gpus_of_this_machine_are_one_node_of_their_type(tmp_path):
    """Nothing is emulated, and no profile of the processor is measured."""
    driver = FakeDriver(gpus=(H100, H100))
    path = job_file(tmp_path, spec__elastic__gpuTypes={"allow": ["h100"]})
    found = choose(path, TrainOptions(device="cuda"), MACHINE, driver)
    (node,) = found.nodes.nodes
    assert (node.name, node.gpu_type, node.gpus) == (NODE, "h100", 2)
    assert (found.emulates, found.is_measured) == (False, False)
    assert found.job.spec.elastic.gpu_types.allow == ("h100",)
    assert (found.job.spec.worker.device, found.job.workload.wire) == ("CUDA", "staged")
    assert "h100" in find_profile(found.job.workload).types


def test_gpus_of_another_type_or_number_than_are_here_are_refused(tmp_path):
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text("- {name: a, type: a100-80, gpus: 1}\n")
    for options, code, field in (
        (TrainOptions(device="cuda", nodes=nodes), "Mismatch", "type"),
        (TrainOptions(device="cuda", ranks=2), "OutOfRange", "device"),
    ):
        with refused(InvalidJob, code, field) as error:
            choose(job_file(tmp_path), options, MACHINE, FakeDriver())
        assert "h100" in str(error.value) or "1 GPU" in str(error.value)


LOST = Nvml(lambda _: FakeLibrary(nvmlDeviceGetHandleByIndex_v2={0: 15}))
UNASKED = Nvml(lambda _: FakeLibrary(nvmlInit_v2={None: 18}))


@pytest.mark.parametrize(("driver", "code"), [(LOST, "Failed"), (UNASKED, "Unreadable")])
@pytest.mark.parametrize(
    ("option", "field", "said"),
    [
        ("cuda", "device", "--device cuda: "),
        (None, "spec.worker.device", "spec.worker.device CUDA: "),
    ],
)
def test_gpus_that_cannot_be_used_are_told_by_who_asked_for_them(
    tmp_path, driver, code, option, field, said
):
    path = job_file(tmp_path, spec__worker__device="CUDA")
    with refused(InvalidJob, code, field) as error:
        choose(path, TrainOptions(device=option, ranks=1), MACHINE, driver)
    assert str(error.value).startswith(said)


def test_nothing_else_of_the_job_changes(tmp_path):
    found = choose(job_file(tmp_path), TrainOptions(), MACHINE)
    again, _ = as_run_here(found.job, tmp_path / "out", emulates=True)
    assert again == found.job


def test_every_mistake_is_said_not_only_the_first(tmp_path):
    path = job_file(
        tmp_path,
        spec__steps=0,
        spec__training__learningRate=-1,
        spec__training__colour="blue",
        spec__model={"name": "tiny-llama", "path": "/x"},
    )
    lines = mistakes(path, device="cuda")
    assert len(lines) == 5
    text = "\n".join(lines)
    for words in ("NVIDIA_DRIVER_CAPABILITIES", "spec.steps", "learningRate", "colour"):
        assert words in text
    assert "exactly one of `name`, `path` and `entryPoint`" in text


def test_mistakes_of_machine_and_job_are_said_together(tmp_path):
    path = job_file(
        tmp_path, spec__data={"path": "/none/text"}, spec__elastic={"mode": "Manual", "minGPUs": 9}
    )
    lines = mistakes(path, output=path / "inside")
    text = "\n".join(lines)
    assert len(lines) == 4
    for words in (
        "/none/text.bin and /none/text.idx",
        "mode Manual",
        "minGPUs is 9",
        "job.yaml/inside",
    ):
        assert words in text


@pytest.fixture
def folder(tmp_path):
    """The folder of a tiny model; the example's data has its vocabulary."""
    path = tmp_path / "llama"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config_of(TINY)))
    held = {t.name: torch.zeros(t.shape) for t in stored_tensors(TINY, FAMILIES["llama"])}
    save_file(held, path / "model.safetensors")
    return path


def test_a_folder_of_this_machine_is_what_is_trained(tmp_path, folder):
    model = {"path": str(folder), "configRef": "llama"}
    found = choose(job_file(tmp_path, spec__model=model), TrainOptions(), MACHINE)
    assert found.job.training.weights == str(folder)
    assert any("spec.model.configRef" in note for note in found.notes)


def test_weights_that_do_not_fit_and_an_output_over_them_are_mistakes(tmp_path, folder):
    save_file({"other": torch.zeros(1)}, folder / "model.safetensors")
    path = job_file(tmp_path, spec__model={"path": str(folder)})
    first, second = mistakes(path, output=folder)
    assert "lacks 57 tensors (" in first
    assert "is that of the model, whose weights it would replace" in second
    seeded = job_file(tmp_path, spec__model={"path": str(folder), "init": "Seed"})
    assert choose(seeded, TrainOptions(), MACHINE).job.training.weights is None


def test_emulated_nodes_are_named_in_a_file(tmp_path):
    nodes, script = tmp_path / "nodes.yaml", tmp_path / "script.yaml"
    nodes.write_text("- {name: a, type: demo-fast, gpus: 2}")
    script.write_text("- {at_step: 3, join: {name: b, type: demo-slow, gpus: 1}}")
    found = choose(job_file(tmp_path), TrainOptions(nodes=nodes, script=script), MACHINE)
    assert found.emulates
    assert (found.most_ranks, found.joiners[0].gpu_type) == (3, "demo-fast")


def test_type_cpu_is_this_machines_processor(tmp_path):
    nodes, script = tmp_path / "nodes.yaml", tmp_path / "script.yaml"
    nodes.write_text("- {name: a, type: cpu, gpus: 1}")
    script.write_text(
        "- {at_step: 3, join: {name: b, type: cpu, gpus: 1}}\n- {at_step: 9, kill: a}"
    )
    found = choose(job_file(tmp_path), TrainOptions(nodes=nodes, script=script), MACHINE)
    assert not found.emulates
    assert found.nodes.nodes[0].gpu_type == found.script[0].node.gpu_type == "cpu-amd-epyc"


def test_real_and_emulated_nodes_do_not_mix(tmp_path):
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text("- {name: a, type: cpu, gpus: 1}\n- {name: b, type: demo-fast, gpus: 1}")
    assert "emulated on all nodes or on none" in mistakes(job_file(tmp_path), nodes=nodes)[0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[]", "there is no node"),
        ("- {name: a, type: cpu, gpus: 99}", "node 'a' has 99 GPUs"),
        ("- {name: a, type: cpu}", "nodes.yaml"),
    ],
)
def test_a_wrong_nodes_file_is_one_of_the_mistakes(tmp_path, text, sentence):
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text(text)
    assert any(sentence in line for line in mistakes(job_file(tmp_path), nodes=nodes))
    both = mistakes(job_file(tmp_path), nodes=nodes, ranks=2)
    assert any("--ranks and --nodes" in line for line in both)


def test_a_file_that_is_no_job_is_one_sentence(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("- 3")
    assert "a HeddleJob is a mapping" in mistakes(path)[0]
    assert "cannot be read" in mistakes(tmp_path / "none.yaml")[0]


def tokenizer(tmp_path, *names):
    words = {name: index for index, name in enumerate(names)}
    made = Tokenizer(WordLevel(words, unk_token=names[0]))
    made.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path)


def test_texts_and_their_tokenizer_are_looked_at_before_anything_starts(tmp_path):
    (tmp_path / "wiki.jsonl").write_text('{"text": "a"}')
    data = {"path": str(tmp_path / "wiki.jsonl"), "tokenizer": tokenizer(tmp_path, "a", "</s>")}
    found = choose(job_file(tmp_path, spec__data=data), TrainOptions(), MACHINE)
    assert found.job.spec.data.texts == (str(tmp_path / "wiki.jsonl"),)
    lines = mistakes(job_file(tmp_path, spec__data=data | {"path": "/none.jsonl"}))
    assert lines == ["spec.data names '/none.jsonl', which cannot be found; name its path on this "
                     "machine"]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([f"t{n}" for n in range(300)], "44 tokens beyond the model's vocabulary of 256"),
        (["a"], "does not say which token ends a document"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_one_sentence(tmp_path, names, words):
    data = {"builtin": "text", "tokenizer": tokenizer(tmp_path, *names)}
    (line,) = mistakes(job_file(tmp_path, spec__data=data))
    assert words in line


def test_a_pair_of_another_tokenizer_is_found_before_anything_starts(tmp_path):
    prefix = write_pair(tmp_path / "pair", [[1, 2, 3]])
    (tmp_path / "pair.json").write_text(json.dumps({"tokenizer_sha256": "0", "vocab": 9}))
    data = {"path": prefix, "tokenizer": tokenizer(tmp_path, "a")}
    (line,) = mistakes(job_file(tmp_path, spec__data=data))
    assert "was prepared with another tokenizer than" in line


def test_an_output_over_the_model_is_replaced_by_the_one_that_is_named(tmp_path, folder):
    changes = {"spec__model": {"path": str(folder)}, "spec__output": {"path": str(folder)}}
    (line,) = mistakes(job_file(tmp_path, **changes))
    assert "spec.output.path is the folder of the model" in line
    found = choose(job_file(tmp_path, **changes), TrainOptions(output=tmp_path / "new"), MACHINE)
    assert found.job.spec.output.path == str(tmp_path / "new")


def test_a_sample_beyond_the_models_positions_is_a_note(tmp_path, folder):
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps(config))
    found = choose(job_file(tmp_path, spec__model={"path": str(folder)}), TrainOptions(), MACHINE)
    assert any("max_position_embeddings 64" in note for note in found.notes)


@pytest.mark.parametrize("folder", ["/proc/nowhere/out", "/dev/null/out"])
def test_a_folder_that_refuses_is_a_mistake_before_anything_is_measured(tmp_path, folder):
    """Also for root, whom the mode of a folder stops from nothing."""
    (line,) = mistakes(job_file(tmp_path), output=Path(folder))
    assert f"the output folder {folder} cannot be written" in line
    assert "--output-path" in line


def test_what_is_tried_in_the_output_folder_leaves_nothing_behind(tmp_path):
    choose(job_file(tmp_path), TrainOptions(output=tmp_path / "new" / "out"), MACHINE)
    assert [file.name for file in tmp_path.iterdir()] == ["job.yaml"]


def test_a_node_that_joins_is_as_large_as_one_that_is_there_and_before_the_last_step(tmp_path):
    nodes, script = tmp_path / "nodes.yaml", tmp_path / "script.yaml"
    nodes.write_text("- {name: a, type: cpu, gpus: 40}")
    (present,) = mistakes(job_file(tmp_path), nodes=nodes)
    assert "give a node at most 32" in present
    script.write_text("- {at_step: 3, join: {name: a, type: cpu, gpus: 40}}")
    assert mistakes(job_file(tmp_path), script=script) == [present]
    script.write_text("- {at_step: 500, join: {name: b, type: cpu, gpus: 1}}")
    (late,) = mistakes(job_file(tmp_path, spec__steps=20), script=script)
    assert "has at_step 500 (join b), and the job has 20 steps; give at most 20" in late
