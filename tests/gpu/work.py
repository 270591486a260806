"""What the process of a check of training does: `cuda_...` on the GPU, `dry_...` on the simulated
device, whose sizes are small and whose memory nobody counts."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import tempfile
import time
import warnings
from functools import partial
from itertools import product
from pathlib import Path

from tests.gpu.ranks import device_of_way

# (micro-batch, heads, tokens, width of a head)
ATTENTION = {"cuda": (2, 32, 4096, 128), "dry": (1, 4, 32, 8)}
STEPS = 6  # of the engine alone; the first one warms up
PROFILED = {"cuda": ("llama3-8b", (1, 2)), "dry": ("tiny-llama", (1,))}


def _attends(way, rank, store):
    """{"bf16 gqa window": kernels of torch that ran, peak of its memory, whether twice the same,
    and how far from the processor}."""
    import torch

    from worker.device.device import CPU
    from worker.model.attention import attend

    device = device_of_way(way)
    b, heads, length, width = ATTENTION[way]
    if way == "cuda":
        torch.use_deterministic_algorithms(True)
    found = {}
    for precision, groups, window in product(("fp32", "bf16"), (1, 4), (0, length // 4)):
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
        name = f"{precision}{' gqa' if groups > 1 else ''}{' window' if window else ''}"
        generator = torch.Generator().manual_seed(1)
        numbers = [
            torch.randn(b, count, length, width, generator=generator).to(dtype)
            for count in (heads, heads // groups, heads // groups)
        ]

        def once(on, numbers=numbers, window=window):
            leaves = [on.put(one.clone()).requires_grad_() for one in numbers]
            out = attend(*leaves, scale=width**-0.5, window=window)
            torch.autograd.backward(out.float().square().sum())
            read = [out.detach(), *(one.grad for one in leaves)]
            return [on.host(one.contiguous()).float() for one in read]

        before = _reset_peak(way)
        with _Kernels() as kernels:
            first = once(device)
        peak_bytes = _peak(way) - before
        second = once(device)
        of_one = [one[:1] for one in numbers]
        near = once(device, of_one), once(CPU, of_one)
        found[name] = {
            "kernels": sorted(kernels.seen) or ["plain"],
            "peak_bytes": peak_bytes,
            "scores_bytes": b * heads * length**2 * dtype.itemsize,
            "twice_the_same": all(map(torch.equal, first, second)),
            "apart": max(
                float((x - y).abs().max() / y.abs().max()) for x, y in zip(*near, strict=True)
            ),
        }
    return found


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
    """A profile of the device, and a plan that is made with its file as it is."""
    import torch

    from planner.api import plan
    from planner.cluster.composition import Composition
    from planner.model.catalogue import find_model
    from planner.model.workload import Workload
    from planner.profiles.profile import load_profile
    from worker.profile.bench import Bench
    from worker.profile.files import write_layers, write_links
    from worker.profile.layers import measure_layer, parts_of
    from worker.profile.rows import Row
    from worker.profile.types import measure_type

    device, (name, sizes) = device_of_way(way), PROFILED[way]
    model, bench = find_model(name), Bench(device, 3 if way == "cuda" else 1)
    length, precision = (2048, "bf16") if way == "cuda" else (32, "fp32")
    total = torch.cuda.mem_get_info()[1] if way == "cuda" else 1 << 34
    entry = measure_type(
        bench, model, "here", precision, memory_bytes=total, reserve_bytes=total // 20
    )
    layers = {}
    for part, b in product(parts_of(model), sizes):
        cost = measure_layer(bench, model, part, 1, b, length, precision, lambda _: 0.0)
        layers[part, 1, b] = Row(cost, bench.spread)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / name
        head = {"model": name, "sequence_length": length, "precision": precision}
        provenance = {"hardware": way}
        write_layers(home / "here.json", {**head, "provenance": provenance}, entry, layers)
        write_links(home, "here", provenance)
        profile = load_profile(name, Path(folder))
        workload = Workload(
            model=model, global_batch=8, sequence_length=length, precision=precision
        )
        nodes = Composition.from_text("here=2x2")
        answer = plan(workload, nodes, profile=profile, budget_evaluations=50)
    return {
        "forward_s": {f"{part} {b}": row.cost.forward_s for (part, _, b), row in layers.items()},
        "backward_s": {f"{part} {b}": row.cost.backward_s for (part, _, b), row in layers.items()},
        "update": [entry.optimizer_latency_s, entry.optimizer_s_per_parameter],
        "launch_s": entry.launch_s,
        "host_copy_bytes_per_s": entry.host_copy_bytes_per_s,
        "update_digest": entry.update_digest,
        "samples_s": answer.throughput_samples_s,
    }


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
        yield lambda: sum("synchronizing" in str(one.message) for one in told)
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


cuda_attends, dry_attends = (partial(_attends, way) for way in ("cuda", "dry"))
cuda_trains, dry_trains = (partial(_trains, way) for way in ("cuda", "dry"))
cuda_profiles, dry_profiles = (partial(_profiles, way) for way in ("cuda", "dry"))
