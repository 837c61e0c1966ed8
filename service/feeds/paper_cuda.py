"""``torch.cuda`` as it is on a machine with a GPU that is not here, as far as consumers ask before they compile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from unittest import mock

from warpplan.planner.values.device import Device


@contextmanager
def paper_cuda(gpu: Device) -> Iterator[None]:
    """Answer questions about the current device with ``gpu``'s values; what it was is put back. Needs torch."""
    major, minor = divmod(gpu.capability, 10)
    properties = SimpleNamespace(
        name=gpu.name, gcnArchName=gpu.name, major=major, minor=minor, multi_processor_count=gpu.sm_count,
        shared_memory_per_block_optin=gpu.smem_bytes_per_block, regs_per_multiprocessor=gpu.registers_per_sm,
        warp_size=32, max_threads_per_multi_processor=32 * gpu.warps_per_sm, total_memory=gpu.dram_bytes,
        L2_cache_size=gpu.l2_bytes,
    )  # fmt: skip
    answers = {
        "is_available": lambda: True, "current_device": lambda: 0, "device_count": lambda: 1,
        "get_device_properties": lambda *_: properties, "get_device_capability": lambda *_: (major, minor),
        "get_device_name": lambda *_: gpu.name,
    }  # fmt: skip
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch(f"torch.cuda.{name}", answer))
        yield
