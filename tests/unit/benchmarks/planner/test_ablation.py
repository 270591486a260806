"""benchmarks/planner/ablation.py: a search without each of its parts still answers."""

from __future__ import annotations

import pytest

from benchmarks.planner import ablation
from planner.cluster.composition import Composition, Node
from planner.model.catalogue import find_model
from planner.model.workload import usual_workload
from planner.profiles.generator import find_profile
from planner.request import PlanRequest

# More node classes than a plan has templates, and more GPUs than are searched exactly.
COMPOSITION = Composition(
    tuple(Node(name=f"n{i}", gpu_type="h100", gpus=2, speed_factor=1 - i / 100) for i in range(20))
)


@pytest.mark.parametrize("without", [ablation.WHOLE, *ablation.PARTS])
def test_a_search_without_a_part_has_a_plan(monkeypatch, without):
    monkeypatch.setattr(ablation, "EVALUATIONS", 50)
    workload = usual_workload(find_model("llama3-8b"))
    request = PlanRequest(workload=workload, composition=COMPOSITION)
    assert ablation.throughput(request, find_profile(workload), without) > 0
