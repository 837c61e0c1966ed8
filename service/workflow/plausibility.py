"""Times that the device cannot reach are no measurements."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from warpplan.kernels.declaration import Shape
from warpplan.planner.errors import InvalidInput
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile
from warpplan.service.config_request import ConfigRequest

MARGIN = 0.5
"""The part of the floor that a time may go down to. The ceilings are medians under sustained load, at the clock that
the power limit leaves; a short kernel on a cool card runs at its boost clock, 1.5 times as fast on an H200
(``clock_hz_idle`` over ``clock_hz_tensor``). 1.0 would refuse honest times, 0.1 would take ten times too short ones."""


@runtime_checkable
class HasFloor(Protocol):
    """A kernel that knows a lower bound of its time."""

    def floor_us(self, shape: Shape, dtype: str, device: Device, profile: Profile) -> float: ...


def require_plausible(kernel: object, problem: ConfigRequest, device: Device, profile: Profile, time_us: float) -> None:
    """Raise :class:`InvalidInput` for a time below :data:`MARGIN` of what the device's ceilings allow for this work.

    No kernel is faster than an empty one (the profile's ``launch_us``); a kernel without ``floor_us`` has that limit
    alone, and where the profile lacks the ceilings too, it takes any time.
    """
    launch = dict(profile.ceilings).get("launch_us")
    floor = launch.p50 if launch else 0.0
    if isinstance(kernel, HasFloor):
        floor = max(floor, kernel.floor_us(problem.canonical, problem.dtype, device, profile))
    floor *= MARGIN
    if time_us < floor:
        raise InvalidInput(
            f"time_us={time_us:g} cannot be: the measured ceilings of {device.name} allow {problem.label} no less than "
            f"{floor:.4g} us",
            field="time_us", value=time_us, limit=floor,
        )  # fmt: skip
