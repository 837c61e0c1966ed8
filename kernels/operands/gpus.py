"""The GPU that a tensor lies on, as the planner knows it."""

from __future__ import annotations

from functools import lru_cache

import torch

from warpplan.planner.errors import UnknownName
from warpplan.planner.values.device import DEVICES, H200, Device


@lru_cache(maxsize=64)
def device_limits(index: int) -> Device:
    """The limits of a GPU; a Hopper model that is not in the table has those of the ones that are."""
    properties = torch.cuda.get_device_properties(index)
    if properties.name in DEVICES:
        return DEVICES[properties.name]
    if (properties.major, properties.minor) == (9, 0):
        return H200
    raise UnknownName("device", properties.name, DEVICES)


@lru_cache(maxsize=64)
def hopper_name(index: int) -> str:
    """The name of the CUDA device ``index``; empty unless it is a Hopper GPU, which the planned kernels are written
    for."""
    hopper = torch.version.hip is None and torch.cuda.get_device_capability(index) == (9, 0)
    return str(torch.cuda.get_device_name(index)) if hopper else ""


@lru_cache(maxsize=64)
def sm_count(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).multi_processor_count)
