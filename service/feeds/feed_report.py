"""What an exporter is asked for and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from warpplan.kernels.declaration import Shape
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig


class ExportRow(NamedTuple):
    """One configuration to export: the shape as the kernel parses it, torch's name of the dtype, the device's name, and
    the profile to plan with. A plain tuple of the four will do."""

    shape: Shape
    dtype: str
    device: str
    profile: Profile


@dataclass(frozen=True)
class ExportedEntry:
    """One entry of the consumer's cache. ``key`` is the consumer's own; ``config`` is in the consumer's names;
    ``predicted_us`` is ``None`` where ``config`` was measured and never predicted, ``measured_us`` where it was not
    measured."""

    shape: Shape
    dtype: str
    device: str
    key: tuple[object, ...]
    path: str
    config: TuningConfig
    predicted_us: float | None
    measured_us: float | None = None

    def line(self) -> str:
        """For people."""
        its, kind = (self.predicted_us, "predicted") if self.measured_us is None else (self.measured_us, "measured")
        time = "" if its is None else f", {its:.1f} us {kind}"
        return f"  {problem_text(self.shape, self.dtype, self.device)}: {describe(self.config)}{time} -> {self.path}"


@dataclass(frozen=True)
class SkippedRow:
    """A row that no entry of the consumer's cache can stand for, and why."""

    shape: Shape
    dtype: str
    device: str
    reason: str

    def line(self) -> str:
        """For people."""
        return f"  skip {problem_text(self.shape, self.dtype, self.device)}: {self.reason}"


@dataclass(frozen=True)
class ExportReport:
    """``identity`` holds (name, value) pairs of all that the entries are valid for, beside their own keys; ``kept`` the
    copies of files that were there and are replaced, for the reason ``kept_because``."""

    target: str
    consumer: str
    out: str
    identity: tuple[tuple[str, str], ...]
    entries: tuple[ExportedEntry, ...]
    skipped: tuple[SkippedRow, ...] = ()
    kept: tuple[str, ...] = ()
    kept_because: str = "it was there and was not exported, or was changed since"

    def lines(self) -> tuple[str, ...]:
        """The report for people: what it is valid for, then a line an entry."""
        head = (f"{self.target}: {len(self.entries)} entries for {self.consumer} in {self.out}",)
        valid = tuple(f"  valid for {name} {value}" for name, value in self.identity)
        return (
            head
            + valid
            + tuple(entry.line() for entry in self.entries)
            + tuple(row.line() for row in self.skipped)
            + tuple(f"  kept {path}: {self.kept_because}" for path in self.kept)
        )


@dataclass(frozen=True)
class VerifiedEntry:
    """Will the consumer find an entry for this row? ``config`` is what it will run, ``None`` on a miss; ``reason`` says
    why it misses, or how the hit differs from today's plan, and is empty otherwise."""

    shape: Shape
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
    skipped: tuple[SkippedRow, ...] = ()

    @property
    def all_hit(self) -> bool:
        return all(e.hit for e in self.entries)

    @property
    def all_current(self) -> bool:
        """Whether every row hits, each hit is what would be exported today, and no row was left out."""
        return self.all_hit and not self.skipped and not any(e.reason for e in self.entries)

    def summary(self) -> str:
        """One line that counts what ``--strict`` counts as a miss, with the first reason why a hit is none."""
        misses = sum(not e.hit for e in self.entries)
        others = [e.reason for e in self.entries if e.hit and e.reason]
        return (
            f"strict: of {len(self.entries) + len(self.skipped)} rows {misses} miss, {len(others)} hit what would not "
            f"be exported today{f' ({others[0]})' if others else ''}, {len(self.skipped)} were left out"
        )

    def lines(self) -> tuple[str, ...]:
        """The report for people: hits counted, then a line a row."""
        hits = sum(e.hit for e in self.entries)
        head = (f"{self.target}: {hits} of {len(self.entries)} rows hit for {self.consumer} in {self.out}",)
        judged = tuple(
            f"  {'hit ' if e.hit else 'MISS'} {problem_text(e.shape, e.dtype, e.device)}"
            + (f": {describe(e.config)}" if e.config else "")
            + (f" ({e.reason})" if e.reason else "")
            for e in self.entries
        )
        return head + judged + tuple(row.line() for row in self.skipped)


def describe(config: TuningConfig) -> str:
    """``BLOCK_M=128 … num_warps=8 num_stages=4`` on one line."""
    fields = [*config.kwargs, ("num_warps", config.num_warps), ("num_stages", config.num_stages)]
    return " ".join(f"{name}={value}" for name, value in fields)


def shape_text(shape: Shape) -> str:
    """``4096x4096x4096``, options after it."""
    sizes = "x".join(str(part) for part in shape if not isinstance(part, str))
    return " ".join(([sizes] if sizes else []) + [part for part in shape if isinstance(part, str)])


def problem_text(shape: Shape, dtype: str, device: str) -> str:
    """``4096x4096x4096 bfloat16 on NVIDIA H200``; launches of a tuned kernel and of FLA have no sizes or no dtype."""
    return " ".join(part for part in (shape_text(shape), dtype, "on", device) if part)
