"""The use cases, shared by HTTP and the command line: configure one problem or many, record what a job measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from threading import Lock
from typing import overload

from warpplan.kernels.declaration import options_of
from warpplan.kernels.registry import Kernel
from warpplan.planner.errors import InvalidConfig, StoreError, WarpplanError
from warpplan.planner.predict.ranking import RankedPlan
from warpplan.planner.predict.time_model import Prediction
from warpplan.planner.values.device import Device
from warpplan.planner.values.plan import Outcome
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.config_request import ConfigRequest
from warpplan.service.store.answer_store import Kept, Store, kept_plan
from warpplan.service.store.measured_times import Measurement, SeriesTime
from warpplan.service.store.stored_values import Environment
from warpplan.service.workflow.answers import ConfigAnswer, Measured, fastest
from warpplan.service.workflow.plausibility import checked_date, require_plausible, require_same_gpu
from warpplan.service.workflow.profiles import Profiles, ProfileSource, planner_version
from warpplan.service.workflow.recent_values import RecentValues
from warpplan.service.workflow.request import Item, check

CHUNK = 64
"""Problems planned between two commits of a batch: what an interruption can cost."""
EVERY_CANDIDATE = 1 << 20

Outcomes = dict[ConfigRequest, ConfigAnswer | WarpplanError]
"""An answer, or why there is none, for each of several questions."""


@dataclass(frozen=True)
class BatchResult:
    """What became of one item: an answer or an error. ``line`` is the item's line or position, from 1."""

    line: int
    item: Item | None
    answer: ConfigAnswer | None
    error: WarpplanError | None


@dataclass(frozen=True)
class CheckedItem:
    """A checked item with all that planning it needs."""

    problem: ConfigRequest
    kernel: Kernel
    device: Device
    source: ProfileSource

    @property
    def table(self) -> tuple[str, str, str, str]:
        """Questions of one table with equal options have their loops in common."""
        return self.problem.kernel, self.problem.dtype, self.problem.device, self.source.key


class Workflow:
    """Plans what the store does not hold and keeps it there; without a store nothing is kept.

    ``remember`` answers stay in memory for ``remember_s`` seconds, no longer: another process may have recorded a
    measurement that outranks them. Safe to call from several threads; what needs no planning never waits for planning.
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
        self._memory: RecentValues[ConfigRequest, ConfigAnswer] = RecentValues(remember, remember_s, clock)
        # A batch meets the same few hundred loops again and again.
        self._loops: RecentValues[object, Outcome] = RecentValues(4096, float("inf"), clock)
        self._measured: RecentValues[object, tuple[Outcome, Prediction | None]] = RecentValues(
            4096, float("inf"), clock
        )
        self._tables: dict[object, Lock] = {}

    def configure(self, item: Item) -> ConfigAnswer:
        """The configuration for one problem: kept, or planned now and kept.

        Raises :class:`InvalidInput` for a question that makes no sense, :class:`MissingCosts` and :class:`Infeasible`
        where planning fails, :class:`StoreError` where the store cannot be read. A store that cannot be *written* does
        not stop the answer: ``kept`` is then False and ``notice`` says why.
        """
        question = self.check(item)
        remembered = self.remembered(question)
        if remembered is not None:
            return remembered
        answer = self.answer([question])[question.problem]
        if isinstance(answer, WarpplanError):
            raise answer
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
            checked = self.check_all(part)
            answers = self.answer([q for q in checked if isinstance(q, CheckedItem)], must_keep=must_keep)
            yield from results(part, checked, answers)

    def candidates(self, item: Item, limit: int) -> tuple[ConfigRequest, tuple[RankedPlan, ...]]:
        """The ``limit`` best predicted candidates of a problem, best first; the store is not asked."""
        q = self.check(item)
        return q.problem, self._rank(q, limit)

    def record(
        self,
        item: Item,
        config: TuningConfig,
        time_us: float,
        *,
        samples: int = 1,
        environment: Environment = (),
        run: str = "",
        measured_at: str = "",
    ) -> tuple[Measurement, bool]:
        """Keep what a job measured, ``measured_at`` (ISO 8601; now if empty); False where the same report was there
        already.

        Raises :class:`InvalidConfig` where the kernel cannot run ``config``, :class:`InvalidInput` for a time that the
        device cannot reach, another GPU's, or one from the future, :class:`StoreError` where nothing is kept.
        """
        q = self.check(item)
        store = self._store_of_measurements()
        at = checked_date(measured_at, datetime.now(UTC)) if measured_at else ""
        require_same_gpu(environment, q.device)
        q.kernel.plan(config, q.problem.dtype, q.device, q.source.profile, q.problem.canonical)
        require_plausible(q.kernel, q.problem, q.device, q.source.profile, time_us)
        measurement = Measurement(q.problem, config, time_us, samples, environment, run, at)
        fresh = store.record(measurement)
        self._memory.drop(q.problem)
        return measurement, fresh

    def measurements(self, item: Item) -> tuple[Measurement, ...]:
        """What jobs measured for one problem, oldest first. Raises :class:`StoreError` where nothing is kept."""
        problem = self.check(item).problem
        return self._store_of_measurements().measured([problem]).get(problem, ())

    def forget_measurement(self, measurement_id: str) -> None:
        """Remove a measurement. Raises :class:`UnknownName` where there is none, :class:`StoreError`."""
        self._store_of_measurements().forget_measurement(measurement_id)
        self._memory.clear()

    def _store_of_measurements(self) -> Store:
        if self.store is None:
            raise StoreError(
                "the service has no store to keep measurements in: start it with --store FILE", field="store"
            )
        return self.store

    def check(self, item: Item) -> CheckedItem:
        """The question that ``item`` states; raises :class:`InvalidInput` for one that makes no sense."""
        problem, kernel, device = check(item, self.profiles.default_device)
        return CheckedItem(problem, kernel, device, self.profiles.of(device.name))

    def check_all(self, part: Sequence[tuple[int, Item | WarpplanError]]) -> list[CheckedItem | WarpplanError]:
        """The same for numbered items, the errors of those that make none in their places."""
        checked: list[CheckedItem | WarpplanError] = []
        for _, item in part:
            try:
                checked.append(item if isinstance(item, WarpplanError) else self.check(item))
            except WarpplanError as error:
                checked.append(error)
        return checked

    def remembered(self, question: CheckedItem) -> ConfigAnswer | None:
        """An answer given moments ago; memory alone is looked at."""
        return self._memory.get(question.problem)

    def known(self, questions: Sequence[CheckedItem]) -> dict[ConfigRequest, ConfigAnswer]:
        """Those of the answers that need no planning. Raises :class:`StoreError`."""
        found = self._found(questions, plan=False)
        answers = {problem: answer for problem, answer in found.items() if isinstance(answer, ConfigAnswer)}
        for problem, answer in answers.items():
            self._memory.put(problem, answer)
        return answers

    def answer(self, questions: Sequence[CheckedItem], *, must_keep: bool = False) -> Outcomes:
        """Look all of them up, plan the misses, keep those in one transaction.

        Raises :class:`StoreError` where the store cannot be read, with ``must_keep`` also where it cannot be written.
        """
        unique = {q.problem: q for q in questions}
        outcomes = self._found(list(unique.values()), plan=True)
        fresh: dict[ConfigRequest, Kept] = {}
        for problem, q in unique.items():
            if problem not in outcomes:
                try:
                    fresh[problem] = self._plan(q)
                except WarpplanError as error:
                    outcomes[problem] = error
        notice = self._keep(list(fresh.values()), must_keep)
        measured = self.store.times(fresh) if self.store and fresh else {}
        for problem, kept in fresh.items():
            answer = self._answer(unique[problem], kept, measured.get(problem, ()))
            outcomes[problem] = replace(answer, kind="planned", kept=not notice, notice=notice)
        for problem, outcome in outcomes.items():
            if isinstance(outcome, ConfigAnswer):
                self._memory.put(problem, replace(outcome, kind="exact") if outcome.kept else outcome)
        return outcomes

    def _found(self, questions: Sequence[CheckedItem], *, plan: bool) -> Outcomes:
        """What is kept. Where a measured configuration takes a kept one's place, its own plan may have to be made:
        without ``plan`` such answers are left out until it is."""
        if self.store is None:
            return {}
        kept: dict[ConfigRequest, Kept] = {}
        measured: dict[ConfigRequest, tuple[SeriesTime, ...]] = {}
        for key in {q.source.key for q in questions}:
            mine = [q.problem for q in questions if q.source.key == key]
            rows, reports = self.store.look_up(mine, key, planner_version())
            kept |= rows
            measured |= reports
        found: Outcomes = {}
        for q in questions:
            if q.problem in kept:
                try:
                    answer = self._answer(q, kept[q.problem], measured.get(q.problem, ()), plan=plan)
                except WarpplanError as error:
                    found[q.problem] = error
                    continue
                if answer is not None:
                    found[q.problem] = answer
        return found

    def _plan(self, q: CheckedItem) -> Kept:
        best = self._rank(q, 1)[0]
        plan, prediction = self._loop(q, best.config, best.solve), replace(best.prediction, parts=())
        return Kept(q.problem, q.source.key, planner_version(), best.config, plan, prediction)

    def _rank(self, q: CheckedItem, limit: int) -> tuple[RankedPlan, ...]:
        # The first of a table solves its loops: questions that meet them together must not all do that.
        with self._tables.setdefault(q.table, Lock()):
            return q.kernel.rank(q.problem.canonical, q.problem.dtype, q.device, q.source.profile, limit=limit)

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

    @overload
    def _answer(self, q: CheckedItem, kept: Kept, times: Sequence[SeriesTime]) -> ConfigAnswer: ...
    @overload
    def _answer(
        self, q: CheckedItem, kept: Kept, times: Sequence[SeriesTime], *, plan: bool
    ) -> ConfigAnswer | None: ...
    def _answer(
        self, q: CheckedItem, kept: Kept, times: Sequence[SeriesTime], *, plan: bool = True
    ) -> ConfigAnswer | None:
        config, measured = fastest(kept.config, kept.prediction.time_us, times)
        loop: Outcome | None = kept.plan
        prediction: Prediction | None = kept.prediction
        if measured is not None and config != kept.config:
            if not plan and self._measured.get((q.problem, q.source.key, config)) is None:
                return None
            try:
                loop, prediction = self._measured_plan(q, measured)
            except InvalidConfig:
                # Measured under an earlier release; today's kernel cannot run it.
                return self._answer(q, kept, [t for t in times if t.config != config], plan=plan)
        return ConfigAnswer(
            q.problem, config, loop, prediction, measured, "exact", True, kept.profile, q.source.profile.identity,
            kept.planner,
        )  # fmt: skip

    def _measured_plan(self, q: CheckedItem, measured: Measured) -> tuple[Outcome, Prediction | None]:
        """Plan and prediction of a configuration that a job measured; no prediction where it is not a candidate."""
        key = (q.problem, q.source.key, measured.config)
        known = self._measured.get(key)
        if known is not None:
            return known
        candidate = next((r for r in self._rank(q, EVERY_CANDIDATE) if r.config == measured.config), None)
        if candidate is None:
            made: tuple[Outcome, Prediction | None] = self._loop(q, measured.config), None
        else:
            made = self._loop(q, candidate.config, candidate.solve), replace(candidate.prediction, parts=())
        self._measured.put(key, made)
        return made

    def _loop(self, q: CheckedItem, config: TuningConfig, solve: Callable[[], Outcome] | None = None) -> Outcome:
        """The solved loop behind ``config``, without the seconds that solving took here; ``solve`` where the kernel's
        ranking has bound its candidate already."""
        # Sizes do not change a loop; options may.
        key = (*q.table, tuple(options_of(q.problem.canonical).items()), config)
        known = self._loops.get(key)
        if known is None:
            solve = solve or partial(
                q.kernel.plan, config, q.problem.dtype, q.device, q.source.profile, q.problem.canonical
            )
            known = kept_plan(solve())
            self._loops.put(key, known)
        return known


def results(
    part: Sequence[tuple[int, Item | WarpplanError]], checked: Sequence[CheckedItem | WarpplanError], answers: Outcomes
) -> Iterator[BatchResult]:
    """What became of each numbered item of ``part``; a problem that comes twice is an exact match the second time."""
    given: set[ConfigRequest] = set()
    for (line, item), question in zip(part, checked, strict=True):
        outcome = answers[question.problem] if isinstance(question, CheckedItem) else question
        known = None if isinstance(item, WarpplanError) else item
        if isinstance(outcome, WarpplanError):
            yield BatchResult(line, known, None, outcome)
            continue
        again = outcome.kept and outcome.problem in given
        given.add(outcome.problem)
        yield BatchResult(line, known, replace(outcome, kind="exact") if again else outcome, None)
