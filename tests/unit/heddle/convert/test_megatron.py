"""heddle/convert: a run of Megatron becomes a job that trains the same, or is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from heddle.commands.convert import convert as command
from heddle.convert.megatron import convert
from heddle.convert.script import read_script
from heddle.convert.table import ARGUMENTS, markdown
from heddle.convert.words import read_words
from heddle_operator.apis.errors import InvalidArguments
from heddle_operator.apis.heddlejob import load_job
from tests.refusals import refused

LLAMA = """
--num-layers 2 --hidden-size 64 --num-attention-heads 4 --num-query-groups 2
--group-query-attention --ffn-hidden-size 128 --swiglu --normalization RMSNorm
--use-rotary-position-embeddings --disable-bias-linear --untie-embeddings-and-output-weights
--vocab-size 256 --hidden-dropout 0 --attention-dropout 0 --seq-length 32
--max-position-embeddings 64 --norm-epsilon 1e-6 --micro-batch-size 2 --global-batch-size 8
--train-iters 100
--lr 3e-4 --min-lr 3e-5 --lr-decay-style cosine --lr-warmup-iters 10 --lr-decay-iters 90
--weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-6 --clip-grad 0.5 --bf16
--data-path 0.3 /d/a 0.7 /d/b --split 949,50,1 --seed 7 --save /out
--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4
"""
GPT2 = """
--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 512
--max-position-embeddings 64 --global-batch-size 8 --train-samples 800 --lr 1e-3
--lr-decay-style constant --data-path /d/text
"""


def turned(text, deepspeed=None):
    script = read_script(text)
    words = read_words(script.words, script.reasons)
    return convert(words, deepspeed or {}, "mine", "/models/mine")


def test_every_setting_of_the_training_has_its_field():
    found = turned(LLAMA)
    spec = found.job["spec"]
    assert spec["training"] == {
        "globalBatch": 8,
        "sequenceLength": 32,
        "precision": "bf16",
        "seed": 7,
        "learningRate": 3e-4,
        "warmupSteps": 10,
        "betas": [0.9, 0.95],
        "epsilon": 1e-6,
        "weightDecay": 0.1,
        "gradientClip": 0.5,
        "schedule": {"kind": "cosine", "decaySteps": 80, "minLearningRate": 3e-5},
    }
    assert spec["steps"] == 100
    assert spec["output"] == {"path": "/out"}
    assert spec["data"] == {
        "blend": [{"path": "/d/a", "weight": 0.3}, {"path": "/d/b", "weight": 0.7}],
        "split": [949.0, 50.0, 1.0],
    }


def test_three_arguments_together_are_a_document_mask():
    masks = "--reset-position-ids --reset-attention-mask --eod-mask-loss"
    assert turned(LLAMA + masks).job["spec"]["data"]["documentMask"] is True
    with refused(InvalidArguments, "Unsupported", "--eod-mask-loss"):
        turned(LLAMA + "--eod-mask-loss")


def test_the_model_is_a_configuration_of_its_family():
    found = turned(LLAMA)
    assert found.job["spec"]["model"] == {"path": "/models/mine", "init": "Seed"}
    assert found.config["model_type"] == "llama"
    sizes = ("num_hidden_layers", "hidden_size", "num_key_value_heads", "intermediate_size")
    assert [found.config[name] for name in sizes] == [2, 64, 2, 128]
    assert found.config["tie_word_embeddings"] is False
    assert turned(LLAMA + "--add-qkv-bias").config["model_type"] == "qwen2"
    assert turned(LLAMA + "--qk-layernorm").config["model_type"] == "qwen3"
    gpt2 = turned(GPT2).config
    assert (gpt2["model_type"], gpt2["n_inner"], gpt2["attn_pdrop"]) == ("gpt2", 256, 0.1)


def test_a_model_that_heddle_knows_is_named():
    text = LLAMA
    for old, new in (
        ("--num-layers 2", "--num-layers 32"),
        ("--hidden-size 64", "--hidden-size 4096 --rotary-base 500000"),
        ("--num-attention-heads 4", "--num-attention-heads 32"),
        ("--num-query-groups 2", "--num-query-groups 8"),
        ("--ffn-hidden-size 128", "--ffn-hidden-size 14336"),
        ("--vocab-size 256", "--vocab-size 128256"),
        ("--norm-epsilon 1e-6", "--norm-epsilon 1e-5"),
        ("--max-position-embeddings 64", "--max-position-embeddings 8192"),
    ):
        text = text.replace(old, new)
    found = turned(text)
    assert found.job["spec"]["model"] == {"name": "llama3-8b"}
    assert found.config is None


def test_groups_of_queries_are_those_that_megatron_counts():
    """Without a number there is one group; without the switch a number counts for nothing."""
    alone = turned(LLAMA.replace("--num-query-groups 2", "")).config
    assert alone["num_key_value_heads"] == 1
    plain = LLAMA.replace("--group-query-attention", "").replace("--num-query-groups 2", "")
    assert turned(plain).config["num_key_value_heads"] == 4
    with refused(InvalidArguments, "Contradiction", "--num-query-groups"):
        turned(LLAMA.replace("--group-query-attention", ""))


def test_no_batch_to_evaluate_is_no_evaluation():
    asked = LLAMA + "--eval-interval 10 --eval-iters "
    assert turned(asked + "3").job["spec"]["training"]["evaluateSamples"] % 3 == 0
    assert "evaluateEvery" not in turned(asked + "0").job["spec"]["training"]


def test_what_has_no_counterpart_is_listed_with_its_reason():
    notes = turned(LLAMA + "--foo-bar 3").notes
    assert (
        "--tensor-model-parallel-size: Heddle chooses it for the GPUs that are there, " in notes[2]
    )
    assert {note.split(":")[0] for note in notes} == {
        "--micro-batch-size",
        "--tensor-model-parallel-size",
        "--pipeline-model-parallel-size",
        "--foo-bar",
    }
    assert notes[0].startswith("--foo-bar: this argument is not known here")


def test_checkpoints_are_saved_beside_the_weights():
    saved = turned(LLAMA + "--save-interval 100").job["spec"]["checkpoint"]
    assert saved == {"path": "/out/checkpoints", "interval": {"steps": 100}}
    alone = turned(GPT2 + "--save-interval 100")
    assert "checkpoint" not in alone.job["spec"]
    assert any(note.startswith("--save-interval: ") for note in alone.notes)


def test_an_unknown_argument_that_is_nearly_a_known_one_says_so():
    (note,) = (n for n in turned(GPT2 + "--lr-warmup-iter 5").notes if "iter" in n)
    assert "--lr-warmup-iters" in note


def test_what_megatron_would_take_unsaid_is_written_out():
    training = turned(GPT2).job["spec"]["training"]
    assert (training["betas"], training["epsilon"], training["seed"]) == ([0.9, 0.999], 1e-8, 1234)
    assert (training["weightDecay"], training["warmupSteps"]) == (0.01, 0)
    assert turned(GPT2).job["spec"]["data"]["split"] == [969.0, 30.0, 1.0]
    assert turned(GPT2).job["spec"]["steps"] == 100
    linear = turned(GPT2.replace("--lr-decay-style constant", "--lr-warmup-samples 80"))
    assert linear.job["spec"]["training"]["schedule"] == {
        "kind": "wsd",
        "decaySteps": 90,
        "minLearningRate": 0.0,
    }


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"fp16": True}, "fp16"),
        ({"bf16": {"enabled": "auto"}}, "enabled"),
        ({"fp16": {"enabled": True, "initial_scale_power": "auto"}}, "initial_scale_power"),
        ({"fp16": {"enabled": True, "initial_scale_power": 10**6}}, "initial_scale_power"),
        ({"fp16": {"enabled": True, "loss_scale_window": []}}, "loss_scale_window"),
        ({"optimizer": "Adam"}, "optimizer"),
        ({"optimizer": {"params": "auto"}}, "params"),
        ({"optimizer": {"params": {"betas": 0.9}}}, "betas"),
        ({"optimizer": {"params": {"betas": [0.9, "auto"]}}}, "betas"),
        ({"optimizer": {"params": {"lr": "auto"}}}, "lr"),
        ({"train_batch_size": "auto"}, "train_batch_size"),
    ],
)
def test_a_value_of_another_kind_in_deepspeeds_configuration_is_named(config, field):
    with pytest.raises(InvalidArguments, match=r"ds_config\.json") as error:
        turned(GPT2, config)
    assert (error.value.field, error.value.code) == (field, "Malformed")


def test_deepspeeds_optimizer_may_be_null():
    assert turned(GPT2, {"optimizer": None}).job == turned(GPT2).job


def test_deepspeeds_configuration_is_read_as_well():
    config = {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.25,
        "zero_optimization": {"stage": 1},
        "fp16": {"enabled": True, "initial_scale_power": 12, "loss_scale_window": 500},
        "optimizer": {"type": "AdamW", "params": {"betas": [0.8, 0.9], "torch_adam": True}},
        "mystery": 3,
    }
    found = turned(GPT2, config)
    training = found.job["spec"]["training"]
    assert training["precision"] == "fp16"
    assert training["lossScale"] == {"initial": 4096, "window": 500}
    assert (training["gradientClip"], training["betas"]) == (0.25, [0.8, 0.9])
    text = "\n".join(found.notes)
    for words in ("zero_optimization: Heddle chooses", "torch_adam", "mystery: this key is not"):
        assert words in text


@pytest.mark.parametrize(
    ("changes", "mistake"),
    [
        ("--lr-decay-style inverse-square-root", ("Unsupported", "--lr-decay-style")),
        ("--optimizer sgd", ("Unsupported", "--optimizer")),
        ("--lr many", ("Malformed", "--lr")),
        ("--train-iters 1.5", ("Malformed", "--train-iters")),
        ("--seq-length", ("Malformed", "--seq-length")),
        ("--swiglu", ("Unsupported", None)),
        ("--lr $LR", ("Malformed", "--lr")),
        ("--data-path 0.3 /a 0.7", ("Malformed", "--data-path")),
        ("--data-path /a 0.5 /b 0.5", ("Malformed", "--data-path")),
        ("--clip-grad 0", ("Unsupported", "--clip-grad")),
        ("--fp16 --bf16", ("Contradiction", "--fp16")),
        ("--train-samples 7", ("OutOfRange", "--train-samples")),
        ("--split half", ("Malformed", "--split")),
        ("--num-attention-heads 0", ("OutOfRange", "--num-attention-heads")),
        ("--num-layers 2e9", ("OutOfRange", "--num-layers")),
    ],
)
def test_what_would_train_something_else_is_refused_in_one_sentence(changes, mistake):
    text = GPT2 if "--train-iters" not in changes else GPT2.replace("--train-samples 800", "")
    with refused(InvalidArguments, *mistake):
        turned(f"{text} {changes}")


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("--lr", "--lr"),
        ("--train-samples", "--train-iters"),
        ("--global-batch-size", "--global-batch-size"),
        ("--data-path", "--data-path"),
    ],
)
def test_what_a_job_needs_and_is_missing_is_named(name, missing):
    value = read_words(read_script(GPT2).words).values[name][0]
    with refused(InvalidArguments, "Missing", missing):
        turned(GPT2.replace(f"{name} {value}", ""))


def test_arguments_and_configuration_must_agree():
    with refused(InvalidArguments, "Contradiction", "--global-batch-size"):
        turned(GPT2, {"train_batch_size": 16})
    with refused(InvalidArguments, "Unsupported", "loss_scale"):
        turned(GPT2, {"fp16": {"enabled": True, "loss_scale": 1024}})
    with refused(InvalidArguments, "Unsupported", "scheduler"):
        turned(GPT2, {"scheduler": {"type": "WarmupLR"}})


def test_a_shell_script_is_read_as_it_stands():
    text = "deepspeed pretrain_gpt.py \\\n  --lr=1e-4 \\\n  --bf16  # half\n"
    found = read_words(read_script(text).words)
    assert found.values == {"--lr": ("1e-4",), "--bf16": ()}


def test_the_command_prints_a_job_and_leaves_the_models_configuration(tmp_path):
    (tmp_path / "args.txt").write_text(LLAMA)
    arguments = ["megatron", "--args-file", str(tmp_path / "args.txt"), "--name", "mine"]
    folder = tmp_path / "model"
    more = [*arguments, "--model-folder", str(folder), "--lr", "2e-4"]
    done = CliRunner().invoke(command, more)
    assert done.exit_code == 0, done.output
    job = load_job(yaml.safe_load(done.stdout))
    assert job.spec.training.learning_rate == 2e-4
    assert job.workload.model.layers == 2
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"
    assert "left out: --tensor-model-parallel-size" in done.stderr


def test_the_tables_of_the_documents_are_those_of_the_code():
    text = (Path(__file__).parents[4] / "docs" / "megatron.md").read_text()
    tables = "\n".join(markdown())
    assert tables in text
    rows = [line.split("|")[1] for line in tables.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`([^`]+)`", "".join(rows))) == sorted(ARGUMENTS)
    assert all(name.startswith("--") for name in ARGUMENTS)


@pytest.mark.parametrize(
    ("content", "mistake"),
    [
        (b"\xff\xfe", ("Unreadable", None)),
        (b"--lr 'half", ("Unreadable", None)),
        (b"--num-layer 3", ("Unknown", "--num-layer")),
        (b"", ("Missing", None)),
    ],
)
def test_a_file_without_arguments_is_refused_in_a_sentence(tmp_path, content, mistake):
    file = tmp_path / "pretrain.sh"
    file.write_bytes(content)
    done = CliRunner().invoke(command, ["megatron", "--args-file", str(file)])
    assert isinstance(done.exception, InvalidArguments)
    with refused(InvalidArguments, *mistake):
        raise done.exception


@pytest.mark.parametrize("text", ["nan", "inf", "1e999", "many"])
def test_a_number_that_is_none_is_refused(text):
    words = read_words(["--num-layers", text])
    with refused(InvalidArguments, "Malformed", "--num-layers"):
        words.count("--num-layers")


def test_a_folder_that_refuses_the_models_config_is_named(tmp_path):
    file = tmp_path / "pretrain.sh"
    file.write_text(LLAMA.replace("\n", " "))
    arguments = ["megatron", "--args-file", str(file), "--model-folder", "/proc/nowhere"]
    done = CliRunner().invoke(command, arguments)
    assert isinstance(done.exception, InvalidArguments)
    assert "the model cannot be described in /proc/nowhere" in str(done.exception)
    assert done.stdout == ""


@pytest.mark.parametrize(("given", "said"), [((), "holds no arguments"), (("x",), "--args-file x")])
def test_a_script_without_arguments_is_named(tmp_path, given, said):
    file = tmp_path / "empty.sh"
    file.write_text("")
    arguments = given or ("--args-file", str(file))
    done = CliRunner().invoke(command, ["megatron", *arguments])
    assert isinstance(done.exception, InvalidArguments)
    assert said in str(done.exception)


def test_a_model_between_two_families_is_refused_with_the_arguments_that_it_lacks():
    words = LLAMA.replace("--normalization RMSNorm", "").replace("--disable-bias-linear", "")
    with pytest.raises(
        InvalidArguments, match=r"\(--normalization RMSNorm, --disable-bias-linear\)"
    ):
        convert(read_words(words.split()), {}, "mine", "/models/mine")
