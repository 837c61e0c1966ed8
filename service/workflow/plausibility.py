"""What cannot be a measurement: a time that the device does not allow, another GPU's, one from the future."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Protocol, runtime_checkable

from warpplan.kernels.declaration import Shape
from warpplan.planner.errors import InvalidInput
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile
from warpplan.service.config_request import ConfigRequest
from warpplan.service.store.stored_values import Environment

MARGIN = 0.5
"""The part of the floor that a time may go down to. The ceilings are medians under sustained load, at the clock that
the power limit leaves; a short kernel on a cool card runs at its boost clock, 1.5 times as fast on an H200
(``clock_hz_idle`` over ``clock_hz_tensor``). 1.0 would refuse honest times, 0.1 would take ten times too short ones."""
SLOWEST = 1e4
"""How many times its floor a kernel may take. The slowest of the 8,502 recorded GEMM configurations
(``benchmarks/results/gemm_exhaustive_h200_*.json``) takes 96 times its floor; a doubled limit lets more of what hung or
waited for another process count as measured."""
SKEW = timedelta(minutes=5)
"""How far a job's clock may be ahead of this machine's. Clocks that are synchronised differ by seconds."""


@runtime_checkable
class HasFloor(Protocol):
    """A kernel that knows a lower bound of its time."""

    def floor_us(self, shape: Shape, dtype: str, device: Device, profile: Profile) -> float: ...


def require_plausible(kernel: object, problem: ConfigRequest, device: Device, profile: Profile, time_us: float) -> None:
    """Raise :class:`InvalidInput` for a time below :data:`MARGIN` of what the device's ceilings allow for this work, or
    beyond :data:`SLOWEST` times it.

    No kernel is faster than an empty one (the profile's ``launch_us``); a kernel without ``floor_us`` has that limit
    alone, and where the profile lacks the ceilings too, it takes any time.
    """
    floor = _launch_us(profile)
    if isinstance(kernel, HasFloor):
        floor = max(floor, kernel.floor_us(problem.canonical, problem.dtype, device, profile))
        if floor and time_us > SLOWEST * floor:
            raise InvalidInput(
                f"time_us={time_us:g} cannot be: {problem.label} on {device.name} takes no more than "
                f"{SLOWEST * floor:.4g} us, {SLOWEST:g} times what the measured ceilings allow",
                field="time_us", value=time_us, limit=SLOWEST * floor,
            )  # fmt: skip
    floor *= MARGIN
    if time_us < floor:
        raise InvalidInput(
            f"time_us={time_us:g} cannot be: the measured ceilings of {device.name} allow {problem.label} no less than "
            f"{floor:.4g} us",
            field="time_us", value=time_us, limit=floor,
        )  # fmt: skip


def _launch_us(profile: Profile) -> float:
    """The time of an empty kernel; 0 where the profile does not say it."""
    launch = dict(profile.ceilings).get("launch_us")
    return launch.p50 if launch else 0.0


def require_launchable(times: Iterable[tuple[str, float]], device: Device, profile: Profile) -> None:
    """Raise :class:`InvalidInput` for the first of ``times``, microseconds by the field that has them, that is below
    :data:`MARGIN` of an empty kernel's: of a kernel that is not ours no other limit is known."""
    floor = MARGIN * _launch_us(profile)
    for field, time_us in times:
        if time_us < floor:
            raise InvalidInput(
                f"{field}={time_us:g} cannot be: no kernel takes {device.name} less than {floor:.4g} us", field=field,
                value=time_us, limit=floor,
            )  # fmt: skip


def require_same_gpu(environment: Environment, device: Device) -> None:
    """Raise :class:`InvalidInput` where the environment names a GPU that is not ``device``."""
    gpu = dict(environment).get("gpu", device.name)
    if gpu != device.name:
        raise InvalidInput(
            f"environment.gpu={gpu!r}: what was measured is for {device.name}: send it with that device",
            field="environment.gpu", value=gpu, limit=device.name,
        )  # fmt: skip


def checked_date(text: str, now: datetime) -> str:
    """``text`` (ISO 8601 with its offset from UTC) as the store keeps dates, in UTC.

    Raises :class:`InvalidInput` for another form, and for a date more than :data:`SKEW` after ``now``.
    """
    try:
        found = datetime.fromisoformat(text)
        at = found.astimezone(UTC) if found.tzinfo is not None else None
    except (ValueError, OverflowError):
        at = None
    if at is None:
        raise InvalidInput(
            f"measured_at={text!r}: expected ISO 8601 with the offset from UTC, such as 2026-01-31T12:00:00Z",
            field="measured_at", value=text,
        )  # fmt: skip
    latest = now.astimezone(UTC) + SKEW
    if at > latest:
        limit = latest.isoformat(timespec="seconds")
        raise InvalidInput(
            f"measured_at={text} is in the future: expected {limit} at the latest",
            field="measured_at", value=text, limit=limit,
        )  # fmt: skip
    return at.isoformat(timespec="microseconds")
