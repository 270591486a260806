"""worker/world: groups that form by handles, their first operations, and how they end.

NCCL itself is not tried: the groups are gloo's, which form in the same way, and recorded ones.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time

import pytest
import torch
from torch.distributed import HashStore

from tests.fakes.gloo_group import GROUP_BYTES
from tests.unit.worker.ranks import run_ranks
from worker.errors import FabricHangs, RendezvousFailed
from worker.world import nccl_groups
from worker.world.nccl_groups import DEADLINE, SHARING, check_shared, connecting, form_old
from worker.world.nccl_wire import NcclWire

CLAIMS = "tests.unit.worker.world.nccl_claims"
OPTIONS = """
import os, torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import HashStore
from planner.profiles.entries import MAX_CTAS
from worker.world.nccl_groups import has_new, has_old, options_of, own_end
found = not has_old()
if has_new():
    options = options_of()
    found = (options.config.blocking, options.config.max_ctas) == (0, MAX_CTAS)
    found = found and options._timeout.days > 365
    options.enable_reconfigure = True
    group = c10d.ProcessGroupNCCL2(HashStore(), 0, 2, options, torch.device("cuda", 0))
    found = found and own_end(group) is None
    found = found and group.get_reconfigure_handle().startswith("nccl2:0")
    found = found and group.supports_reconfigure and group.supports_coalescing
os._exit(0 if found else 1)
"""


@pytest.mark.slow
def test_a_group_of_the_new_class_is_made_without_a_driver_and_waits_for_its_handles():
    """It ends its process once it is dropped where no driver is, so the process ends before."""
    done = subprocess.run([sys.executable, "-c", OPTIONS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_two_versions_of_nccl_in_one_job_are_refused_on_every_rank():
    assert run_ranks(f"{CLAIMS}:mixed_versions", 2) == ["Mismatch", "Mismatch"]


@pytest.mark.slow
def test_two_ranks_on_one_gpu_are_refused_on_both_where_nccl_does_not_let_them():
    refused = [["Unsupported", "HEDDLE_WIRE"], ["Missing", SHARING]]
    assert run_ranks(f"{CLAIMS}:shares_a_gpu", 2) == [refused, refused]


@pytest.mark.slow
def test_ranks_that_meet_and_do_not_connect_end_at_the_deadline_by_their_network():
    (found, is_in_time), _ = run_ranks(f"{CLAIMS}:does_not_connect", 2)
    assert [kind for kind, _ in found] == ["fabric", "fabric"]
    assert is_in_time
    for (_, said), name in zip(found, ("epoch1/group0", "move/payload"), strict=True):
        assert f"rank 0 on here with rank 1 on there: 2 ranks met as {name} and did" in said


@pytest.mark.parametrize(("waits_s", "error"), [(0.0, RendezvousFailed), (0.1, FabricHangs)])
def test_a_network_hangs_where_ranks_that_met_were_kept_waiting_until_the_deadline(waits_s, error):
    """Who fails before it has lost a peer."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(error))
        stack.enter_context(connecting("epoch1/group0", 2, 0.1))
        time.sleep(waits_s)
        raise RuntimeError("not connected")


def test_memory_that_ends_while_ranks_connect_is_no_fault_of_the_network():
    with pytest.raises(torch.OutOfMemoryError), connecting("epoch1/group0", 2, 0.0):
        raise torch.OutOfMemoryError


class NeverConnects:
    """A group of the older class that torch gives up at its deadline."""

    def __init__(self, *_):
        pass

    def eager_connect_single_device(self, device):
        del device
        time.sleep(float(os.environ[DEADLINE]))
        raise RuntimeError("NCCL timed out")


def test_the_older_class_says_likewise_that_its_network_hangs(monkeypatch):
    monkeypatch.setattr(nccl_groups.c10d, "ProcessGroupNCCL", NeverConnects)
    monkeypatch.setattr(nccl_groups, "runtime_version", lambda: (2, 21, 5))
    monkeypatch.setattr(nccl_groups, "options_of", lambda: None)
    monkeypatch.setenv(DEADLINE, "0.05")
    with pytest.raises(FabricHangs):
        form_old(torch.device("cuda", 0))(HashStore(), "epoch1/group0", 0, 1)


@pytest.mark.slow
def test_first_operations_connect_all_and_end_when_a_peer_goes():
    found = run_ranks(f"{CLAIMS}:tries", 3)
    assert [of["sum"] for of in found] == [[3.0]] * 3
    assert [(of["late"], of["held"]) for of in found] == [
        (True, [0, groups * GROUP_BYTES]) for groups in (2, 1, 2)
    ]
    assert [of["ended"] for of in found[1:]] == [True, True]


@pytest.mark.slow
def test_a_first_operation_that_hangs_ends_at_its_deadline_and_says_so():
    (kind, said), _ = run_ranks(f"{CLAIMS}:hangs", 2)
    assert kind == "fabric"
    assert "rank 0 on here with rank 1 on there has not ended" in said


@pytest.mark.slow
def test_the_wires_of_a_world_end_at_once_and_one_by_one_is_found_out():
    (found,) = run_ranks(f"{CLAIMS}:breaks", 1)
    assert found["right"] == 0
    assert found["one by one"] > 0


class Refuses:
    """A group of torch that takes no message."""

    def __init__(self):
        self.open = 0

    def _start_coalescing(self):
        self.open += 1

    def _end_coalescing(self):
        self.open -= 1

    def send(self, tensors, target, tag):
        raise ValueError("the tensor is on another device")


def test_a_round_that_fails_leaves_no_group_of_nccl_open():
    """NCCL counts open groups by thread: the thread that trains could start nothing any more."""
    group = Refuses()
    with pytest.raises(ValueError, match="another device"):
        NcclWire(group).exchange([(0, torch.ones(1))], [])
    assert group.open == 0


@pytest.mark.slow
def test_wires_of_a_device_are_freed_before_the_thread_that_trains_goes_on():
    assert run_ranks(f"{CLAIMS}:frees", 1) == [[False, 0]]


@pytest.mark.slow
def test_no_number_counts_once_torch_has_ended_a_communicator_by_itself():
    ((one, world, other, move, *are_broken),) = run_ranks(f"{CLAIMS}:ends_by_itself", 1)
    assert one == other == [1.0]
    assert "COMM_ERROR" in world
    assert "COMM_ERROR" in move
    assert are_broken == [True, True]


def test_two_ranks_share_a_gpu_where_the_library_lets_them_and_it_is_asked_for():
    check_shared((2, 30, 0), {SHARING: "1"})
