"""What partial plans leave within limits: as many stages as can still be packed."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.cluster.gpu_limits import GpuLimits
from planner.policy.gpus_left import gpus_left, replicas_with, stages_beside, stages_left
from planner.policy.schema import FeatureSchema
from tests.unit.planner.policy.conftest import environment_on

SCHEMA = FeatureSchema(("a100-40", "h100"), (1, 2, 4, 8), 24, 8)


@given(
    groups=st.lists(st.tuples(st.sampled_from(["h100", "a100-40"]), st.sampled_from([1, 2, 4]))),
    total=st.integers(1, 12),
    h100=st.none() | st.integers(1, 6),
)
def test_as_many_stages_are_left_as_limits_allow(groups, total, h100):
    limits = GpuLimits(total, () if h100 is None else (("h100", h100),))
    there = "a100-40=1x4+2x2,h100=1x4+1x2"
    space = environment_on(there, SCHEMA, max_gpus=limits).space
    used, left = np.zeros(len(space.tp), np.int64), np.zeros(len(space.tp), np.int64)
    none, gpus = used.copy(), {"h100": 0, "a100-40": 0}
    for kind, tp in groups:  # on the class that has room first
        for option in range(len(space.tp)):
            is_of_kind = SCHEMA.types[space.class_type[space.option_class[option]]] == kind
            gpus_left(space, none, used, left)
            if is_of_kind and space.tp[option] == tp and left[option] >= tp:
                used[option] += 1
                gpus[kind] += tp
                break
    assert limits.allows(gpus)
    gpus_left(space, none, used, left)
    spare = {"h100": min(6, limits.most("h100")), "a100-40": min(8, limits.most("a100-40"))}
    each = sum(spare[kind] - gpus[kind] for kind in gpus)
    expected = min(each, total - sum(gpus.values()))
    stages = stages_left(space, none, used, left)
    assert stages == expected
    for option in np.flatnonzero(left >= space.tp).tolist():
        assert stages - stages_beside(space, none, used, option, left) >= 1


def test_replicas_keep_to_a_limit_on_several_classes():
    space = environment_on("h100=4x4+4x2", SCHEMA, max_gpus=GpuLimits(6)).space
    none = np.zeros(len(space.tp), np.int64)
    used, taken = none.copy(), none.copy()
    first = int(space.first_option[0])
    assert replicas_with(space, none, none, 0, first) == 6
    used[first] = 1
    taken[int(space.first_option[1])] = 2
    assert replicas_with(space, taken, used, 0, first) == 2
