"""One process of a side: it trains a few steps in turn, and says how long they took."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.turns import in_turns
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap
from worker.contract import TrainingSpec

TIMES = 15


def claims(rank: int, store: Any) -> list[float]:
    """Seconds of a step of this rank's side, in each turn but the first, which warms up."""
    with contextlib.redirect_stdout(sys.stderr):  # where DeepSpeed's log goes from its import on
        asked = json.loads(os.environ["WANTED"])
        sides = asked["sides"]
        side = max(index for index, one in enumerate(sides) if one["first"] <= rank)
        stated = sides[side]
        plan, spec = Plan.from_json(stated["plan"]), TrainingSpec.model_validate(stated["spec"])
        kinds = {"heddle": _heddle, "transformers": _transformers}
        step = kinds[stated["kind"]](store, side, spec, plan, rank - stated["first"])
        ranks = [Plan.from_json(one["plan"]).gpus for one in sides]
        seconds: list[float] = []

        def block() -> None:
            begun = time.perf_counter()
            for _ in range(asked["steps"]):
                step()
            seconds.append((time.perf_counter() - begun) / asked["steps"])

        in_turns(store, side, rank - stated["first"], ranks, block, asked["turns"] + 1)
        return seconds[1:]


def _heddle(
    store: Any, side: int, spec: TrainingSpec, plan: Plan, place: int
) -> Callable[[], object]:
    from torch.distributed import PrefixStore

    from benchmarks.overhead.rank import built

    own = PrefixStore(f"side-{side}", store)
    engine, _ = built(own, spec, plan, RankMap.of(plan).seats[place])
    return lambda: engine.train_step(None)


def _transformers(
    _store: Any, _side: int, spec: TrainingSpec, plan: Plan, _place: int
) -> Callable[[], object]:
    """A loop of torch around the model of `transformers` with the same shape."""
    import torch
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.set_num_threads(1)
    model, (template,) = spec.model_shape(), plan.templates
    experts = model.experts
    assert experts is not None
    config = MixtralConfig(
        vocab_size=model.vocab,
        hidden_size=model.hidden,
        intermediate_size=experts.ffn,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        num_local_experts=experts.count,
        num_experts_per_tok=experts.per_token,
        sliding_window=None,
    )
    mixtral = MixtralForCausalLM(config)
    adam = torch.optim.AdamW(mixtral.parameters(), lr=spec.learning_rate)
    draw = torch.Generator().manual_seed(0)

    def step() -> None:
        adam.zero_grad()
        for _ in range(template.micro_batches[0]):
            size = (template.micro_batch, spec.sequence_length)
            tokens = torch.randint(model.vocab, size, generator=draw)
            loss = mixtral(input_ids=tokens, labels=tokens).loss / template.micro_batches[0]
            loss.backward()
        torch.nn.utils.clip_grad_norm_(mixtral.parameters(), spec.gradient_clip)
        adam.step()

    return step


def exchanges(rank: int, store: Any) -> list[dict[str, Any]]:
    """Seconds of an exchange of rows and its way back, and of gloo's two all-to-alls, by turns."""
    import torch
    from torch.distributed import PrefixStore, all_to_all_single, init_process_group

    from worker.control.activity import Activity
    from worker.model.experts.exchange import exchanged
    from worker.world.group import Group

    torch.set_num_threads(1)
    init_process_group("gloo", store=PrefixStore("bare", store), rank=rank, world_size=2)
    group = Group.form(PrefixStore("ours", store), "rows", (0, 1), rank, Activity())
    found = []
    for rows, width in json.loads(os.environ["WANTED"]):
        sent = torch.zeros(2 * rows, width, requires_grad=True)
        received, sizes = torch.zeros(2 * rows, width), [rows, rows]

        def ours(sent: Any = sent, sizes: Any = sizes) -> None:
            there = exchanged(sent, group, sizes, sizes)
            there.backward(there.detach())

        def bare(sent: Any = sent, received: Any = received) -> None:
            for _ in range(2):
                all_to_all_single(received, sent.detach())

        times: dict[str, list[float]] = {"ours_s": [], "gloo_s": []}
        for turn in range(TIMES + 1):
            for name, call in (("ours_s", ours), ("gloo_s", bare)):
                begun = time.perf_counter()
                call()
                times[name] += [time.perf_counter() - begun] if turn else []
        found.append({"rows": rows, "width": width, **times})
    return found
