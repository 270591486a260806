"""worker/device/fabric.py: a network that NCCL was told to use and that is not there is refused."""

from __future__ import annotations

import pytest

from worker.device.fabric import ADAPTER, INTERFACE, NET, check_fabric, interfaces
from worker.errors import DeviceUnusable

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
