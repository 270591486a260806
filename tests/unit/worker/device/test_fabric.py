"""worker/device/fabric.py: a network that NCCL was told to use and that is not there is refused."""

from __future__ import annotations

import pytest

from worker.device.fabric import (
    ADAPTER,
    GLOO_INTERFACE,
    INTERFACE,
    NET,
    check_fabric,
    check_gloo,
    interfaces,
    named,
)
from worker.errors import DeviceUnusable, FabricHangs

HAS = ("eth0", "ib0", "lo")


@pytest.mark.parametrize("asked", ["eth0", "eth", "=eth0", "en,eth", "^docker,lo", ""])
def test_an_interface_is_named_by_its_beginning_exactly_or_left_out(asked):
    check_fabric({INTERFACE: asked}, HAS, ())


@pytest.mark.parametrize("asked", ["eth1", "=eth", "en"])
def test_an_interface_that_is_not_there_is_refused(asked):
    with pytest.raises(DeviceUnusable) as caught:
        check_fabric({INTERFACE: asked}, HAS, ())
    assert (caught.value.code, caught.value.field) == ("Unknown", INTERFACE)


@pytest.mark.parametrize(("name", "value"), [(ADAPTER, "mlx5"), (NET, "IB")])
def test_infiniband_that_is_asked_for_and_absent_is_refused(name, value):
    with pytest.raises(DeviceUnusable) as caught:
        check_fabric({name: value}, HAS, ())
    assert (caught.value.code, caught.value.field) == ("Missing", name)
    check_fabric({name: value}, HAS, ("mlx5_0",))


def test_adapters_that_are_left_out_and_another_network_ask_for_none():
    check_fabric({ADAPTER: "^mlx5_3", NET: "Socket"}, HAS, ())


def test_this_machine_has_its_loopback():
    assert "lo" in interfaces()


def test_gloo_takes_whole_names_of_interfaces_that_are_there():
    for asked in ("", HAS[0], ",".join(HAS)):
        check_gloo({GLOO_INTERFACE: asked}, HAS)
    check_gloo({GLOO_INTERFACE: "en0"}, ())  # a system that lists none
    for asked in ("ib7", f"{HAS[0]},ib7", HAS[0][:-1]):
        with pytest.raises(DeviceUnusable) as caught:
            check_gloo({GLOO_INTERFACE: asked}, HAS)
        assert (caught.value.code, caught.value.field) == ("Unknown", GLOO_INTERFACE)


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ("abc", "rank 0 on a with rank 1 on b, rank 2 on c: no answer"),
        ("", "rank 0 with rank 1, rank 2: no answer"),
        ("abcdef", "rank 0 on a with rank 1 on b, rank 2 on c, rank 3 on d and 2 more ranks: no "),
    ],
)
def test_a_network_that_hangs_is_named_by_ranks_and_nodes(nodes, said):
    with pytest.raises(FabricHangs) as caught, named(0, range(len(nodes) or 3), nodes):
        raise FabricHangs("no answer")
    assert str(caught.value).startswith(said)
