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
from warpplan.planner.errors import MalformedFile, UnknownName
from warpplan.planner.values import codec
from warpplan.planner.values.device import DEVICES, device
from warpplan.planner.values.profile import Profile
from warpplan.service.workflow.request import DEFAULT_DEVICE


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
    def load(cls, path: Path) -> Profiles:
        """With the profile in ``path``; :class:`MalformedFile` where it cannot be read."""
        try:
            text = path.read_bytes()
        except OSError as error:
            raise MalformedFile(path, f"cannot be read: {error.strerror}", field="profile") from None
        profile = codec.loads(text, path, Profile)
        _require_possible(profile, path)
        return cls(profile)

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
    """Raise :class:`MalformedFile` for a time below zero or a ceiling of nothing, by which times are divided."""
    for entry in profile.costs.entries:
        for quantiles in (entry.cost.latency, entry.cost.occupancy, entry.cost.issue):
            if quantiles is not None and quantiles.p50 < 0:
                reason = f"costs.entries: {entry.label} takes {quantiles.p50} cycles: expected 0 or more"
                raise MalformedFile(path, reason, field="profile")
    for name, rate in profile.ceilings:
        if rate.p50 <= 0:
            raise MalformedFile(path, f"ceilings.{name} is {rate.p50}: expected more than 0", field="profile")


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
