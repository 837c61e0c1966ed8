"""Which profile answers for which device, and which planner it goes through."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from threading import Lock

import warpplan.kernels
import warpplan.planner
from warpplan.planner.errors import InvalidInput, MalformedFile, UnknownName
from warpplan.planner.values import codec
from warpplan.planner.values.device import DEVICES, device
from warpplan.planner.values.profile import Profile
from warpplan.service.workflow.request import DEFAULT_DEVICE
from warpplan.service.workflow.text_files import read_bytes

MOST_CYCLES = 1e9
"""The most cycles that one operation takes in a profile: what a graph takes, and half a second. Chosen by hand."""
LEAST_CEILING, MOST_CEILING = 1e-6, 1e18
"""Of rates, clocks and microseconds alike: far beyond any GPU's on either side, so that no predicted time is infinite.
Chosen by hand."""
NORM_LIMITS, RESIDUAL_LIMITS, CONSTANT_LIMITS = (1.0, 100.0), (-5.0, 5.0), (0.0, 1e6)
"""Of a calibration's exponents (``*_norm``), of its residuals of structures, in the logarithm, and of its other
constants: far beyond what is ever fitted (``profiler.fit.BOUNDS``), so that each predicted time is a number. Chosen by
hand."""


@dataclass(frozen=True)
class ProfileSource:
    """A profile with its key, the SHA-256 of its canonical JSON."""

    key: str
    profile: Profile


class Profiles:
    """The embedded profiles, and one from a file that takes its device's place."""

    def __init__(self, own: Profile | None = None) -> None:
        self._sources: dict[str, ProfileSource] = {}
        self._lock = Lock()
        self.default_device = DEFAULT_DEVICE
        if own is not None:
            name = device(own.identity.gpu).name
            self._sources[name] = ProfileSource(codec.key(own), own)
            self.default_device = name

    @classmethod
    def given(cls, path: Path | None, device_name: str | None = None) -> Profiles:
        """With the profile in ``path``, and ``device_name`` for problems that name no device, where they are given.

        Raises :class:`MalformedFile` for a profile that cannot be read, :class:`UnknownName` for a device nobody knows
        and :class:`InvalidInput` where the profile is of another device.
        """
        profiles = cls() if path is None else cls.load(path)
        if device_name is not None:
            name, own = device(device_name).name, profiles.default_device
            if path is not None and name != own:
                raise InvalidInput(
                    f"--profile {path} is of {own} and plans nothing for --device {name!r}: leave one of them out",
                    field="device", value=name, limit=own,
                )  # fmt: skip
            profiles.default_device = name
        return profiles

    @classmethod
    def load(cls, path: Path) -> Profiles:
        """With the profile in ``path``; :class:`MalformedFile` where it cannot be read or is of no known device."""
        profile = codec.loads(read_bytes(str(path)), path, Profile)
        _require_possible(profile, path)
        try:
            return cls(profile)
        except UnknownName as error:
            raise MalformedFile(path, f"identity.gpu: {error}", field="profile") from None

    def of(self, name: str) -> ProfileSource:
        """The profile of device ``name``; :class:`UnknownName` where none was given and none is embedded."""
        # The profiler's package is loaded only where its recorded data are needed.
        from warpplan.profiler.embedded import embedded

        with self._lock:
            if name not in self._sources:
                profile = embedded(name)
                self._sources[name] = ProfileSource(codec.key(profile), profile)
            return self._sources[name]

    def available(self) -> dict[str, ProfileSource]:
        """The devices that can be planned for, with their profiles."""
        found: dict[str, ProfileSource] = {}
        for name in DEVICES:
            try:
                found[name] = self.of(name)
            except UnknownName:
                continue
        return found

    def by_key(self, key: str) -> ProfileSource:
        """The profile with this key; :class:`UnknownName` lists the known ones."""
        known = {source.key: source for source in self.available().values()}
        if key not in known:
            raise UnknownName("profile", key, known)
        return known[key]


def _require_possible(profile: Profile, path: Path) -> None:
    """Raise :class:`MalformedFile` for a time or a ceiling that no GPU has, or a constant that no fit gives: a
    predicted time would be none."""
    for entry in profile.costs.entries:
        for quantiles in (entry.cost.latency, entry.cost.occupancy, entry.cost.issue):
            if quantiles is not None and not 0 <= quantiles.p50 <= MOST_CYCLES:
                reason = f"costs.entries: {entry.label} takes {quantiles.p50:g} cycles: expected 0 to {MOST_CYCLES:g}"
                raise MalformedFile(path, reason, field="profile")
    for name, rate in profile.ceilings:
        if not LEAST_CEILING <= rate.p50 <= MOST_CEILING:
            reason = f"ceilings.{name} is {rate.p50:g}: expected {LEAST_CEILING:g} to {MOST_CEILING:g}"
            raise MalformedFile(path, reason, field="profile")
    for calibration in profile.calibrations:
        for name, value in calibration.constants:
            low, high = _limits(name)
            if not low <= value <= high:
                reason = f"calibrations: {name} of {calibration.kernel} is {value:g}: expected {low:g} to {high:g}"
                raise MalformedFile(path, reason, field="profile")


def _limits(constant: str) -> tuple[float, float]:
    """What a calibration's constant may be."""
    kind = constant.split(".")[0]
    if kind.endswith("_norm"):
        return NORM_LIMITS
    return RESIDUAL_LIMITS if kind == "structure" else CONSTANT_LIMITS


@cache
def planner_version() -> str:
    """The release with a digest of the planner's and the kernels' source and of the solved loops that ship.

    The digest makes an answer of changed code a different answer, even where nobody raised the release.
    """
    digest = hashlib.sha256()
    for package in (warpplan.planner, warpplan.kernels):
        root = Path(str(package.__file__)).parent
        for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".gz")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return f"{metadata.version('warpplan')}+{digest.hexdigest()[:12]}"
