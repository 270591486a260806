"""Every argument of Megatron that is known here: what becomes of it, in one table.

Run as a module it prints the tables of docs/megatron.md.
Source: the arguments of Megatron-LM and Megatron-DeepSpeed (megatron/arguments.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

Fate = Literal["job", "model", "chosen", "none"]
CHOSEN = "Heddle chooses it for the GPUs that are there, anew at each change"
DECAY = "`training.schedule.decaySteps`, the warm-up taken off"
MASK = "`data.documentMask`, if all three are given"
TOKENISED = "documents are tokenised before, by `heddle data prepare`"
LATENT = "of latent attention"
YARN = "`rope_scaling`, of latent attention"
MEASURED = "measurements are always in the output folder"
ROW = 8  # arguments of a row of the document at most
FATES: dict[Fate, str] = {  # in the order of the document
    "model": "In the model's config.json",
    "job": "In the job",
    "chosen": "The planner's choice",
    "none": "No counterpart",
}


# Options of torchrun, of torch.distributed.launch and of deepspeed: what runs where is Heddle's.
LAUNCHER = frozenset(
    [
        "nproc_per_node",
        "nnodes",
        "node_rank",
        "master_addr",
        "master_port",
        "rdzv_endpoint",
        "rdzv_backend",
        "rdzv_id",
        "rdzv_conf",
        "max_restarts",
        "monitor_interval",
        "start_method",
        "standalone",
        "tee",
        "log_dir",
        "redirects",
        "role",
        "local_addr",
        "use_env",
        "no_python",
        "num_gpus",
        "num_nodes",
        "hostfile",
        "include",
        "exclude",
        "launcher",
        "launcher_args",
        "no_ssh",
        "bind_cores_to_rank",
        "module",
        "m",
        "u",
    ]
)


class Argument(NamedTuple):
    """Destination of an argument.

    Attributes:
        fate: where it goes.
        words: the field, or why there is none.
        values: how many it has; -1: all that follow.
    """

    fate: Fate
    words: str
    values: int = 1


def _rows(fate: Fate, words: str, names: str, values: int = 1) -> dict[str, Argument]:
    return {f"--{name}": Argument(fate, words, values) for name in names.split()}


ARGUMENTS: dict[str, Argument] = {
    **_rows("model", "`num_hidden_layers`", "num-layers"),
    **_rows("model", "`hidden_size`", "hidden-size"),
    **_rows("model", "`intermediate_size`", "ffn-hidden-size"),
    **_rows("model", "`num_attention_heads`", "num-attention-heads"),
    **_rows("model", "grouped-query attention is meant", "group-query-attention", 0),
    **_rows("model", "`num_key_value_heads`", "num-query-groups num-key-value-heads"),
    **_rows("model", "`max_position_embeddings`", "max-position-embeddings"),
    **_rows("model", "`max_position_embeddings`, learned", "max-absolute-position-embeddings"),
    **_rows("model", "rotary positions if `rope`, else learned ones", "position-embedding-type"),
    **_rows("model", "rotary positions", "use-rotary-position-embeddings", 0),
    **_rows("model", "`rope_theta`", "rotary-base rope-theta"),
    **_rows("model", "the family: LLaMA or GPT-2", "normalization"),
    **_rows("model", "`rms_norm_eps` or `layer_norm_epsilon`", "norm-epsilon layernorm-epsilon"),
    **_rows("model", "SwiGLU", "swiglu", 0),
    **_rows("model", "refused: no family has that norm", "embed-layernorm", 0),
    **_rows("model", "GELU by tanh, as GPT-2 has it", "openai-gelu", 0),
    **_rows("model", "GELU without the tanh", "no-bias-gelu-fusion", 0),
    **_rows("model", "no biases", "disable-bias-linear", 0),
    **_rows("model", "biases of Qwen2", "add-qkv-bias", 0),
    **_rows("model", "norms of Qwen3, or of latent attention", "qk-layernorm", 0),
    **_rows("model", "`head_dim`; latent attention has its own", "kv-channels"),
    **_rows("model", "`tie_word_embeddings: false`", "untie-embeddings-and-output-weights", 0),
    **_rows("model", "`resid_pdrop` and `embd_pdrop`", "hidden-dropout"),
    **_rows("model", "`attn_pdrop`", "attention-dropout"),
    **_rows("model", "`vocab_size`", "vocab-size"),
    **_rows("model", "`num_local_experts`", "num-experts"),
    **_rows("model", "`num_experts_per_tok`", "moe-router-topk"),
    **_rows("model", "width of an expert", "moe-ffn-hidden-size"),
    **_rows("model", "`mlp_only_layers` or `first_k_dense_replace`", "moe-layer-freq"),
    **_rows("model", "weights of experts are not renormalised", "moe-router-pre-softmax", 0),
    **_rows("model", "`router_aux_loss_coef` or `aux_loss_alpha`", "moe-aux-loss-coeff"),
    **_rows("model", "`seq_aux_loss`, which Heddle has", "moe-router-load-balancing-type"),
    **_rows("model", "softmax; sigmoid is DeepSeek-V3's", "moe-router-score-function"),
    **_rows("model", "`n_group`, `topk_group`", "moe-router-num-groups moe-router-group-topk"),
    **_rows("model", "`routed_scaling_factor`", "moe-router-topk-scaling-factor"),
    **_rows("model", "`n_shared_experts`, times width", "moe-shared-expert-intermediate-size"),
    **_rows("model", "biases of DeepSeek-V3, else 0", "moe-router-enable-expert-bias", 0),
    **_rows("job", "`training.routerBiasRate`, if there are biases", "moe-router-bias-update-rate"),
    **_rows("model", "the family: DeepSeek-V2 or -V3", "multi-latent-attention", 0),
    **_rows("model", f"`q_lora_rank`, {LATENT}; without it queries stay whole", "q-lora-rank"),
    **_rows("model", f"`kv_lora_rank`, {LATENT}", "kv-lora-rank"),
    **_rows("model", f"`qk_nope_head_dim`, {LATENT}", "qk-head-dim"),
    **_rows("model", f"`qk_rope_head_dim`, {LATENT}", "qk-pos-emb-head-dim"),
    **_rows("model", f"`v_head_dim`, {LATENT}", "v-head-dim"),
    **_rows("model", YARN, "rotary-scaling-factor mscale mscale-all-dim beta-fast beta-slow"),
    **_rows("model", YARN, "original-max-position-embeddings"),
    **_rows("model", "yarn or rope, of latent attention", "rope-type"),
    **_rows("model", "refused unless 1", "rotary-percent"),
    **_rows("model", "refused: no family rotates such pairs", "rotary-interleaved", 0),
    **_rows("model", "refused unless 0", "moe-z-loss-coeff moe-input-jitter-eps mtp-num-layers"),
    **_rows("model", "refused: Heddle drops no token", "moe-expert-capacity-factor"),
    **_rows("model", "refused: scores choose", "moe-router-force-load-balancing", 0),
    **_rows("model", "refused: weights come after experts", "moe-apply-probs-on-input", 0),
    **_rows("model", "refused: no family has that gate", "moe-shared-expert-gate", 0),
    **_rows("job", "`training.sequenceLength`", "seq-length"),
    **_rows("job", "`training.globalBatch`", "global-batch-size"),
    **_rows("job", "`steps`", "train-iters"),
    **_rows("job", "`steps`, in batches", "train-samples"),
    **_rows("job", "`training.learningRate`", "lr"),
    **_rows("job", "`training.schedule.minLearningRate`", "min-lr"),
    **_rows("job", "`training.schedule.kind`; linear is wsd that decays at once", "lr-decay-style"),
    **_rows("job", "`training.warmupSteps`", "lr-warmup-iters"),
    **_rows("job", "`training.warmupSteps`, in whole batches", "lr-warmup-samples"),
    **_rows("job", "`training.warmupSteps`, a share of the decay", "lr-warmup-fraction"),
    **_rows("job", DECAY, "lr-decay-iters"),
    **_rows("job", f"{DECAY}, in whole batches", "lr-decay-samples"),
    **_rows("job", "`training.schedule.decaySteps` of wsd", "lr-wsd-decay-iters"),
    **_rows("job", "linear, which wsd is", "lr-wsd-decay-style"),
    **_rows("job", "`training.weightDecay`", "weight-decay"),
    **_rows("job", "`training.betas`", "adam-beta1 adam-beta2"),
    **_rows("job", "`training.epsilon`", "adam-eps"),
    **_rows("job", "`training.gradientClip`", "clip-grad"),
    **_rows("job", "AdamW, which Heddle has", "optimizer"),
    **_rows("job", "`training.precision: fp16`", "fp16", 0),
    **_rows("job", "`training.precision: bf16`", "bf16", 0),
    **_rows("job", "`training.lossScale.initial`", "initial-loss-scale"),
    **_rows("job", "`training.lossScale.window`", "loss-scale-window"),
    **_rows("job", "`data.path` or `data.blend`", "data-path", -1),
    **_rows("job", "`data.split`", "split"),
    **_rows("job", MASK, "reset-position-ids", 0),
    **_rows("job", MASK, "reset-attention-mask eod-mask-loss", 0),
    **_rows("job", "`training.seed`; other weights and another order than Megatron's", "seed"),
    **_rows("job", "`training.evaluateEvery`", "eval-interval"),
    **_rows("job", "`training.evaluateSamples`, in batches", "eval-iters"),
    **_rows("job", "`output.path`", "save"),
    **_rows("job", "`checkpoint.interval.steps`, in the folder of `--save`", "save-interval"),
    **_rows("chosen", CHOSEN, "micro-batch-size tensor-model-parallel-size"),
    **_rows("chosen", CHOSEN, "pipeline-model-parallel-size"),
    **_rows("chosen", CHOSEN, "num-layers-per-virtual-pipeline-stage expert-model-parallel-size"),
    **_rows("chosen", CHOSEN, "expert-tensor-parallel-size"),
    **_rows("chosen", CHOSEN, "moe-extended-tp moe-layer-recompute", 0),
    **_rows("chosen", CHOSEN, "decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers"),
    **_rows("chosen", CHOSEN, "zero-stage context-parallel-size ds-sequence-parallel-size"),
    **_rows("chosen", CHOSEN, "sequence-parallel use-distributed-optimizer", 0),
    **_rows("chosen", CHOSEN, "no-pipeline-parallel checkpoint-activations", 0),
    **_rows("chosen", CHOSEN, "deepspeed-activation-checkpointing overlap-grad-reduce", 0),
    **_rows("chosen", CHOSEN, "overlap-param-gather recompute-activations", 0),
    **_rows("chosen", CHOSEN, "recompute-granularity recompute-method recompute-num-layers"),
    **_rows("chosen", CHOSEN, "recompute-modules", -1),
    **_rows("none", "its layout is Megatron's; make it Hugging Face's for `model.path`", "load"),
    **_rows("none", TOKENISED, "tokenizer-type"),
    **_rows("none", TOKENISED, "tokenizer-model tokenizer-name-or-path vocab-file merge-file"),
    **_rows("none", "data of a single index are read as they are", "data-impl dataloader-type"),
    **_rows("none", "rows that no token has are never trained", "pad-vocab-size-to"),
    **_rows("none", "rows that no token has are never trained", "make-vocab-size-divisible-by"),
    **_rows("none", "the global batch is whole from the first step on", "rampup-batch-size", 3),
    **_rows("none", "blocks are cut by their cost", "pp-partition-method"),
    **_rows("none", "initial weights are Heddle's, by the seed", "init-method-std"),
    **_rows("none", "the loss scale halves at each overflow", "hysteresis min-loss-scale"),
    **_rows("none", MEASURED, "tensorboard-dir log-interval"),
    **_rows("none", MEASURED, "tensorboard-log-interval"),
    **_rows("none", MEASURED, "tensorboard-queue-size"),
    **_rows("none", MEASURED, "log-batch-size-to-tensorboard", 0),
    **_rows("none", MEASURED, "log-validation-ppl-to-tensorboard", 0),
    **_rows("none", MEASURED, "wandb-project wandb-exp-name"),
    **_rows("none", MEASURED, "log-timers-to-tensorboard log-throughput", 0),
    **_rows("none", "one thread reads ahead", "num-workers"),
    **_rows("none", "the transport is Heddle's", "distributed-backend distributed-timeout-minutes"),
    **_rows("none", "Heddle drops no token", "moe-token-drop-policy"),
    **_rows("none", "Heddle drops no token", "moe-pad-expert-input-to-capacity", 0),
    **_rows("none", "the router computes in fp32", "moe-router-dtype"),
    **_rows("none", "rows go by all-to-all", "moe-token-dispatcher-type"),
    **_rows("none", "rows go by all-to-all", "moe-flex-dispatcher-backend"),
    **_rows("none", "rows go by all-to-all", "moe-enable-deepep", 0),
    **_rows("none", "rows go by all-to-all", "overlap-moe-expert-parallel-comm", 0),
    **_rows("none", "there are no MTP layers", "mtp-loss-scaling-factor"),
    **_rows("none", "all models are such ones", "use-mcore-models", 0),
    **_rows("none", "the kernels are torch's", "no-rope-fusion cross-entropy-loss-fusion", 0),
    **_rows("none", "the kernels are torch's", "transformer-impl attention-backend"),
    **_rows("none", "the kernels are torch's", "moe-grouped-gemm moe-permute-fusion", 0),
    **_rows("none", "the kernels are torch's", "moe-shared-expert-overlap", 0),
    **_rows("none", "the kernels are torch's", "moe-router-fusion moe-use-legacy-grouped-gemm", 0),
    **_rows("none", MEASURED, "moe-per-layer-logging", 0),
    **_rows("none", "gradients are summed by piece", "DDP-impl"),
    **_rows("none", "the kernels are torch's", "use-flash-attn use-flash-attn-v2", 0),
    **_rows("none", "the kernels are torch's", "no-query-key-layer-scaling", 0),
    **_rows("none", "the kernels are torch's", "abort-on-unmet-fused-kernel-constraints", 0),
    **_rows("none", "the kernels are torch's", "no-masked-softmax-fusion", 0),
    **_rows("none", "the kernels are torch's", "attention-softmax-in-fp32", 0),
    **_rows("none", "the kernels are torch's", "no-gradient-accumulation-fusion", 0),
    **_rows("none", "gradients are always fp32", "accumulate-allreduce-grads-in-fp32", 0),
    **_rows("none", "the job is DeepSpeed's in any case", "deepspeed", 0),
    **_rows("none", "say it with --deepspeed", "deepspeed_config"),
    **_rows("none", "Heddle ends with its last step", "exit-interval exit-duration-in-mins"),
}  # fmt: skip


def markdown() -> Iterator[str]:
    """A table for each fate, with a row for all arguments of one field or reason."""
    for fate, title in FATES.items():
        yield from (f"### {title}", "", "| argument | field or reason |", "| --- | --- |")
        names: dict[str, list[str]] = {}
        for name, argument in ARGUMENTS.items():
            if argument.fate == fate:
                names.setdefault(argument.words, []).append(f"`{name}`")
        for words, alike in names.items():
            for first in range(0, len(alike), ROW):
                yield f"| {', '.join(alike[first : first + ROW])} | {words} |"
        yield ""


if __name__ == "__main__":
    print("\n".join(markdown()))  # noqa: T201 # its output is the tables
