"""Requests without an answer: the term that binds is named, with the amount."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from planner.cluster.composition import Composition, Node
from planner.cluster.gpu_limits import GpuLimits
from planner.cost.memory import StageSlot, stage_memory
from planner.errors import Infeasible
from planner.model.catalogue import find_model
from planner.model.workload import Workload, usual_workload
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.search.driver import search
from planner.search.fill import options
from planner.search.infeasible import _attempts, why_infeasible
from tests.builders import demo_profile, nodes, workload


def reason(composition: Composition, **wishes) -> str:
    with pytest.raises(Infeasible) as caught:
        search(PlanRequest(workload=workload(), composition=composition, **wishes), demo_profile())
    return str(caught.value)


def why(model: str, text: str, recompute: str = "full", precision: str = "fp16", **wishes) -> str:
    asked = Workload(
        model=find_model(model),
        global_batch=2048,
        sequence_length=2048,
        precision=precision,
        zero=0,
        recompute=recompute,
        memory="paper",
    )
    request = PlanRequest(workload=asked, composition=Composition.from_text(text), **wishes)
    return why_infeasible(request, find_profile(asked))


def test_memory_binds_and_the_message_says_by_how_much():
    sentence = reason(nodes("fast-0:1"))
    assert "memory binds: with 1 stage of TP 1 on demo-fast" in sentence
    assert "(at most 0.431 MB short)" in sentence
    assert "the largest term is optimizer" in sentence
    held = stage_memory(
        workload(),
        demo_profile(),
        StageSlot(gpu_type="demo-fast", tp=1, micro_batch=1, micro_batches=32, depth=1, index=0),
        6,
    )
    assert f"{held.peak_bytes / 1e6:.3g} MB on a GPU" in sentence


def test_thousands_of_gigabytes_are_written_without_an_exponent():
    sentence = why("deepseek-v3-like", "t4=2x1")
    assert re.search(r"needs \d,\d{3} GB on a GPU", sentence)
    assert "e+" not in sentence


def test_recomputation_is_proposed_only_where_activations_are_the_largest_term():
    sentence = why("llama3-8b", "h100=1x1", "none")
    assert "the largest term is optimizer" in sentence
    assert "recomputation" not in sentence.partition("add GPUs")[2]


def test_a_limit_on_depth_can_be_what_binds():
    sentence = reason(nodes("fast-0:1 fast-1:1"), max_stages=1)
    assert "D_max 1" in sentence
    assert "a larger D_max" in sentence
    assert "a larger D_max" not in reason(nodes("fast-0:1"))


def test_the_amount_is_never_negative_though_even_splits_would_fit():
    for text in ("a6000=2x1,a100-40=1x1", "h100=1x1", "a100-40=3x1"):
        short = re.search(r"\(at most (-?[\d.]+) GB short\)", why("llama3-8b", text, "none"))
        assert short is not None
        assert not short.group(1).startswith("-")


def test_the_reason_is_found_soon_whatever_the_number_of_types():
    """To try every degree of every type took four times as long for each further type."""
    types = ("a100-40", "a5000", "a6000", "l40s", "rtx-2080", "rtx-3090", "titan-rtx", "v100-16")
    request = PlanRequest(
        workload=usual_workload(find_model("deepseek-v3-like")),
        composition=Composition.from_text(",".join(f"{name}=1x8" for name in types)),
    )
    profile = find_profile(request.workload)
    model = request.workload.model
    attempts = list(_attempts(request, options(request.composition, model, profile), 1))
    assert len(attempts) < 20 * len(types)
    assert len(attempts[0].stages) == len(types)  # all of them together, in groups of eight


def test_who_interrupts_gets_the_reason_found_so_far():
    request = PlanRequest(
        workload=usual_workload(find_model("llama3-8b")),
        composition=Composition.from_text("h100=1x1"),
    )
    said = why_infeasible(request, find_profile(request.workload), lambda: True)
    assert "memory binds" in said


def test_a_price_that_no_node_has_binds():
    composition = Composition(
        tuple(replace(node, price=20.0) for node in nodes("fast-0:4 fast-1:4").nodes)
    )
    request = PlanRequest(workload=workload(), composition=composition, max_price=10.0)
    said = why_infeasible(request, demo_profile())
    assert "price binds: the cheapest node costs 20" in said


def test_types_count_together():
    """Neither type alone is as near to holding the model as both are."""
    sentence = why("llama3-8b", "a6000=2x1,a100-40=1x1")
    assert "2 stages of TP 1 on a6000 and 1 stage of TP 1 on a100-40" in sentence


def test_where_memory_suffices_it_is_not_what_binds():
    assert "no plan was found, though memory allows" in why("llama3-8b", "h100=8x4")


def test_experts_that_may_not_be_spread_are_named_as_a_way_out():
    spread = why("deepseek-v3-like", "h100=64x4")
    assert "though memory allows" in spread
    assert "with EP" in spread
    kept = why("deepseek-v3-like", "h100=64x4", allow_ep=False)
    assert "memory binds: with 24 stages of TP 4 on h100" in kept
    assert "expert parallelism" in kept


def test_the_papers_largest_model_fits_on_160_gpus_in_half_precision_alone():
    """Gradients of bf16 are fp32: 18 bytes a parameter from the first micro-batch on, not 16."""
    assert "though memory allows" in why("deepseek-v3-like", "h100=40x4")
    assert "4.81 GB short" in why("deepseek-v3-like", "h100=40x4", precision="bf16")


def test_a_batch_that_no_sharing_meets_exactly_is_told_apart():
    even = replace(
        demo_profile(), layers={k: v for k, v in demo_profile().layers.items() if k[3] in (2, 4)}
    )
    request = PlanRequest(workload=workload(7), composition=nodes("fast-0:2"))
    sentence = why_infeasible(request, even)
    assert "no sharing meets global batch 7 exactly" in sentence
    assert "2, 4" in sentence
    assert "below the smallest" in why_infeasible(replace(request, workload=workload(1)), even)


def test_no_gpu_and_no_profiled_gpu_are_told_apart():
    assert "has no GPU" in reason(Composition(()))
    assert "GPU types h999 has a profile" in reason(
        Composition((Node(name="a", gpu_type="h999", gpus=8),))
    )


def test_a_limit_on_gpus_that_binds_is_named_with_what_to_do():
    sentence = reason(nodes("fast-0:2 fast-1:2 slow-0:4"), max_gpus=GpuLimits(1))
    assert "max_gpus (1 GPU)" in sentence
    assert "; allow more GPUs" in sentence
    none = reason(nodes("fast-0:4"), max_gpus=GpuLimits(None, (("demo-fast", 0),)))
    assert none.startswith("the limit on GPUs binds: max_gpus allows 0 demo-fast of the 4 GPUs")
    assert "allow at least 1" in none


def test_what_a_limit_allows_takes_gpus_with_most_memory_first():
    limits = GpuLimits(2, (("a100-80", 1),))
    sentence = why("llama3-8b", "a100-40=2x4,a100-80=1x2", max_gpus=limits)
    assert "1 stage of TP 1 on a100-80 and 1 stage of TP 1 on a100-40" in sentence
    assert "max_gpus (2 GPUs and 1 a100-80)" in sentence


def test_a_limit_below_the_smallest_tp_group_is_told_apart():
    fewer = {key: cost for key, cost in demo_profile().layers.items() if key[2] != 1}
    request = PlanRequest(workload=workload(), composition=nodes("fast-0:4"), max_gpus=GpuLimits(1))
    sentence = why_infeasible(request, replace(demo_profile(), layers=fewer))
    assert "the smallest TP group of tiny-llama takes 2 GPUs; allow more" in sentence


def small_moe(batch: int, text: str) -> PlanRequest:
    asked = replace(usual_workload(find_model("mixtral-8x7b")), global_batch=batch)
    return PlanRequest(
        workload=asked, composition=Composition.from_text(text), budget_evaluations=3000
    )


def test_replicas_that_get_no_sample_are_no_way_to_save_memory():
    request = small_moe(1, "t4=40x3")
    sentence = why_infeasible(request, find_profile(request.workload))
    assert "memory binds" in sentence
    assert "replicas" not in sentence


@pytest.mark.slow  # compiles the search
def test_a_plan_that_fits_with_few_micro_batches_in_flight_alone_is_found():
    request = small_moe(8, "t4=40x3")
    assert search(request, find_profile(request.workload)).throughput_samples_s > 1.5
