"""heddle/convert/script.py: a launch script gives the words that its shell would give.

The sizes and arguments of three public launch scripts are stated here; their text is not.
"""

from __future__ import annotations

import shlex
import subprocess

import pytest
from click.testing import CliRunner

from heddle.commands.convert import convert as command
from heddle.convert.megatron import convert
from heddle.convert.script import read_script
from heddle.convert.words import read_words
from heddle_operator.apis.errors import InvalidArguments
from heddle_operator.apis.heddlejob import load_job
from tests.refusals import refused

# Microsoft's Megatron-DeepSpeed, pretrain_llama2_distributed; the vocabulary is said here.
LLAMA2 = r"""
set -ex
DS_CONFIG=ds_config.json
DATASET=/data/corpus
TP=2 PP=2
ZERO_STAGE=0
HIDDEN_SIZE=2048 # e.g. llama-13b: 5120
NUM_LAYERS=24
NUM_KV_HEADS=4
SEQ_LENGTH=2048
export NCCL_DEBUG=warn
checkpointing="false"
cat <<EOT > $DS_CONFIG
{"train_batch_size": 32, "it's": {"stage": $ZERO_STAGE}}
EOT
ds_args=""
ds_args=" --deepspeed ${ds_args}"
ds_args=" --deepspeed_config=$DS_CONFIG ${ds_args}"
ds_args=" --zero-stage=$ZERO_STAGE ${ds_args}"
if [ "${checkpointing}" = "true" ]; then
  ds_args="--deepspeed-activation-checkpointing ${ds_args}"
fi
LAUNCH="--nproc_per_node 8 --nnodes 1 --node_rank 0"
torchrun $LAUNCH --master_addr localhost --master_port 6000 \
    pretrain_gpt.py \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP \
    --num-layers $NUM_LAYERS --hidden-size $HIDDEN_SIZE --ffn-hidden-size 5504 \
    --num-attention-heads 16 --num-key-value-heads $NUM_KV_HEADS --vocab-size 32000 \
    --micro-batch-size 4 --global-batch-size 32 --seq-length $SEQ_LENGTH \
    --max-position-embeddings $SEQ_LENGTH --train-iters 250000 --save "/out/tp${TP}_pp$PP" \
    --data-path $DATASET --data-impl mmap --tokenizer-type GPTSentencePieceTokenizer \
    --split 949,50,1 --distributed-backend nccl --lr 3e-4 --lr-decay-style cosine --min-lr 3e-5 \
    --weight-decay 0.1 --clip-grad 1 --lr-warmup-iters 2000 --optimizer adam \
    --adam-beta1 0.9 --adam-beta2 0.95 --log-interval 1 --bf16 --no-query-key-layer-scaling \
    --attention-dropout 0 --hidden-dropout 0 --use-rotary-position-embeddings \
    --untie-embeddings-and-output-weights --swiglu --normalization rmsnorm \
    --disable-bias-linear $ds_args
"""
# bigscience's Megatron-DeepSpeed, pretrain_gpt_distributed_with_mp; likewise.
WITH_MP = r"""
GPUS_PER_NODE=8
WORLD_SIZE=$(($GPUS_PER_NODE*1))
DATA_PATH=/data/corpus_text_document
CHECKPOINT_PATH=/out
RUN="--nproc_per_node $GPUS_PER_NODE --nnodes 1 --node_rank 0 --master_addr localhost"
python -m torch.distributed.launch $RUN \
  pretrain_gpt.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers 24 \
  --hidden-size 1024 --num-attention-heads 16 --micro-batch-size 4 --global-batch-size 16 \
  --seq-length 1024 --max-absolute-position-embeddings 1024 --position-embedding-type absolute \
  --train-iters 500000 --lr-decay-iters 320000 --save $CHECKPOINT_PATH --load $CHECKPOINT_PATH \
  --data-path $DATA_PATH --vocab-file v.json --merge-file m.txt --data-impl mmap \
  --split 949,50,1 --distributed-backend nccl --lr 0.00015 --lr-decay-style cosine \
  --min-lr 1.0e-5 --weight-decay 1e-2 --clip-grad 1.0 --lr-warmup-fraction .01 \
  --checkpoint-activations --log-interval 100 --save-interval 10000 --eval-interval 1000 \
  --eval-iters 10 --vocab-size 50257 --fp16
"""
# bigscience's tr11e-350M, whose positions no family of Heddle has; likewise.
TR11E = r"""
set -x -e
ROOT=/scratch
MASTER=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
NHIDDEN=1024
SEQ_LEN=2048
TRAIN_SAMPLES=220_000_000  # 450B tokens
python ratios.py --split train --output-meg-ds-ratio-file list.txt
OPTIMIZER_ARGS=" \
    --optimizer adam --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8 --lr 3.0e-4 \
    --min-lr 1e-5 --lr-decay-style cosine --lr-decay-samples 200_000_000 \
    --lr-warmup-samples 183_105 --clip-grad 1.0 --weight-decay 1e-1 \
    "
GPT_ARGS=" \
    --pp-partition-method 'type:transformer|embedding' --num-layers 24 --hidden-size $NHIDDEN \
    --num-attention-heads 16 --seq-length $SEQ_LEN --max-position-embeddings $SEQ_LEN \
    --micro-batch-size 1 --rampup-batch-size 192 16 9_765_625 --global-batch-size 256 \
    --train-samples $TRAIN_SAMPLES --tokenizer-type PretrainedFromHF --init-method-std 0.0048 \
    --fp16 --seed 42 POSITIONS --pad-vocab-size-to 250880 --vocab-size 250680 $OPTIMIZER_ARGS \
    "
export LAUNCHER="python -u -m torch.distributed.run --nproc_per_node 4 --nnodes $SLURM_NNODES \
    --rdzv_endpoint $MASTER:6000 --rdzv_backend c10d --max_restarts 0 --tee 3"
export CMD=" \
    `pwd`/pretrain_gpt.py --tensor-model-parallel-size 1 $GPT_ARGS --eval-interval 1000 \
    --eval-iters 1 --save $ROOT/checkpoints --data-path $ROOT/text --data-impl mmap \
    "
echo $CMD
clear; srun --jobid $SLURM_JOBID bash -c "$LAUNCHER --node_rank \$SLURM_PROCID $CMD" 2>&1 | tee log
"""


def turned(text):
    script = read_script(text)
    words = read_words(script.words, script.reasons)
    assert not words.unknown
    return convert(words, {}, "mine", "/models/mine")


def test_microsofts_llama2_becomes_the_job_that_it_is():
    found = turned(LLAMA2)
    spec = load_job(found.job, found.config).spec
    assert (spec.steps, spec.training.global_batch) == (250000, 32)
    assert (found.config["model_type"], found.config["num_key_value_heads"]) == ("llama", 4)
    assert found.config["hidden_size"] == 2048
    assert found.job["spec"]["output"]["path"] == "/out/tp2_pp2"
    assert found.job["spec"]["data"]["path"] == "/data/corpus"
    assert any(note.startswith("--zero-stage") for note in found.notes)
    assert not any("checkpointing" in note for note in found.notes)  # its condition is false


def test_bigsciences_script_without_a_ds_config_says_its_loss_scale():
    found = turned(WITH_MP)
    training = found.job["spec"]["training"]
    assert (training["precision"], training["warmupSteps"]) == ("fp16", 3200)
    assert training["lossScale"]["initial"] == 2**32
    (said,) = (note for note in found.notes if "lossScale" in note)
    assert "4294967296, as Megatron has it where nothing is said" in said
    assert found.config["n_positions"] == 1024


def test_tr11e_is_refused_for_its_positions_and_read_without_them():
    with refused(InvalidArguments, "Unsupported", "--position-embedding-type"):
        turned(TR11E.replace("POSITIONS", "--position-embedding-type alibi"))
    with refused(InvalidArguments, "Unsupported", "--embed-layernorm"):
        turned(TR11E.replace("POSITIONS", "--embed-layernorm"))
    spec = turned(TR11E.replace("POSITIONS", "")).job["spec"]
    assert spec["data"]["path"] == "/scratch/text"
    assert (spec["steps"], spec["training"]["warmupSteps"]) == (859_375, 715)
    assert spec["training"]["learningRate"] == 3e-4


SCRIPTS = [
    'A=1\nB="--lr $A"\ntrain.py $B --num-layers ${A}2',
    "A=(\n --lr 1 # a rate\n --bf16)\ntrain.py ${A[@]} --num-layers 2 > log 2>&1 &",
    "train.py --num-layers ${N:-4} --data-path '$x y' \"a  b\" \\\n --save a\\ b",
    "A='--lr 1'\nA+=' --bf16'\nif [ $X ]; then echo no; fi; train.py --num-layers 1 $A",
    "x=b; if [ $x = a ]; then L=1; elif [[ $x == b ]]; then L=2; else L=3; fi\n"
    "export M=$L; Z=9 train.py --num-layers $M || exit 1",
    "cat <<END >f\n it's --num-layers 9\nEND\ntrain.py --num-layers 1 | tee -a log",
    'eval "train.py --num-layers 3 --lr 1"',
]


@pytest.mark.parametrize("text", SCRIPTS)
def test_the_words_are_those_that_a_shell_gives(text, tmp_path):
    program = tmp_path / "train.py"
    program.write_text('#!/bin/sh\nfor word; do echo "<$word>" >> words; done\n')
    program.chmod(0o755)
    script = f"PATH={shlex.quote(str(tmp_path))}:$PATH\n{text}\nwait\n"
    subprocess.run(["bash", "-c", script], cwd=tmp_path, check=True, timeout=20)
    expected = (tmp_path / "words").read_text().splitlines()
    assert [f"<{word}>" for word in read_script(text).words[1:]] == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("TP=$(nproc)\nL=$TP\ntrain.py --num-layers $L", "line 1 sets TP to the output of a comm"),
        ("\nN=$((2 * 3))\ntrain.py --num-layers $N", "'$((2 * 3))', but line 2 sets N to a sum"),
        ("train.py --num-layers `nproc`", "line 1 has the output of a command there"),
        ("train.py --num-layers $2", "line 1 has an argument of the script there"),
        ("A=ab\ntrain.py --num-layers ${A%b}", "line 2 has an expansion that is not read here"),
        (
            "if [ -e f ]; then\nN=1\nelse\nN=2\nfi\ntrain.py --num-layers $N",
            "line 4 sets N within a condition",
        ),
        ("N=1\ntest -e f && N=2\ntrain.py --num-layers $N", "line 2 sets N within a condition"),
        ("train.py $ALL --num-layers 1", "the arguments hold '$ALL', but line 1 uses ALL, which"),
        ("train.py --num-layers 1 $MORE", "the arguments hold '$MORE', but line 1 uses MORE"),
        ("a.py --num-layers 1\nb.py --num-layers 2", "lines 1 and 2 of the script both train"),
    ],
)
def test_what_a_shell_alone_knows_is_refused_with_its_variable_and_line(text, sentence, tmp_path):
    file = tmp_path / "pretrain.sh"
    file.write_text(text)
    done = CliRunner().invoke(command, ["megatron", "--args-file", str(file)])
    assert isinstance(done.exception, InvalidArguments)
    assert done.exception.code in ("Malformed", "GivenTwice")
    assert sentence in str(done.exception), "the variable and its line"


def test_what_no_job_needs_may_stay_unknown():
    script = read_script("train.py --num-layers 2 --micro-batch-size $M --log-interval $(date +%F)")
    words = read_words(script.words, script.reasons)
    assert words.values["--num-layers"] == ("2",)
