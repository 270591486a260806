"""The GPUs that there are, the cost of a plan on them, and the best plan.

Here live the words that every package uses (`Composition`, `Workload`, `Plan`, `Seat`, `Piece`),
the one cost model, and the search.  Nothing here imports another package of Heddle, torch,
DeepSpeed or Kubernetes.  The face is `planner.plan(workload, composition)`; docs/planner.md has an
example.  Nothing is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.api import plan as plan
    from planner.cluster.composition import Composition as Composition
    from planner.cluster.composition import Node as Node
    from planner.cluster.gpu_limits import GpuLimits as GpuLimits
    from planner.compilation import warm_up as warm_up
    from planner.errors import HeddleError as HeddleError
    from planner.model.catalogue import find_model as find_model
    from planner.model.workload import Workload as Workload
    from planner.plans.plan import Plan as Plan
    from planner.profiles.generator import find_profile as find_profile
    from planner.profiles.profile import Profile as Profile
    from planner.request import PlanAnswer as PlanAnswer
    from planner.request import PlanRequest as PlanRequest

_HOMES = {
    "Composition": "cluster.composition",
    "GpuLimits": "cluster.gpu_limits",
    "HeddleError": "errors",
    "Node": "cluster.composition",
    "Plan": "plans.plan",
    "PlanAnswer": "request",
    "PlanRequest": "request",
    "Profile": "profiles.profile",
    "Workload": "model.workload",
    "find_model": "model.catalogue",
    "find_profile": "profiles.generator",
    "plan": "api",
    "warm_up": "compilation",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"planner.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'planner' has no attribute {name!r}")
