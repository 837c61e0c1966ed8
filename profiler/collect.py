"""Record a profile of the current GPU: every probe family in a child, several passes, resumable.

``python -m warpplan.profiler.collect --out FILE`` does it without what the command line needs; ``--add-to PROFILE``
measures only what a recorded profile lacks. The children need torch and triton; this process imports neither.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from warpplan.kernels.isolate import IsolatedResult, Json, run_isolated
from warpplan.planner.errors import InvalidInput, MalformedFile, MeasurementFailed, WarpplanError
from warpplan.planner.values.profile import Calibration, Failure, Identity, Profile
from warpplan.profiler import additions, stability
from warpplan.profiler.embedded import available, embedded
from warpplan.profiler.probes import points
from warpplan.profiler.probes.points import FAMILIES, SINCE, Point, runs_on
from warpplan.profiler.profile_files import load, read_json, save, write_json
from warpplan.profiler.records import profile_of

Progress = Callable[[int, int, str], None]
"""Called with (points done, points in all, label of the point that runs)."""

SCHEMA = "warpplan/profile-partial-1"
PASSES = 2
CONSECUTIVE_FAILURES = 3
"""So many points in a row that kill their child mean a broken GPU or driver; the rest of the family is not tried."""


@dataclass
class Partial:
    """What is measured so far; ``done`` and ``failed`` by "pass/family/label"."""

    path: Path
    identity: Identity
    passes: int
    done: dict[str, list[Json]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def save(self) -> None:
        body = {"identity": asdict(self.identity), "passes": self.passes, "done": self.done, "failed": self.failed}
        write_json({"schema": SCHEMA} | body, self.path)

    def has(self, number: int, family: str, label: str) -> bool:
        key = _key(number, family, label)
        return key in self.done or key in self.failed

    def records(self, number: int) -> list[Json]:
        return [r for key, records in self.done.items() if key.startswith(f"{number}/") for r in records]


def partial_path(out: Path) -> Path:
    """Where an unfinished profile of ``out`` is kept."""
    return out.with_name(out.name + ".partial")


def collect(
    out: Path,
    *,
    resume: bool = True,
    probes: Iterable[str] | None = None,
    time_limit_s: float = 60.0,
    progress: Progress | None = None,
    passes: int = PASSES,
    command: str | None = None,
    add_to: Path | None = None,
) -> Profile:
    """Measure the families named in ``probes`` (all by default) ``passes`` times and write the profile to ``out``.

    With ``add_to``, a recorded profile of the same GPU model and software, only the costs that it lacks are measured;
    what is written is that profile with them (see :mod:`warpplan.profiler.additions`), and it again where it lacks
    none.

    After each point the state goes to ``out`` + ".partial"; with ``resume`` a later call goes on from there. A point
    that crashes or is silent for ``time_limit_s`` seconds becomes a failure of the profile; the others go on. Raises
    :class:`MeasurementFailed` where there is no usable GPU or every point fails, :class:`InvalidInput` where the
    unfinished file or ``add_to`` is of another machine or software, :class:`UnknownName` for a family nobody knows.
    """
    wanted: additions.Wanted = {family: points(family) for family in (FAMILIES if probes is None else probes)}
    if passes < 1:
        raise InvalidInput(f"{passes} passes: expected 1 or more", field="passes", value=passes, limit=1)
    recorded = None if add_to is None else load(add_to)
    if recorded is not None:
        wanted = additions.lacking(recorded, _runnable(wanted, recorded.identity.triton, probes is not None))
        if not wanted:
            save(recorded, out)
            return recorded
    identity = _identify(command or f"warpplan profile --out {out.name}", time_limit_s)
    if recorded is not None:
        additions.require_same_software(recorded.identity, identity)
    else:
        wanted = _runnable(wanted, identity.triton, probes is not None)
    partial = _begin(out, resume, identity, passes)
    profile = _measure(partial, wanted, time_limit_s, progress)
    if recorded is not None:
        # Refused numbers are not resumed: the next attempt measures the references again.
        partial.path.unlink(missing_ok=True)
        profile = additions.extended(recorded, profile)
    save(profile, out)
    partial.path.unlink(missing_ok=True)
    return profile


def _runnable(wanted: additions.Wanted, triton: str, named: bool) -> additions.Wanted:
    """The families of ``wanted`` that run on Triton ``triton``; :class:`InvalidInput` where one that does not was
    ``named``."""
    for family in wanted if named else ():
        if not runs_on(family, triton):
            oldest = ".".join(map(str, SINCE[family]))
            raise InvalidInput(
                f"probe {family}: Triton {triton} cannot run it, {oldest} and later can",
                field="probes", value=family, limit=oldest,
            )  # fmt: skip
    return {family: found for family, found in wanted.items() if runs_on(family, triton)}


def _measure(partial: Partial, wanted: additions.Wanted, time_limit_s: float, progress: Progress | None) -> Profile:
    """All passes over ``wanted`` as one profile; :class:`MeasurementFailed` where it would be empty."""
    every = [(n, f, p.label) for n in range(1, partial.passes + 1) for f, family in wanted.items() for p in family]

    def tell(label: str) -> None:
        if progress is not None:
            progress(sum(partial.has(*point) for point in every), len(every), label)

    for number in range(1, partial.passes + 1):
        for family, asked in wanted.items():
            _measure_family(partial, number, family, asked, time_limit_s, tell)
    tell("done")
    profile = _profile(partial)
    if not profile.costs.entries and not profile.ceilings:
        reason = profile.failures[0].reason if profile.failures else "no probe gave a number"
        raise MeasurementFailed(f"nothing could be measured: {reason}")
    return profile


def _key(number: int, family: str, label: str) -> str:
    return f"{number}/{family}/{label}"


def _identify(command: str, time_limit_s: float) -> Identity:
    asked = run_isolated("warpplan.profiler.identity:machine", time_limit_s=time_limit_s)
    if asked.status != "ok":
        raise MeasurementFailed(
            f"this machine cannot be profiled: {asked.reason}; it takes an NVIDIA GPU and `pip install warpplan[gpu]`"
        )
    return Identity(**asked.value, date=datetime.now(UTC).date().isoformat(), command=command)


def _begin(out: Path, resume: bool, identity: Identity, passes: int) -> Partial:
    path = partial_path(out)
    if not (resume and path.exists()):
        partial = Partial(path, identity, passes)
        partial.save()  # an unwritable place shows now, not after the measurement
        return partial
    return _resume(path, identity, passes)


def _resume(path: Path, identity: Identity, passes: int) -> Partial:
    body = read_json(path)
    try:
        if body["schema"] != SCHEMA:
            raise MalformedFile(path, f"schema {body['schema']!r} is not {SCHEMA!r}: delete the file or do not resume")
        before = Identity(**body["identity"])
        partial = Partial(path, before, passes, dict(body["done"]), dict(body["failed"]))
    except (KeyError, TypeError, ValueError):
        raise MalformedFile(path, "not an unfinished profile: delete the file or do not resume") from None
    if not before.comparable(identity):
        raise InvalidInput(
            f"{path} was begun on {before.gpu}, driver {before.driver}, triton {before.triton}, torch {before.torch}; "
            "this machine differs, and measurements of unlike machines are not mixed: delete the file or do not resume",
            field="resume",
            value=str(path),
        )
    return partial


def _measure_family(
    partial: Partial,
    number: int,
    family: str,
    asked: Sequence[Point],
    time_limit_s: float,
    tell: Callable[[str], None],
) -> None:
    """Run children until every ``asked`` point of the family is measured or has failed; a dying one costs its own point
    only."""
    in_a_row = 0
    while True:
        left = [p.label for p in asked if not partial.has(number, family, p.label)]
        if not left:
            return
        listener = _Listener(partial, number, family, tell)
        skip = [p.label for p in points(family) if p.label not in left]
        result = run_isolated(
            "warpplan.profiler.probes:measure", [family, skip], time_limit_s=time_limit_s, on_item=listener
        )
        in_a_row = 0 if listener.finished else in_a_row + 1
        broken = listener.running is None or in_a_row >= CONSECUTIVE_FAILURES
        for label in left if broken else [listener.running]:
            if label is not None and not partial.has(number, family, label):
                partial.failed[_key(number, family, label)] = _why(result)
        partial.save()


def _why(result: IsolatedResult) -> str:
    return f"{result.status}: {result.reason}" if result.reason else "the probe gave nothing"


class _Listener:
    """Files what a child streams; ``running`` is the point that has begun and not ended."""

    def __init__(self, partial: Partial, number: int, family: str, tell: Callable[[str], None]) -> None:
        self.partial, self.number, self.family, self.tell = partial, number, family, tell
        self.running: str | None = None
        self.records: list[Json] = []
        self.finished = 0

    def __call__(self, item: Json) -> None:
        if "start" in item:
            self.running, self.records = item["start"], []
            self.tell(item["start"])
        elif "done" in item:
            self._close(self.partial.done, self.records)
        elif "failed" in item:
            self._close(self.partial.failed, item["reason"])
        else:
            self.records.append(item)

    def _close(self, where: dict[str, Json], what: Json) -> None:
        where[_key(self.number, self.family, str(self.running))] = what
        self.running = None
        self.finished += 1
        self.partial.save()


def _profile(partial: Partial) -> Profile:
    """All passes as one profile; where they disagree is noted, and a point that failed once only is a note too."""
    passes = [partial.records(n) for n in range(1, partial.passes + 1)]
    failures: dict[str, str] = {}
    notes: list[str] = []
    for key, reason in partial.failed.items():
        number, family, label = key.split("/", 2)
        others = (_key(n, family, label) for n in range(1, partial.passes + 1))
        if any(other in partial.done for other in others):
            notes.append(f"{label} failed in pass {number}: {reason}")
        else:
            failures.setdefault(label, reason)
    for later in passes[1:]:
        first, second = (profile_of(partial.identity, [records]) for records in (passes[0], later))
        notes += [str(finding) for finding in stability.compare(first, second)]
    failed = tuple(Failure(label, reason) for label, reason in failures.items())
    profile = profile_of(partial.identity, passes, failed, tuple(dict.fromkeys(notes)))
    return replace(profile, calibrations=recorded_calibrations(partial.identity.gpu))


def recorded_calibrations(gpu: str) -> tuple[Calibration, ...]:
    """Those of the embedded profile of the same GPU model, if there is one: they scale measured costs, and stay valid
    for another recording of them."""
    return embedded(gpu).calibrations if gpu in available() else ()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m warpplan.profiler.collect", description="Profile the current GPU.")
    parser.add_argument("--out", type=Path, required=True, help="the profile to write; FILE.partial while it runs")
    parser.add_argument("--probes", nargs="*", help=f"families to measure, all by default: {', '.join(FAMILIES)}")
    parser.add_argument("--add-to", type=Path, metavar="PROFILE", help="measure only the costs that PROFILE lacks")
    parser.add_argument("--passes", type=int, default=PASSES)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds that a probe may be silent")
    parser.add_argument("--no-resume", action="store_true", help="start afresh, whatever FILE.partial holds")
    given = parser.parse_args(arguments)

    def show(done: int, total: int, label: str) -> None:
        print(f"\r[{done:3d}/{total}] {label:<60.60}", end="", file=sys.stderr, flush=True)

    try:
        profile = collect(
            given.out,
            resume=not given.no_resume,
            probes=given.probes,
            time_limit_s=given.time_limit,
            progress=show,
            passes=given.passes,
            add_to=given.add_to,
        )
    except WarpplanError as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 2
    findings = stability.spread(profile)
    print(f"\n{stability.report(findings, len(stability.numbers(profile)))}", file=sys.stderr)
    for note in profile.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
