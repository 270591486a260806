"""How many filled templates the estimator prices in a second on one core, and what its load costs.

The loop is jitted, so that it measures fill and price and no call from Python.  Only templates that
fit are timed: those that do not are cheaper.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.planner.process import with_bytecode
from planner.cluster.composition import Composition
from planner.estimator.build_tables import pricing_of
from planner.estimator.fill.filling import PER_SIZE, fill_template
from planner.estimator.jit import jit
from planner.estimator.tables import MAX_DEPTH, Ints, Tables
from planner.estimator.unplaced_plan import UnplacedPlan, most_replicas, new_plan
from planner.estimator.whole_plan import iteration_seconds
from planner.estimator.workspace import Workspace, new_workspace
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import find_profile

ROOT = Path(__file__).parents[2]
GPUS = "h100=16x4,a100-40=16x4,a6000=16x4"
BATCH = 2048
TEMPLATES = 3000
REPEATS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One figure.

    Attributes:
        model: its name.
        depth: stages of every template.
        sizes: micro-batch sizes.
        per_size: splits that are kept of one size.
        templates_per_s: median over the repeats.
        slowest_per_s: of the repeats.
        fills: share of the drawn templates that fit; only those are timed.
    """

    model: str
    depth: int
    sizes: tuple[int, ...]
    per_size: int
    templates_per_s: float
    slowest_per_s: float
    fills: float


@jit
def price_all(
    t: Tables,
    options: Ints,
    replicas: Ints,
    depth: int,
    per_size: int,
    plan: UnplacedPlan,
    work: Workspace,
) -> float:
    """Fill and price every template alone; returns the sum of the finite prices."""
    total_s = 0.0
    plan.number[0] = 1
    plan.depth[0] = depth
    for row in range(len(replicas)):
        for s in range(depth):
            plan.options[0, s] = options[row, s]
        n = replicas[row]
        plan.replicas[0] = n
        plan.pipelines[0] = n
        fill_template(t, plan, 0, n, per_size, work)
        if plan.filling_count[0, 0] > 0:
            seconds = iteration_seconds(t, plan, work, math.inf)
            if seconds < math.inf:
                total_s += seconds
    return total_s


def rate(
    model: str, depth: int, sizes: tuple[int, ...], per_size: int, clock: Callable[[], float]
) -> Rate:
    """Measure one figure in seconds of that clock; the caches of the tables are warm."""
    workload = Workload(
        model=find_model(model),
        global_batch=BATCH,
        sequence_length=2048,
        precision="fp16",
        memory="paper",
    )
    profile = find_profile(workload)
    layers = {key: cost for key, cost in profile.layers.items() if key[3] in sizes}
    pricing = pricing_of(workload, Composition.from_text(GPUS), replace(profile, layers=layers))
    assert pricing is not None
    tables = pricing.tables
    assert tuple(tables.sizes) == sizes
    plan, work = new_plan(), new_workspace(tables)
    random = Random(0)
    chosen: list[list[int]] = []
    most: list[int] = []
    drawn = 0
    while len(chosen) < TEMPLATES and drawn < 100 * TEMPLATES:
        drawn += 1
        stages = [random.randrange(len(pricing.options)) for _ in range(depth)]
        row = np.array([[*stages, *([0] * (MAX_DEPTH - depth))]])
        plan.number[0], plan.depth[0] = 1, depth
        plan.options[0] = row[0]
        n = int(most_replicas(tables, plan, 0))
        if n > 0 and price_all(tables, row, np.array([n]), depth, per_size, plan, work) > 0:
            chosen.append(list(row[0]))
            most.append(n)
    options, replicas = np.array(chosen), np.array(most)
    rates = []
    for _ in range(REPEATS):
        started_s = clock()
        price_all(tables, options, replicas, depth, per_size, plan, work)
        rates.append(len(chosen) / (clock() - started_s))
    share = len(chosen) / drawn
    return Rate(
        model=model,
        depth=depth,
        sizes=sizes,
        per_size=per_size,
        templates_per_s=statistics.median(rates),
        slowest_per_s=min(rates),
        fills=share,
    )


LOAD = """
import sys, time
from pathlib import Path
started_s = time.perf_counter()
from planner.estimator import jit
if sys.argv[1]:
    jit.FOLDER = Path(sys.argv[1])
from planner.cluster.composition import Composition
from planner.profiles.generator import find_profile
from planner.model.catalogue import find_model
from planner.request import PlanRequest
from planner.search.driver import search
from planner.model.workload import Workload
import planner.search.searcher
imported_s = time.perf_counter()
workload = Workload(
    model=find_model(sys.argv[2]),
    global_batch=2048,
    sequence_length=2048,
    precision="fp16",
    memory="paper",
)
question = PlanRequest(
    workload=workload,
    composition=Composition.from_text(sys.argv[3]),
    budget_evaluations=500,
)
search(question, find_profile(workload))
first_s = time.perf_counter()
search(question, find_profile(workload))
second_s = time.perf_counter()
print(imported_s - started_s, first_s - imported_s, second_s - first_s)
"""


def loading(model: str, *, is_cold: bool) -> dict[str, float]:
    """Seconds of import and of the first search over a second one, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", LOAD, folder if is_cold else "", model, GPUS]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=with_bytecode(),
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        )
    import_s, first_s, second_s = map(float, done.stdout.split())
    return {"import_s": import_s, "kernel_s": first_s - second_s}


def measure(clock: Callable[[], float]) -> dict[str, Any]:
    """All rates, and load and compile apart."""
    four, five = (1, 2, 4, 8), (1, 2, 4, 8, 16)
    loading("llama3-8b", is_cold=False)  # fills the cache if it is empty
    return {
        "rates": [
            asdict(rate("llama3-8b", 8, four, 1, clock)),
            asdict(rate("llama3-8b", 8, five, PER_SIZE, clock)),
            asdict(rate("qwen3-30b-a3b", 8, four, 1, clock)),
            asdict(rate("qwen3-30b-a3b", 8, five, PER_SIZE, clock)),
        ],
        "load": loading("llama3-8b", is_cold=False),
        "compile": loading("llama3-8b", is_cold=True),
    }
