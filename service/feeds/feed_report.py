"""What an exporter is asked for and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig


class ExportRow(NamedTuple):
    """One configuration to export: sizes in the order of the kernel's ``dimensions``, torch's name of the dtype, the
    device's name, and the profile to plan with. A plain tuple of the four will do."""

    shape: tuple[int, ...]
    dtype: str
    device: str
    profile: Profile


@dataclass(frozen=True)
class ExportedEntry:
    """One entry of the consumer's cache. ``key`` is the consumer's own; ``config`` is in the consumer's names."""

    shape: tuple[int, ...]
    dtype: str
    device: str
    key: tuple[object, ...]
    path: str
    config: TuningConfig
    predicted_us: float


@dataclass(frozen=True)
class ExportReport:
    """``identity`` holds (name, value) pairs of all that the entries are valid for, beside their own keys."""

    target: str
    consumer: str
    out: str
    identity: tuple[tuple[str, str], ...]
    entries: tuple[ExportedEntry, ...]

    def lines(self) -> tuple[str, ...]:
        """The report for people: what it is valid for, then a line an entry."""
        head = (f"{self.target}: {len(self.entries)} entries for {self.consumer} in {self.out}",)
        valid = tuple(f"  valid for {name} {value}" for name, value in self.identity)
        return (
            head
            + valid
            + tuple(
                f"  {_sizes(e.shape)} {e.dtype} on {e.device}: {describe(e.config)}, "
                f"{e.predicted_us:.1f} us predicted -> {e.path}"
                for e in self.entries
            )
        )


@dataclass(frozen=True)
class VerifiedEntry:
    """Will the consumer find an entry for this row? ``config`` is what it will run, ``None`` on a miss; ``reason`` says
    why it misses, or how the hit differs from today's plan, and is empty otherwise."""

    shape: tuple[int, ...]
    dtype: str
    device: str
    hit: bool
    path: str
    config: TuningConfig | None
    reason: str


@dataclass(frozen=True)
class VerifyReport:
    target: str
    consumer: str
    out: str
    identity: tuple[tuple[str, str], ...]
    entries: tuple[VerifiedEntry, ...]

    @property
    def all_hit(self) -> bool:
        return all(e.hit for e in self.entries)

    def lines(self) -> tuple[str, ...]:
        """The report for people: hits counted, then a line a row."""
        hits = sum(e.hit for e in self.entries)
        head = (f"{self.target}: {hits} of {len(self.entries)} rows hit for {self.consumer} in {self.out}",)
        return head + tuple(
            f"  {'hit ' if e.hit else 'MISS'} {_sizes(e.shape)} {e.dtype} on {e.device}"
            + (f": {describe(e.config)}" if e.config else "")
            + (f" ({e.reason})" if e.reason else "")
            for e in self.entries
        )


def describe(config: TuningConfig) -> str:
    """``BLOCK_M=128 … num_warps=8 num_stages=4`` on one line."""
    fields = [*config.kwargs, ("num_warps", config.num_warps), ("num_stages", config.num_stages)]
    return " ".join(f"{name}={value}" for name, value in fields)


def _sizes(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
