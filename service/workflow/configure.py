"""The use cases, shared by HTTP and the command line: configure one problem or many, record what a job measured."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from threading import Lock

from warpplan.kernels.registry import Kernel
from warpplan.planner.errors import InvalidConfig, StoreError, WarpplanError
from warpplan.planner.predict.ranking import RankedPlan
from warpplan.planner.values import codec
from warpplan.planner.values.device import Device
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.store.answer_store import Kept, Measurement, Store
from warpplan.service.workflow.answers import (
    ConfigAnswer,
    Measured,
    config_json,
    fastest,
    prediction_json,
    tuning_of,
)
from warpplan.service.workflow.profiles import Profiles, Source, planner_version
from warpplan.service.workflow.request import ConfigRequest, Item, canonical_json, check

CHUNK = 64
"""Problems planned between two commits of a batch: what an interruption can cost."""
EVERY_CANDIDATE = 1 << 20


@dataclass(frozen=True)
class BatchResult:
    """What became of one item: an answer or an error. ``line`` is the item's line or position, from 1."""

    line: int
    item: Item | None
    answer: ConfigAnswer | None
    error: WarpplanError | None


@dataclass(frozen=True)
class _Checked:
    problem: ConfigRequest
    kernel: Kernel
    device: Device
    source: Source


class Workflow:
    """Plans what the store does not hold and keeps it there; without a store nothing is kept.

    ``remember`` answers stay in memory for ``remember_s`` seconds, no longer: another process may have recorded a
    measurement that outranks them. Safe to call from several threads.
    """

    def __init__(
        self,
        store: Store | None = None,
        profiles: Profiles | None = None,
        *,
        remember: int = 4096,
        remember_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.profiles = profiles or Profiles()
        self._memory = _Memory(remember, remember_s, clock)
        # One loop, as JSON text: a batch meets the same few hundred again and again.
        self._loops = _Memory(4096, float("inf"), clock)
        # One at a time, so that requests that meet unsolved loops together do not all solve them.
        self._planning = Lock()

    def configure(self, item: Item) -> ConfigAnswer:
        """The configuration for one problem: kept, or planned now and kept.

        Raises :class:`InvalidInput` for a question that makes no sense, :class:`MissingCosts` and :class:`Infeasible`
        where planning fails, :class:`StoreError` where the store cannot be read. A store that cannot be *written* does
        not stop the answer: ``kept`` is then False and ``notice`` says why.
        """
        checked = self._check(item)
        remembered = self._memory.get(checked.problem)
        if isinstance(remembered, ConfigAnswer):
            return remembered
        answer = self._answers_or_errors([checked], must_keep=False)[checked.problem]
        if isinstance(answer, WarpplanError):
            raise answer
        self._memory.put(checked.problem, replace(answer, kind="exact") if answer.kept else answer)
        return answer

    def batch(
        self, lines: Iterable[tuple[int, Item | WarpplanError]], *, must_keep: bool = False, chunk: int = CHUNK
    ) -> Iterator[BatchResult]:
        """The same for many, in order. Each chunk is kept before its results are given, so that an interruption loses
        at most the chunk under way. An item that fails is a result with its error and does not stop the rest.

        ``must_keep`` raises :class:`StoreError` where answers cannot be kept.
        """
        remaining = iter(lines)
        while part := list(islice(remaining, chunk)):
            yield from self._chunk(part, must_keep)

    def candidates(self, item: Item, limit: int) -> tuple[ConfigRequest, tuple[RankedPlan, ...]]:
        """The ``limit`` best predicted candidates of a problem, best first; the store is not asked."""
        c = self._check(item)
        return c.problem, c.kernel.rank(c.problem.sizes, c.problem.dtype, c.device, c.source.profile, limit=limit)

    def record(
        self,
        item: Item,
        config: TuningConfig,
        time_us: float,
        *,
        samples: int = 1,
        environment: str = "{}",
        run: str = "",
    ) -> bool:
        """Keep what a job measured; False where the same report was there already.

        Raises :class:`InvalidConfig` where the kernel cannot run ``config``, :class:`StoreError` where nothing is kept.
        """
        checked = self._check(item)
        if self.store is None:
            raise StoreError(
                "the service has no store to keep measurements in: start it with --store FILE", field="store"
            )
        with self._planning:
            checked.kernel.plan(config, checked.problem.dtype, checked.device, checked.source.profile)
        fresh = self.store.record(Measurement(checked.problem, config_json(config), time_us, samples, environment, run))
        self._memory.drop(checked.problem)
        return fresh

    def _check(self, item: Item) -> _Checked:
        problem, kernel, device = check(item, self.profiles.default_device)
        return _Checked(problem, kernel, device, self.profiles.of(device.name))

    def _chunk(self, part: Sequence[tuple[int, Item | WarpplanError]], must_keep: bool) -> Iterator[BatchResult]:
        checked: dict[int, _Checked] = {}
        failed: dict[int, WarpplanError] = {}
        for at, (_, item) in enumerate(part):
            try:
                if isinstance(item, WarpplanError):
                    raise item
                checked[at] = self._check(item)
            except WarpplanError as error:
                failed[at] = error
        unique = {c.problem: c for c in checked.values()}
        answers = self._answers_or_errors(list(unique.values()), must_keep)
        given: set[ConfigRequest] = set()
        for at, (line, item) in enumerate(part):
            outcome = failed.get(at) or answers[checked[at].problem]
            known = None if isinstance(item, WarpplanError) else item
            if isinstance(outcome, WarpplanError):
                yield BatchResult(line, known, None, outcome)
                continue
            again = outcome.kept and outcome.problem in given
            given.add(outcome.problem)
            yield BatchResult(line, known, replace(outcome, kind="exact") if again else outcome, None)

    def _answers_or_errors(
        self, wanted: Sequence[_Checked], must_keep: bool
    ) -> dict[ConfigRequest, ConfigAnswer | WarpplanError]:
        """Answer distinct problems: look all of them up, plan the misses, keep those in one transaction."""
        found = self._find(wanted)
        outcomes: dict[ConfigRequest, ConfigAnswer | WarpplanError] = {}
        fresh: dict[ConfigRequest, Kept] = {}
        for c in wanted:
            if c.problem not in found:
                try:
                    fresh[c.problem] = self._plan(c)
                except WarpplanError as error:
                    outcomes[c.problem] = error
        notice = self._keep(list(fresh.values()), must_keep)
        measured = self.store.measured(c.problem for c in wanted) if self.store else {}
        for c in wanted:
            kept = found.get(c.problem) or fresh.get(c.problem)
            if kept is not None:
                answer = self._answer(c, kept, measured.get(c.problem, ()))
                if c.problem in fresh:
                    answer = replace(answer, kind="planned", kept=not notice, notice=notice)
                outcomes[c.problem] = answer
        return outcomes

    def _find(self, wanted: Sequence[_Checked]) -> dict[ConfigRequest, Kept]:
        if self.store is None:
            return {}
        found: dict[ConfigRequest, Kept] = {}
        for key in {c.source.key for c in wanted}:
            mine = [c.problem for c in wanted if c.source.key == key]
            found |= self.store.find(mine, key, planner_version())
        for problem, kept in found.items():
            _require_json(self.store, problem, kept.config, kept.plan, kept.prediction)
        return found

    def _plan(self, c: _Checked) -> Kept:
        with self._planning:
            best = c.kernel.rank(c.problem.sizes, c.problem.dtype, c.device, c.source.profile, limit=1)[0]
            plan = self._loop(c, best.config)
        return Kept(
            c.problem, c.source.key, planner_version(), config_json(best.config), plan, prediction_json(best.prediction)
        )

    def _keep(self, fresh: Sequence[Kept], must_keep: bool) -> str:
        """Why the answers could not be kept; empty where they were, or there is nothing to keep."""
        if self.store is None:
            return "no store was named"
        if fresh:
            try:
                self.store.keep(fresh)
            except StoreError as error:
                if must_keep:
                    raise
                return str(error)
        return ""

    def _answer(self, c: _Checked, kept: Kept, measurements: Sequence[Measurement]) -> ConfigAnswer:
        config, measured = fastest(kept.config, json.loads(kept.prediction)["time_us"], measurements)
        plan: str | None = kept.plan
        prediction: str | None = kept.prediction
        if measured is not None and config != kept.config:
            try:
                plan, prediction = self._measured_plan(c, measured)
            except InvalidConfig:
                # Measured under an earlier release; today's kernel cannot run it.
                return self._answer(c, kept, [m for m in measurements if m.config != config])
        return ConfigAnswer(
            c.problem,
            config,
            plan,
            prediction,
            measured,
            "exact",
            True,
            kept.profile,
            c.source.profile.identity,
            kept.planner,
        )

    def _measured_plan(self, c: _Checked, measured: Measured) -> tuple[str, str | None]:
        """Plan and prediction of a configuration that a job measured; no prediction where it is not a candidate."""
        config = tuning_of(json.loads(measured.config))
        with self._planning:
            plan = self._loop(c, config)
            ranked = c.kernel.rank(c.problem.sizes, c.problem.dtype, c.device, c.source.profile, limit=EVERY_CANDIDATE)
        prediction = next((r.prediction for r in ranked if r.config == config), None)
        return plan, prediction_json(prediction) if prediction else None

    def _loop(self, c: _Checked, config: TuningConfig) -> str:
        """The solved loop behind ``config`` as canonical JSON, without the seconds that solving took here."""
        key = (c.kernel.name, config, c.problem.dtype, c.problem.device, c.source.key)
        known = self._loops.get(key)
        if isinstance(known, str):
            return known
        outcome = c.kernel.plan(config, c.problem.dtype, c.device, c.source.profile)
        fields = codec.to_json(outcome)
        del fields["solve_seconds"]
        plan = canonical_json(fields).decode()
        self._loops.put(key, plan)
        return plan


def _require_json(store: Store, problem: ConfigRequest, *texts: str | None) -> None:
    """Raise :class:`StoreError` where a kept row does not hold the objects that are written here."""
    for body in texts:
        try:
            whole = body is None or isinstance(json.loads(body), dict)
        except (ValueError, TypeError):
            whole = False
        if not whole:
            raise StoreError(
                f"store {store.name} is damaged: {problem.label} holds {str(body)[:40]!r}, which is no JSON object: "
                "restore it from a copy, or move it away and plan again",
                field="store", value=store.name,
            )  # fmt: skip


class _Memory:
    """The most recently used values, at most ``size`` of them, each for ``keep_s`` seconds."""

    def __init__(self, size: int, keep_s: float, clock: Callable[[], float]) -> None:
        self._size, self._keep_s, self._clock = size, keep_s, clock
        self._values: OrderedDict[object, tuple[float, object]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: object) -> object:
        with self._lock:
            until, value = self._values.get(key, (0.0, None))
            if value is None or self._clock() >= until:
                return None
            self._values.move_to_end(key)
            return value

    def put(self, key: object, value: object) -> None:
        with self._lock:
            self._values[key] = (self._clock() + self._keep_s, value)
            self._values.move_to_end(key)
            if len(self._values) > self._size:
                self._values.popitem(last=False)

    def drop(self, key: object) -> None:
        with self._lock:
            self._values.pop(key, None)
