"""The profiles that ship with the package: what a machine without a GPU plans with."""

from __future__ import annotations

from functools import cache
from importlib import resources

from warpplan.planner.errors import UnknownName, WarpplanError
from warpplan.planner.values import codec
from warpplan.planner.values.device import DEVICES
from warpplan.planner.values.profile import Profile


def _file_name(device_name: str) -> str:
    return device_name.lower().replace(" ", "_") + ".json"


@cache
def available() -> tuple[str, ...]:
    """The names of the devices whose profile is embedded."""
    files = {entry.name for entry in (resources.files("warpplan.profiler") / "data").iterdir()}
    return tuple(name for name in DEVICES if _file_name(name) in files)


class NoProfile(UnknownName):
    """A device whose costs nobody has measured for this package."""

    def __init__(self, device_name: str) -> None:
        known = list(available())
        message = (
            f"there is no profile of device {device_name!r}: expected one of {', '.join(known)}, "
            "or a profile of your own with --profile"
        )
        WarpplanError.__init__(self, message, field="device", value=device_name, limit=known)


@cache
def embedded(device_name: str) -> Profile:
    """The profile recorded on a ``device_name``; :class:`NoProfile` lists the devices that have one."""
    if device_name not in available():
        raise NoProfile(device_name)
    file = resources.files("warpplan.profiler") / "data" / _file_name(device_name)
    profile: Profile = codec.loads(file.read_bytes(), file.name, Profile)
    return profile
