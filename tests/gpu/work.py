"""What the process of a check of training does: `cuda_...` on the GPU, `dry_...` on the simulated
device, whose sizes are small and whose memory nobody counts."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import tempfile
import time
import traceback
import warnings
from functools import partial
from itertools import accumulate, product
from pathlib import Path

from tests.gpu.cases import tried
from tests.gpu.ranks import device_of_way

# (micro-batch, heads, tokens, width of a head)
ATTENTION = {"cuda": (2, 32, 4096, 128), "dry": (1, 4, 32, 8)}
STEPS = 6  # of the engine alone; the first one warms up
PROFILED = {"cuda": ("llama3-8b", (1, 2)), "dry": ("tiny-llama", (1,))}


def _attends(way, rank, store):
    """{"bf16 gqa window": see `_attention_of`, or its error}."""
    device, length = device_of_way(way), ATTENTION[way][2]
    found = {}
    for precision, groups, window in product(("fp32", "bf16"), (1, 4), (0, length // 4)):
        name = f"{precision}{' gqa' if groups > 1 else ''}{' window' if window else ''}"
        found |= tried(name, partial(_attention_of, way, device, precision, groups, window))
    return found


def _attention_of(way, device, precision, groups, window):
    """Kernels of torch that ran, peak of their memory, whether twice the same, by themselves and
    where torch is asked for it, and how far some heads are from the processor."""
    import torch

    from worker.device.device import CPU
    from worker.model.attention import attend

    b, heads, length, width = ATTENTION[way]
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    generator = torch.Generator().manual_seed(1)
    numbers = [
        torch.randn(b, count, length, width, generator=generator).to(dtype)
        for count in (heads, heads // groups, heads // groups)
    ]

    def once(on, numbers=numbers):
        leaves = [on.put(one.clone()).requires_grad_() for one in numbers]
        out = attend(*leaves, scale=width**-0.5, window=window)
        torch.autograd.backward(out.float().square().sum())
        read = [out.detach(), *(one.grad for one in leaves)]
        return [on.host(one.contiguous()).float() for one in read]

    def is_the_same():
        return all(map(torch.equal, once(device), once(device)))

    before = _reset_peak(way)
    with _Kernels() as kernels:
        once(device)
    peak_bytes = _peak(way) - before
    found = {
        "kernels": sorted(kernels.seen) or ["plain"],
        "peak_bytes": peak_bytes,
        "scores_bytes": b * heads * length**2 * dtype.itemsize,
        "twice_the_same": is_the_same(),
    }
    torch.use_deterministic_algorithms(True)
    try:
        found |= tried("twice_the_same_if_asked", is_the_same)
    finally:
        torch.use_deterministic_algorithms(False)
    # One core needs a second for four heads of 4,096 tokens.
    few = [numbers[0][:1, :4], *(one[:1, : 4 // groups] for one in numbers[1:])]
    near = once(device, few), once(CPU, few)
    apart = [float((x - y).abs().max() / y.abs().max()) for x, y in zip(*near, strict=True)]
    return found | {"apart": max(apart)}


def _groups(way, rank, store):
    """{precision: see `_products_of`, or its error}."""
    device, found = device_of_way(way), {}
    for precision in ("fp32", "bf16", "fp16") if way == "cuda" else ("fp32", "bf16"):
        found |= tried(precision, partial(_products_of, way, device, precision))
    return found


def _products_of(way, device, precision):
    """Of experts, one without a row and one with most of them: whether their products together
    have the bits of each alone, how far they are, and how often the host waits."""
    import torch

    from worker.model.experts.products import grouped, is_grouped, looped

    size = 512 if way == "cuda" else 16
    rows = (size, 0, 3, 5 * size)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    generator = torch.Generator().manual_seed(3)
    x, grad = (torch.randn(sum(rows), size, generator=generator).to(dtype) for _ in range(2))
    weight = (torch.randn(len(rows), size, size, generator=generator) / size**0.5).to(dtype)
    ends = torch.tensor(list(accumulate(rows)), dtype=torch.int32)
    there = device.put(ends)

    def once(multiply, ends):
        own, of = (device.put(one.clone()).requires_grad_() for one in (x, weight))
        out = multiply(own, of, ends)
        out.backward(device.put(grad))
        return [device.host(one).float() for one in (out.detach(), own.grad, of.grad)]

    with _waits(way) as waited:
        together = once(grouped, there)
    alone = once(looped, ends)
    names = ("rows", "gradient of rows", "gradient of weights")
    pairs = dict(zip(names, zip(together, alone, strict=True), strict=True))
    return {
        "is_grouped": is_grouped(x, weight),
        "waits": waited() if way == "cuda" else None,
        "same_bits": {name: torch.equal(a, b) for name, (a, b) in pairs.items()},
        "apart": {
            name: float((a - b).abs().max() / b.abs().max()) for name, (a, b) in pairs.items()
        },
    }


def _trains(way, rank, store):
    """Steps of an engine of one rank: seconds by the host and by its own parts, waits, memory."""
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
        engine, device = _engine(way, store, Path(folder))
        seconds, parts, losses, waits = [], [], [], []
        for _ in range(STEPS):
            with _waits(way) as waited:
                start_s = time.perf_counter()
                result = engine.train_step(None)
                seconds.append(time.perf_counter() - start_s)
            parts.append(result.parts_s)
            losses.append(result.loss)
            waits.append(waited())
        memory_bytes = device.held_bytes()
    return {
        "step_s": seconds[1:],
        "parts_s": parts[1:],
        "waits": waits[1:],
        "losses": losses,
        "memory_bytes": memory_bytes,
        "planner_bytes": _planned_bytes(way),
    }


def _profiles(way, rank, store):
    """A profile of the device, and a plan that is made with its file as it is.

    What was measured before an error stands beside it.
    """
    from planner.model.catalogue import find_model
    from worker.profile.bench import Bench
    from worker.profile.layers import parts_of

    device, (name, sizes) = device_of_way(way), PROFILED[way]
    model, bench = find_model(name), Bench(device, 3 if way == "cuda" else 1)
    length, precision = (2048, "bf16") if way == "cuda" else (32, "fp32")
    found, layers = {"forward_s": {}, "backward_s": {}}, {}
    try:
        entry = _type_of(way, bench, model, precision)
        found |= {
            "update": [entry.optimizer_latency_s, entry.optimizer_s_per_parameter],
            "launch_s": entry.launch_s,
            "host_copy_bytes_per_s": entry.host_copy_bytes_per_s,
            "update_digest": entry.update_digest,
        }
        for part, b in product(parts_of(model), sizes):
            row = _row_of(bench, model, part, b, length, precision)
            layers[part, 1, b] = row
            found["forward_s"][f"{part} {b}"] = row.cost.forward_s
            found["backward_s"][f"{part} {b}"] = row.cost.backward_s
        found["samples_s"] = _planned(way, model, length, precision, entry, layers)
    except Exception as error:
        traceback.print_exc()
        found["error"] = f"{type(error).__name__}: {error}"[:300]
    return found


def _type_of(way, bench, model, precision):
    import torch

    from worker.profile.types import measure_type

    total = torch.cuda.mem_get_info()[1] if way == "cuda" else 1 << 34
    return measure_type(
        bench, model, "here", precision, memory_bytes=total, reserve_bytes=total // 20
    )


def _row_of(bench, model, part, b, length, precision):
    from worker.profile.layers import measure_layer
    from worker.profile.rows import Row

    cost = measure_layer(bench, model, part, 1, b, length, precision, lambda _: 0.0)
    return Row(cost, bench.spread)


def _planned(way, model, length, precision, entry, layers):
    """Samples a second of a plan with the profile."""
    from planner.api import plan
    from planner.cluster.composition import Composition
    from planner.model.workload import Workload
    from planner.profiles.profile import load_profile
    from worker.profile.files import write_layers, write_links

    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / model.name
        head = {"model": model.name, "sequence_length": length, "precision": precision}
        provenance = {"hardware": way}
        write_layers(home / "here.json", {**head, "provenance": provenance}, entry, layers)
        write_links(home, "here", provenance)
        profile = load_profile(model.name, Path(folder))
        workload = Workload(
            model=model, global_batch=8, sequence_length=length, precision=precision
        )
        nodes = Composition.from_text("here=2x2")
        return plan(workload, nodes, profile=profile, budget_evaluations=50).throughput_samples_s


def _engine(way, store, folder):
    """(an engine of one rank, its device)."""
    from deepspeed.accelerator import set_accelerator

    from planner.model.arithmetic import INITIAL_DEVIATION
    from planner.plans.ranks import RankMap
    from tests.unit.worker.changes import plan
    from tests.unit.worker.stages import stage_build
    from worker.checkpoint.start_source import FirstWeights
    from worker.contract import TrainingSpec
    from worker.control.activity import Activity
    from worker.data.dataset import Dataset
    from worker.data.making.prepare import prepare
    from worker.engine.deepspeed import DeepSpeedEngine, begin, warm_up
    from worker.model.initial_weights import initial_rows
    from worker.state.shards import TargetShards
    from worker.world.gloo_wire import GlooWire
    from worker.world.pace import RealPace
    from worker.world.staged_wire import StagedWire
    from worker.world.world import World, rank_sets

    device = device_of_way(way)
    if way == "cuda":
        from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator as Accelerator
    else:
        from tests.simulated_device.story import SimulatedAccelerator as Accelerator
    set_accelerator(Accelerator())
    os.environ["LOCAL_RANK"] = "0"
    warm_up()
    begin()
    model, length, precision = _trained(way)
    prepare([Path(contextlib.__file__).parent / "json"], folder / "text")
    chosen, activity = plan(f"1x{model.layers}"), Activity()
    (seat,) = RankMap.of(chosen).seats
    spec = TrainingSpec(
        model=model.name,
        shape=model.to_json(),
        data=str(folder / "text"),
        global_batch=1,
        sequence_length=length,
        steps=100,
        precision=precision,
    )
    world = World(
        store,
        1,
        0,
        1,
        rank_sets(model, chosen),
        activity,
        device=device,
        form_wire=StagedWire.over(GlooWire.form, device),
    )
    fill = FirstWeights(partial(initial_rows, spec.seed, INITIAL_DEVIATION)).fill
    target = TargetShards.first(model, seat, fill, activity, precision, device)
    build = stage_build(model, spec, chosen, seat, world, target, activity)
    return DeepSpeedEngine(build, Dataset(spec.data, length, model.vocab), RealPace()), device


def _trained(way):
    """(model, tokens of a sample, precision) of the engine alone."""
    from planner.model.shape import ModelShape
    from tests.families import FAMILIES

    if way == "dry":
        return FAMILIES["llama3"], 16, "fp32"
    shape = ModelShape(
        name="llama-1b", layers=16, hidden=2048, heads=32, kv_heads=8, ffn=8192, vocab=32768
    )
    return shape, 2048, "bf16"


def _planned_bytes(way):
    """The peak of the engine's stage by the planner's rule."""
    from planner.cluster.composition import Composition
    from planner.cost.evaluate import cost_of
    from planner.model.workload import Workload
    from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
    from planner.profiles.generator import find_profile

    model, length, precision = _trained(way)
    workload = Workload(
        model=model,
        global_batch=1,
        sequence_length=length,
        precision=precision,
        memory="worker",
    )
    stage = Stage(gpu_type="h100", tp=1, layers=model.layers)
    chosen = Plan((FilledTemplate((stage,), 1, (1,)),), (PlacedStage(0, 0, 0, "h100-0", (0,)),))
    nodes = Composition.from_text("h100=1x1")
    return cost_of(chosen, workload, nodes, find_profile(workload)).peak_memory_bytes


class _Kernels:
    """The kernels of torch's fused attention that run within."""

    def __enter__(self):
        from torch.utils._python_dispatch import TorchDispatchMode

        seen = self.seen = set()

        class Sees(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                if "scaled_dot_product" in function.__name__:
                    seen.add(function.__name__.partition(".")[0].strip("_"))
                return function(*args, **(kwargs or {}))

        self._mode = Sees()
        self._mode.__enter__()
        return self

    def __exit__(self, *error):
        self._mode.__exit__(*error)


@contextlib.contextmanager
def _waits(way):
    """How often the host waited for the device within, beside its one read; a function says it."""
    if way == "dry":
        from tests.simulated_device.rules import RULES

        before = RULES.count("read")
        yield lambda: RULES.count("read") - before - 1
        return
    import torch

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield lambda: sum("synchronizing" in str(one.message) for one in told)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def _reset_peak(way):
    if way == "dry":
        return 0
    import torch

    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _peak(way):
    if way == "dry":
        return 0
    import torch

    return torch.cuda.max_memory_allocated()


def is_finite(numbers) -> bool:
    """Whether all of them are numbers."""
    return all(math.isfinite(number) for number in numbers)


cuda_groups, dry_groups = (partial(_groups, way) for way in ("cuda", "dry"))
cuda_attends, dry_attends = (partial(_attends, way) for way in ("cuda", "dry"))
cuda_trains, dry_trains = (partial(_trains, way) for way in ("cuda", "dry"))
cuda_profiles, dry_profiles = (partial(_profiles, way) for way in ("cuda", "dry"))
