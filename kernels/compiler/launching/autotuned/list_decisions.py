"""What was decided for a list of configurations, as a value and as a file beside the decisions on single kernels.

The file says which configuration and which strategy; the decision on that configuration's kernel, which launches take
up, is one of :mod:`~warpplan.kernels.compiler.launching.decisions`. A later process reads both and tries nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from warpplan.kernels.compiler.launching.decisions import parse, write_whole, wrong
from warpplan.kernels.compiler.strategy.protocol import Strategy
from warpplan.kernels.compiler.strategy.recorded import strategy_from_json
from warpplan.kernels.triton_types import Json
from warpplan.planner.errors import MalformedFile

SCHEMA = "warpplan/kernel-list-1"


@dataclass(frozen=True)
class ListSituation:
    """What a decision on a list holds for: change any field and it is another.

    ``key`` is the tuner's, as text; ``configs`` its pruned list in order; the others as
    :class:`~warpplan.kernels.compiler.launching.decisions.Situation` has them.
    """

    kernel: str
    source: str
    key: str
    configs: tuple[str, ...]
    device: str
    driver: str
    triton: str
    warpplan: str

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True)
class Tried:
    """One candidate of a trial: microseconds, ``None`` where it failed, with the ``reason``."""

    config: int
    scheme: Strategy | None
    us: float | None
    reason: str = ""


@dataclass(frozen=True)
class ListDecision:
    """``config`` is the number of the chosen configuration in ``situation.configs``, ``None`` where the list is left to
    Triton's own tuning, with the ``reason``; ``scheme`` its strategy, ``None`` for the kernel as it is. ``tried`` is
    empty where nothing was measured. ``provisional`` says that it was timed in brief beside a job, whose launches have
    not yet shown whether it is faster."""

    situation: ListSituation
    config: int | None
    scheme: Strategy | None = None
    reason: str = ""
    tried: tuple[Tried, ...] = ()
    provisional: bool = False

    @property
    def measured(self) -> bool:
        return bool(self.tried) or self.config is None

    @property
    def chosen_us(self) -> float | None:
        return next((t.us for t in self.tried if (t.config, t.scheme) == (self.config, self.scheme)), None)

    def gain_over(self, config: int) -> float | None:
        """The time of that configuration as it is over that of what was chosen; ``None`` where either is not known."""
        alone = next((t.us for t in self.tried if t.scheme is None and t.config == config), None)
        return None if alone is None or self.chosen_us is None else alone / self.chosen_us

    @property
    def unplanned_us(self) -> float | None:
        """Of the best configuration as it is."""
        return min((t.us for t in self.tried if t.scheme is None and t.us is not None), default=None)

    def __str__(self) -> str:
        if self.config is None:
            return f"{self.situation.kernel}: left to Triton's own tuning: {self.reason}"
        plan = str(self.scheme) if self.scheme is not None else "as it is"
        told = f"{self.situation.kernel}: ({self.situation.configs[self.config]}), {plan}"
        if self.chosen_us is None or self.unplanned_us is None:
            return told
        return f"{told}, {self.unplanned_us / self.chosen_us:.2f}x as fast as the list's best as it is"


def to_json(decision: ListDecision) -> dict[str, Json]:
    return {"schema": SCHEMA, "key": decision.situation.digest, **asdict(decision)}


def from_json(value: Json, where: object) -> ListDecision:
    """The decision in ``value``. Raises :class:`MalformedFile` where it is none, or its key is not its content's."""
    try:
        if value["schema"] != SCHEMA:
            raise MalformedFile(where, f"schema {value['schema']!r}: expected {SCHEMA!r}", field="schema")
        held = value["situation"]
        situation = ListSituation(**{**held, "configs": tuple(map(str, held["configs"]))})
        config = value["config"]
        if config is not None and not (type(config) is int and 0 <= config < len(situation.configs)):
            raise ValueError(f"config {config!r}: expected a number below {len(situation.configs)}")
        tried = tuple(
            Tried(int(t["config"]), _strategy(t["scheme"], where), _microseconds(t["us"]), str(t["reason"]))
            for t in value["tried"]
        )
        decision = ListDecision(
            situation, config, _strategy(value["scheme"], where), str(value["reason"]), tried,
            provisional=bool(value.get("provisional", False)),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedFile(where, f"no decision on a list: {wrong(error)}") from None
    if value.get("key") != situation.digest:
        raise MalformedFile(where, "the key is not that of its content", field="key")
    return decision


class ListFolder:
    """Decisions on lists in files of one folder, each named by its key."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _file(self, situation: ListSituation) -> Path:
        return self.path / f"{situation.digest}.list.json"

    def load(self, situation: ListSituation) -> ListDecision | None:
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
            raise MalformedFile(file, f"damaged ({error}); delete it to tune this kernel again") from None

    def settle(self, decision: ListDecision) -> ListDecision:
        """Keep ``decision`` unless another process was first: what holds from now on. What was measured outranks what
        is provisional, and that what was predicted. A folder that cannot be written keeps nothing."""
        file, text = self._file(decision.situation), json.dumps(to_json(decision), indent=1) + "\n"
        try:
            write_whole(file, text, os.link)
        except FileExistsError:
            there = self.load(decision.situation)
            if there is not None and _rank(there) >= _rank(decision):
                return there
            with contextlib.suppress(OSError):
                write_whole(file, text, os.replace)
        except OSError:
            pass
        return decision


def _rank(decision: ListDecision) -> int:
    return decision.measured + (decision.measured and not decision.provisional)


def _strategy(value: Json, where: object) -> Strategy | None:
    return None if value is None else strategy_from_json(value, where)


def _microseconds(value: Json) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ValueError(f"{value!r} is no time in microseconds")
    return float(value)
