"""worker/device/gpus.py: GPUs that cannot be trained on are refused, each by its code."""

from __future__ import annotations

import pytest

from tests.fakes.driver import H100, FakeDriver, FakeLibrary
from tests.refusals import refused
from worker.device.gpus import Gpu, Nvml, check_gpus, check_type, device_kind
from worker.errors import DeviceUnusable

NONE = FakeDriver(version=None, gpus=())


@pytest.mark.parametrize(
    ("driver", "count", "code"),
    [
        (NONE, 1, "Missing"),
        (FakeDriver(version="550.54.15"), 1, "Unsupported"),
        (FakeDriver(version=""), 1, "Unsupported"),
        (FakeDriver(), 2, "OutOfRange"),
        (FakeDriver(gpus=[H100._replace(used_bytes=20 << 30)]), 1, "Taken"),
        (FakeDriver(gpus=[H100._replace(is_divided=True)]), 1, "Unsupported"),
        (FakeDriver(gpus=[Gpu("", 0, 0, fault=15)]), 1, "Failed"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_by_its_code_in_one_sentence(driver, count, code):
    for asked in (lambda: check_gpus(driver, count), lambda: device_kind("cuda", driver, count)):
        with refused(DeviceUnusable, code):
            asked()


def test_gpus_that_the_pod_was_not_given_do_not_matter():
    check_gpus(FakeDriver(gpus=[H100, H100._replace(used_bytes=80 << 30)]), 1)


def test_auto_takes_gpus_where_there_is_a_driver_and_else_the_processor():
    assert device_kind("auto", NONE, 4) == "cpu"
    assert device_kind("auto", FakeDriver(gpus=()), 4) == "cpu"
    assert device_kind("auto", FakeDriver(), 1) == "cuda"
    assert device_kind("cpu", FakeDriver(), 1) == "cpu"
    with pytest.raises(DeviceUnusable):
        device_kind("auto", FakeDriver(), 2)


@pytest.mark.parametrize(
    ("name", "gpu_type"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA GH200 480GB", "gh200-96"),
        ("Tesla V100-SXM2-16GB", "v100-16"),
        ("NVIDIA A100 80GB PCIe", "a100-80-pcie"),
        ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA TITAN RTX", "titan-rtx"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A10G", "a10g"),
        ("Tesla T4", "t4"),
    ],
)
def test_a_gpu_is_of_the_type_of_its_label(name, gpu_type):
    check_type(name, gpu_type)
    with refused(DeviceUnusable, "Mismatch"):
        check_type(name, "l4")


def test_a_type_of_an_administrators_own_name_may_be_any_gpu():
    check_type("NVIDIA H100 PCIe", "team-h100")


@pytest.mark.parametrize(
    ("name", "gpu_type"),
    [
        ("NVIDIA A10", "a10g"),
        ("NVIDIA A10G", "a10"),
        ("NVIDIA A100-SXM4-40GB", "a100-80"),
        ("NVIDIA A100-SXM4-80GB", "a100-80-pcie"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-3090"),
        ("NVIDIA RTX A6000", "rtx-pro-6000"),
    ],
)
def test_another_size_form_or_number_is_another_type(name, gpu_type):
    with refused(DeviceUnusable, "Mismatch"):
        check_type(name, gpu_type)


@pytest.mark.skipif(Nvml().version() is not None, reason="this machine has an NVIDIA driver")
def test_without_a_library_there_is_no_driver_and_no_gpu():
    assert (Nvml().version(), Nvml().gpus()) == (None, ())


def test_a_gpu_that_is_lost_is_seen_by_its_code_and_named():
    driver = Nvml(lambda _: FakeLibrary(nvmlDeviceGetHandleByIndex_v2={0: 15}))
    lost, sound = driver.gpus()
    assert (lost.fault, sound.fault, sound.total_bytes) == (15, 0, H100.total_bytes)
    with refused(DeviceUnusable, "Failed") as caught:
        device_kind("auto", driver, 2)
    assert "GPU 0 does not answer (NVML 15)" in str(caught.value)


@pytest.mark.parametrize("call", ["nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo"])
def test_a_gpu_that_is_lost_between_two_questions_is_seen_too(call):
    (lost, _) = Nvml(lambda _: FakeLibrary(**{call: {0: 15}})).gpus()
    assert lost == Gpu("", 0, 0, fault=15)


def test_a_gpu_without_mig_is_whole():
    sound = Nvml(lambda _: FakeLibrary(nvmlDeviceGetMigMode={0: 3, 1: 3})).gpus()
    assert sound == (H100, H100)


@pytest.mark.parametrize("call", ["nvmlInit_v2", "nvmlSystemGetDriverVersion"])
@pytest.mark.parametrize("asked", ["auto", "cuda"])
def test_a_driver_that_cannot_be_asked_is_refused_by_its_code(call, asked):
    library = FakeLibrary(**{call: {None: 18}})
    with refused(DeviceUnusable, "Unreadable") as caught:
        device_kind(asked, Nvml(lambda _: library), 1)
    assert "the driver cannot be asked (NVML 18)" in str(caught.value)
    assert library.opened == 0, "it is closed again"


def test_a_library_without_a_driver_in_the_kernel_is_no_driver():
    driver = Nvml(lambda _: FakeLibrary(nvmlInit_v2={None: 9}))
    assert device_kind("auto", driver, 1) == "cpu"
    with refused(DeviceUnusable, "Missing"):
        device_kind("cuda", driver, 1)
