"""What was decided for the launches of a kernel, as a value, as JSON and as files that are whole or not there.

One file a decision, named after the key of what it was decided for, so that ranks which share a folder never rewrite
each other's. The first to write wins: the others take up what it found.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path

from warpplan.kernels.compiler.sizes.gain_model import GainBasis, basis_from_json
from warpplan.kernels.compiler.strategy.protocol import Strategy
from warpplan.kernels.compiler.strategy.recorded import strategy_from_json
from warpplan.kernels.triton_types import Json
from warpplan.planner.errors import MalformedFile

SCHEMA = "warpplan/kernel-plan-1"


@dataclass(frozen=True)
class Situation:
    """What a decision holds for: change any field and it is another.

    ``source`` is Triton's hash of the kernel and all it calls; ``specialization`` the argument types, divisibilities,
    constexprs and options of the launch; ``sizes`` its size class; ``device`` and ``driver`` the GPU's; ``triton`` and
    ``warpplan`` the versions; ``plan`` the scheme that the user gave, empty where warpplan plans.
    """

    kernel: str
    source: str
    specialization: str
    sizes: tuple[int, ...]
    device: str
    driver: str
    triton: str
    warpplan: str
    plan: str = ""

    @property
    def key(self) -> str:
        """SHA-256 of the canonical JSON."""
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def family(self) -> Situation:
        """The same at no sizes: what decisions are carried within."""
        return replace(self, sizes=())


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel on disk: Triton's hash and the paths of its files by name."""

    hash: str
    files: tuple[tuple[str, str], ...]

    @property
    def there(self) -> bool:
        return bool(self.files) and all(os.path.exists(path) for _, path in self.files)


@dataclass(frozen=True)
class Decision:
    """``scheme`` is the plan to launch, ``None`` for the kernel as it is, with the ``reason``.

    ``measured`` says whether the plan ran at these sizes and its results were compared. Times are the medians of one
    process, in microseconds. ``compiled`` is where this machine keeps the planned kernel. ``provisional`` times were
    taken beside the running job: its own launches have yet to say which kernel is faster.

    ``carried_from`` is the key of the decision that this one was carried from, empty where it was not: then the plan
    was tried there and not here, and ``predicted_gain`` is what the prediction says of it here. ``basis`` is what the
    decision can be carried by, and ``aliases`` the arguments that shared memory in the launch, pair by pair.
    """

    situation: Situation
    scheme: Strategy | None
    reason: str = ""
    failed: bool = False
    measured: bool = False
    planned_us: float | None = None
    unplanned_us: float | None = None
    compiled: Compiled | None = None
    provisional: bool = False
    carried_from: str = ""
    predicted_gain: float | None = None
    basis: GainBasis | None = None
    aliases: tuple[str, ...] = ()

    @property
    def tried(self) -> bool:
        """Whether it is more than a prediction."""
        return (self.measured or self.failed) and not self.carried_from

    @property
    def weight(self) -> int:
        """How much it is worth beside another one for the same: tried, tried beside a job, carried and then timed by
        launches, carried, predicted."""
        if self.tried:
            return 3 if self.provisional else 4
        return 2 if self.gain is not None else 1 if self.carried_from else 0

    @property
    def gain(self) -> float | None:
        """Time as it is over time with the plan, where they were measured."""
        if self.planned_us is None or self.unplanned_us is None:
            return None
        return self.unplanned_us / self.planned_us


def to_json(decision: Decision) -> dict[str, Json]:
    return {"schema": SCHEMA, "key": decision.situation.key, **asdict(decision)}


def wrong(error: KeyError | TypeError | ValueError) -> str:
    """What made a decision unreadable, in words: of a missing field Python names the field alone."""
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def from_json(value: Json, where: object) -> Decision:
    """The decision in ``value``. Raises :class:`MalformedFile` where it is none, or its key is not its content's."""
    try:
        if value["schema"] != SCHEMA:
            raise MalformedFile(where, f"schema {value['schema']!r}: expected {SCHEMA!r}", field="schema")
        situation = Situation(**{**value["situation"], "sizes": tuple(value["situation"]["sizes"])})
        for name, held in asdict(situation).items():
            if not (all(type(size) is int for size in held) if name == "sizes" else isinstance(held, str)):
                raise ValueError(f"{name} is {held!r}")
        compiled = value["compiled"]
        decision = Decision(
            situation,
            None if value["scheme"] is None else strategy_from_json(value["scheme"], where),
            str(value["reason"]),
            bool(value["failed"]),
            bool(value["measured"]),
            _positive(value["planned_us"]),
            _positive(value["unplanned_us"]),
            compiled and Compiled(compiled["hash"], tuple((str(n), str(p)) for n, p in compiled["files"])),
            bool(value.get("provisional", False)),
            str(value.get("carried_from", "")),
            _positive(value.get("predicted_gain")),
            None if value.get("basis") is None else basis_from_json(value["basis"], where),
            tuple(map(str, value.get("aliases", ()))),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedFile(where, f"no decision: {wrong(error)}") from None
    if value.get("key") != situation.key:
        raise MalformedFile(where, "the key is not that of its content", field="key")
    return decision


def parse(text: str | bytes, where: object) -> Json:
    """The JSON value in ``text``; :class:`MalformedFile` where it is none."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise MalformedFile(where, f"not JSON: {error}") from None
    except RecursionError:
        raise MalformedFile(where, "not JSON: nested too deeply") from None


class Folder:
    """Decisions in files of one folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: dict[str, Situation | None] = {}

    def family(self, situation: Situation) -> list[Decision]:
        """The decisions for ``situation`` at whatever sizes. Each file is read once for all families; a damaged one is
        none of them."""
        found = []
        for file in sorted(self.path.glob("*.json")):
            if file.name not in self._read or self._read[file.name] == situation.family:
                try:
                    decision = from_json(parse(file.read_bytes(), file), file)
                except (OSError, MalformedFile):
                    self._read[file.name] = None
                    continue
                self._read[file.name] = decision.situation.family
                if decision.situation.family == situation.family:
                    found.append(decision)
        return found

    def _file(self, situation: Situation) -> Path:
        return self.path / f"{situation.key}.json"

    def load(self, situation: Situation) -> Decision | None:
        """The decision for ``situation``, ``None`` where there is none. Raises :class:`MalformedFile` where its file is
        damaged, with the file to delete."""
        file = self._file(situation)
        try:
            text = file.read_bytes()
        except OSError:
            return None
        try:
            return from_json(parse(text, file), file)
        except MalformedFile as error:
            raise MalformedFile(file, f"damaged ({error}); delete it to plan this kernel again") from None

    def settle(self, decision: Decision) -> Decision:
        """Keep ``decision`` unless another process was first: what holds from now on. What was tried outranks what was
        carried, and that what was predicted. A folder that cannot be written keeps nothing, and the decision holds for
        this process."""
        try:
            self._write(decision, os.link)
        except FileExistsError:
            there = self.load(decision.situation)
            if there is not None and there.weight >= decision.weight:
                return there
            self.replace(decision)
        except OSError:
            pass
        return decision

    def replace(self, decision: Decision) -> None:
        """Keep ``decision`` whatever is there: it was compiled again on this machine."""
        with contextlib.suppress(OSError):
            self._write(decision, os.replace)

    def _write(self, decision: Decision, place: Callable[[Path, Path], None]) -> None:
        write_whole(self._file(decision.situation), json.dumps(to_json(decision), indent=1) + "\n", place)


def write_whole(file: Path, text: str, place: Callable[[Path, Path], None]) -> None:
    """Written whole to a file in the same folder, then moved by ``place``: readers never see half a file."""
    written = file.with_suffix(f".{uuid.uuid4().hex}.tmp")
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        written.write_text(text)
        place(written, file)
    finally:
        written.unlink(missing_ok=True)


def default_folder() -> Path:
    """Inside Triton's own cache, which lives and dies with the same things."""
    from triton import knobs

    return Path(knobs.cache.dir) / "warpplan"


@cache
def own_version() -> str:
    """The version, and a hash of the modules that lower plans: a decision must not outlive them."""
    digest = hashlib.sha256()
    here = Path(__file__).parents[1]
    for file in sorted(here.rglob("*.py")):
        digest.update(file.relative_to(here).as_posix().encode() + b"\0" + file.read_bytes())
    return f"{metadata.version('warpplan')}+{digest.hexdigest()[:16]}"


def _positive(value: Json) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ValueError(f"{value!r} is no positive number")
    return float(value)
