"""The profiles that ship with the package: what a machine without a GPU plans with."""

from __future__ import annotations

from functools import cache
from importlib import resources

from warpplan.planner import codec
from warpplan.planner.device import DEVICES
from warpplan.planner.errors import UnknownName
from warpplan.planner.profile import Profile


def _file_name(device_name: str) -> str:
    return device_name.lower().replace(" ", "_") + ".json"


@cache
def available() -> tuple[str, ...]:
    """The names of the devices whose profile is embedded."""
    files = {entry.name for entry in (resources.files("warpplan.profiler") / "data").iterdir()}
    return tuple(name for name in DEVICES if _file_name(name) in files)


@cache
def embedded(device_name: str) -> Profile:
    """The profile recorded on a ``device_name``; :class:`UnknownName` lists the devices that have one."""
    if device_name not in available():
        raise UnknownName("device with an embedded profile", device_name, available())
    file = resources.files("warpplan.profiler") / "data" / _file_name(device_name)
    profile: Profile = codec.loads(file.read_bytes(), file.name, Profile)
    return profile
