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
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

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

    ``measured`` says whether the plan ran and its results were compared. Times are the medians of one process, in
    microseconds. ``compiled`` is where this machine keeps the planned kernel.
    """

    situation: Situation
    scheme: Strategy | None
    reason: str = ""
    failed: bool = False
    measured: bool = False
    planned_us: float | None = None
    unplanned_us: float | None = None
    compiled: Compiled | None = None

    @property
    def tried(self) -> bool:
        """Whether it is more than a prediction."""
        return self.measured or self.failed


def to_json(decision: Decision) -> dict[str, Json]:
    return {"schema": SCHEMA, "key": decision.situation.key, **asdict(decision)}


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
            _microseconds(value["planned_us"]),
            _microseconds(value["unplanned_us"]),
            compiled and Compiled(compiled["hash"], tuple((str(n), str(p)) for n, p in compiled["files"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedFile(where, f"no decision: {type(error).__name__}: {error}") from None
    if value.get("key") != situation.key:
        raise MalformedFile(where, "the key is not that of its content", field="key")
    return decision


def parse(text: str | bytes, where: object) -> Json:
    """The JSON value in ``text``; :class:`MalformedFile` where it is none."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise MalformedFile(where, f"not JSON: {error}") from None


class Folder:
    """Decisions in files of one folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

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
        predicted. A folder that cannot be written keeps nothing, and the decision holds for this process."""
        try:
            self._write(decision, os.link)
        except FileExistsError:
            there = self.load(decision.situation)
            if there is not None and (there.tried or not decision.tried):
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


def _microseconds(value: Json) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ValueError(f"{value!r} is no time in microseconds")
    return float(value)
