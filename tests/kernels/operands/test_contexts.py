"""A thread gets a CUDA context once, and only where it has none."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from warpplan.kernels.operands.contexts import bind_context

GPU = SimpleNamespace(type="cuda", index=3)


class Driver:
    """What libcuda does here: a context for each thread, and an error where it is told to fail."""

    def __init__(self, current: int = 0, error: int = 0) -> None:
        self.current, self.error = current, error
        self.calls: list[object] = []

    def cuCtxGetCurrent(self, context):
        context._obj.value = self.current
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device):
        self.calls.append(("retain", device))
        context._obj.value = 77
        return self.error

    def cuCtxSetCurrent(self, context):
        self.calls.append(("set", context.value))
        return 0


def in_a_thread(driver, times=1, device=GPU):
    """What ``bind_context`` raised in a thread of its own, if anything."""
    raised = []

    def run():
        try:
            for _ in range(times):
                bind_context(device, driver)
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised


def test_a_thread_without_a_context_gets_its_gpus_once():
    driver = Driver()
    assert in_a_thread(driver, times=3) == []
    assert driver.calls == [("retain", 3), ("set", 77)]


def test_every_thread_gets_one():
    driver = Driver()
    for _ in range(2):
        in_a_thread(driver)
    assert driver.calls == [("retain", 3), ("set", 77)] * 2


def test_a_context_that_is_there_stays():
    driver = Driver(current=5)
    assert in_a_thread(driver) == []
    assert driver.calls == []


def test_other_devices_need_none():
    driver = Driver()
    in_a_thread(driver, device=SimpleNamespace(type="cpu", index=None))
    assert driver.calls == []


def test_a_driver_that_fails_is_told_with_its_error():
    (error,) = in_a_thread(Driver(error=101))
    assert "cuDevicePrimaryCtxRetain failed with CUDA error 101" in str(error)
