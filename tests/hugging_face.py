"""Tiny models of each family as `transformers` makes them, and what it writes of them.

`python -m tests.hugging_face [family ...]` writes tests/data/hugging_face anew; it says which
`transformers` it was, and tests compare with what it wrote, not with the installed one.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.model.config import model_from_config
from planner.model.shape import ModelShape

GOLDEN = Path(__file__).parent / "data" / "hugging_face"
SHARD = 20_000  # bytes of a file in the sharded lists
_SIZES = {
    "vocab_size": 200,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
_DEEPSEEK = {
    **_SIZES,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "vocab_size": 200,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "gpt_neo": {
        "vocab_size": 200,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "max_position_embeddings": 64,
        "window_size": 8,
        "intermediate_size": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "opt": {
        "vocab_size": 200,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "ffn_dim": 64,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "word_embed_proj_dim": 32,
    },
    "llama": _GROUPED,
    "mistral": _GROUPED,
    "qwen2": {**_GROUPED, "tie_word_embeddings": True},
    "qwen3": {**_GROUPED, "head_dim": 16},
    "mixtral": {**_GROUPED, "head_dim": 8, "num_local_experts": 4},
    "qwen3_moe": {
        **_GROUPED,
        "head_dim": 16,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "mlp_only_layers": [0],
        "decoder_sparse_step": 1,
    },
    "deepseek_v2": {
        **_DEEPSEEK,
        "n_routed_experts": 6,
        "q_lora_rank": None,
        "first_k_dense_replace": 1,
    },
    "deepseek_v3": {
        **_DEEPSEEK,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "n_group": 4,
        "topk_group": 2,
        "q_lora_rank": 20,
        "first_k_dense_replace": 0,
        "num_mtp_layers": 0,
    },
}


def config_of(kind: str) -> Any:
    """The configuration of a tiny model of a family, as `transformers` has it."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoConfig

    return AutoConfig.for_model(kind, **CONFIGS[kind])


def model_of(kind: str, seed: int = 0) -> Any:
    """A tiny model of a family with random weights, biases and norms too."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config_of(kind))
    with torch.no_grad():
        for parameter in (*model.parameters(), *biases_of(model)):
            parameter.normal_()
    return model


def biases_of(model: Any) -> list[Any]:
    """The biases of experts, which have no gradient."""
    return [one for name, one in model.named_buffers() if name.endswith("correction_bias")]


def save(kind: str, folder: Path, **options: Any) -> Any:
    """Let `transformers` write a tiny model; answers it."""
    model = model_of(kind)
    model.save_pretrained(folder, **options)
    return model


def shape_of(folder: Path) -> ModelShape:
    """The model that a folder's config.json describes."""
    return model_from_config(folder / "config.json")


def main(kinds: Sequence[str]) -> None:
    """Write the lists of these families anew, of all if none is named."""
    import transformers
    from safetensors import safe_open

    GOLDEN.mkdir(parents=True, exist_ok=True)
    for kind in kinds or CONFIGS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            save(kind, folder / "one")
            save(kind, folder / "many", max_shard_size=SHARD)
            with safe_open(folder / "one" / "model.safetensors", framework="pt") as file:
                slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
                tensors = {k: [s.get_dtype(), s.get_shape()] for k, s in sorted(slices.items())}
            config = json.loads((folder / "one" / "config.json").read_text())
            index = json.loads((folder / "many" / "model.safetensors.index.json").read_text())
        found = {
            "transformers": transformers.__version__,
            "config": config,
            "tensors": tensors,
            "index": index,
        }
        (GOLDEN / f"{kind}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
