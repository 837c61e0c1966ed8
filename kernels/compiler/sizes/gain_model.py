"""The predicted gain of a plan at any sizes of its kernel, from the terms of one ranking.

A captured kernel depends on sizes in two ways only: how often its loops run, and how many programs its grid has. A
program's time is linear in its trip counts,

    program = Σ trips · cycles an iteration  +  tiles · cycles a tile  +  start,

and the grid's time is a program's times the rounds in which its programs run: S multiprocessors hold B programs each,
a last round that is not full holds fewer, which then wait less for each other. Where a program's number decides how
long it is (causal masks), ``SAMPLES`` programs stand for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from warpplan.kernels.compiler.sizes.size_expressions import (
    Expression,
    LaunchSizes,
    evaluate,
    is_expression,
    mentions_program,
    trip_count,
)
from warpplan.kernels.triton_types import Json
from warpplan.planner.errors import MalformedFile

SAMPLES = 8
"""Programs that stand for a grid's. Chosen by hand: the mean over evenly spaced eighths of a triangle is exact to
1 %; doubled, a prediction takes twice as long."""
NOMINAL_TRIPS = 32
"""Iterations of a loop whose count is not known: 32 blocks of 64 or 128 are sizes of 2048 to 4096."""

MOST_OFF = 2.0
"""Factor by which a measured gain may correct a predicted one at most: what is further off was measured beside
something else. Chosen by hand."""


@dataclass(frozen=True)
class LoopTrips:
    """``bounds`` of a loop, ``["counter", lower, upper, step]``, and of those ``around`` it, outer first; ``None``
    where they are not known."""

    bounds: Expression | None
    around: tuple[Expression | None, ...] = ()


@dataclass(frozen=True)
class StrategyTerms:
    """Cycles on one multiprocessor: of an iteration of each loop that loads, of what one tile costs beside its loops,
    and of what one program costs once."""

    iteration_cycles: tuple[float, ...]
    tile_cycles: float
    start_cycles: float = 0.0


@dataclass(frozen=True)
class GainModel:
    """``alone`` are the kernel's own terms with 1, 2, … resident programs on a multiprocessor; ``planned`` those of a
    plan, of which one program is resident, and ``walks`` says whether it walks over the grid. ``trips`` are those of
    the loops that load, in the order of the terms; ``multiprocessors`` is S."""

    multiprocessors: int
    trips: tuple[LoopTrips, ...]
    alone: tuple[StrategyTerms, ...]
    planned: StrategyTerms
    walks: bool = False

    def gain(self, sizes: LaunchSizes) -> float:
        """Time of the kernel as it is over its time under the plan; 1 where nothing runs, or less than a cycle."""
        alone, planned = self.cycles(sizes)
        return alone / planned if planned >= 1 and alone >= 1 else 1.0

    def cycles(self, sizes: LaunchSizes) -> tuple[float, float]:
        """Predicted cycles of the whole grid: as it is, and planned."""
        if not sizes.programs:
            return 0.0, 0.0
        trips, tiles = self._trips(sizes)
        return self._alone(sizes.programs, trips, tiles), self._planned(sizes.programs, trips, tiles)

    @cached_property
    def _programs_differ(self) -> bool:
        """Whether how often a loop runs depends on the program's number."""
        return any(mentions_program(bounds) for loop in self.trips for bounds in (loop.bounds, *loop.around))

    def _alone(self, programs: int, trips: Sequence[float], tiles: float) -> float:
        most = len(self.alone)
        rounds, rest = divmod(programs, self.multiprocessors * most)
        total = rounds * most * _program(self.alone[-1], trips, tiles)
        if rest:
            resident = math.ceil(rest / self.multiprocessors)
            total += resident * _program(self.alone[resident - 1], trips, tiles)
        return total

    def _planned(self, programs: int, trips: Sequence[float], tiles: float) -> float:
        rounds = math.ceil(programs / self.multiprocessors)
        each = _program(self.planned, trips, tiles)
        if self.walks:
            return self.planned.start_cycles + rounds * (each - self.planned.start_cycles)
        return rounds * each

    def _trips(self, sizes: LaunchSizes) -> tuple[list[float], float]:
        """A program's iterations of each loop, and its tiles: how often the loops around run. Means over programs."""
        integers = sizes.by_name
        counts, tiles = [0.0] * len(self.trips), 0.0
        programs = _sampled(sizes.grid) if self._programs_differ else [(0,) * len(sizes.grid)]
        for program in programs:
            outside = 1.0
            for i, loop in enumerate(self.trips):
                outside = math.prod(_count(bounds, integers, sizes.grid, program, 1.0) for bounds in loop.around)
                counts[i] += outside * _count(loop.bounds, integers, sizes.grid, program, NOMINAL_TRIPS)
            tiles += outside
        return [count / len(programs) for count in counts], tiles / len(programs)


def _program(terms: StrategyTerms, trips: Sequence[float], tiles: float) -> float:
    loops = sum(count * each for count, each in zip(trips, terms.iteration_cycles, strict=True))
    return loops + tiles * terms.tile_cycles + terms.start_cycles


def _count(
    bounds: Expression | None, integers: dict[str, int], grid: Sequence[int], program: Sequence[int], otherwise: float
) -> float:
    if bounds is None:
        return otherwise
    lower, upper, step = (evaluate(bound, integers, grid, program) for bound in bounds[1:])
    if lower is None or upper is None or step is None:
        return otherwise
    return trip_count(lower, upper, step)


def _sampled(grid: Sequence[int]) -> list[tuple[int, ...]]:
    """Programs in the middle of even parts of each axis, each axis in another order than the one before."""
    return [
        tuple(int(((sample * (2 * axis + 1)) % SAMPLES + 0.5) * size / SAMPLES) for axis, size in enumerate(grid))
        for sample in range(SAMPLES)
    ]


@dataclass(frozen=True)
class GainBasis:
    """What a gain is carried from: the ``model``, and the ``sizes`` at which the plan was tried."""

    model: GainModel
    sizes: LaunchSizes

    def carried(self, measured: float | None, sizes: LaunchSizes) -> float:
        """The predicted gain at ``sizes``: the model's, by as much off as it was where the gain was ``measured``."""
        gain = self.model.gain(sizes)
        if measured is None:
            return gain
        off = measured / self.model.gain(self.sizes)
        return gain * min(MOST_OFF, max(1 / MOST_OFF, off))


def basis_from_json(value: Json, where: object) -> GainBasis:
    """The basis in ``value``, as ``dataclasses.asdict`` makes it. Raises :class:`MalformedFile` naming ``where`` for
    what is none."""
    try:
        sizes = value["sizes"]
        integers = tuple((str(name), int(number)) for name, number in sizes["integers"])
        return GainBasis(_model(value["model"]), LaunchSizes(integers, tuple(int(axis) for axis in sizes["grid"])))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise MalformedFile(where, f"no model of a gain: {type(error).__name__}: {error}", field="basis") from None


def model_from_json(value: Json, where: object) -> GainModel:
    """The model in ``value``, as ``dataclasses.asdict`` makes it. Raises :class:`MalformedFile` naming ``where`` for
    what is none."""
    try:
        return _model(value)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise MalformedFile(where, f"no model of a gain: {type(error).__name__}: {error}", field="model") from None


def _model(value: Json) -> GainModel:
    trips = tuple(LoopTrips(loop["bounds"], tuple(loop["around"])) for loop in value["trips"])
    for loop in trips:
        for bounds in (loop.bounds, *loop.around):
            if bounds is not None and not (is_expression(bounds) and bounds[0] == "counter"):
                raise ValueError(f"{bounds!r} are no loop's bounds")
    alone = tuple(_terms(terms, len(trips)) for terms in value["alone"])
    count = value["multiprocessors"]
    if not alone or type(count) is not int or count < 1:
        raise ValueError("no terms, or no multiprocessors")
    return GainModel(count, _tuples(trips), alone, _terms(value["planned"], len(trips)), bool(value["walks"]))


def _terms(value: Json, loops: int) -> StrategyTerms:
    numbers = [float(number) for number in (*value["iteration_cycles"], value["tile_cycles"], value["start_cycles"])]
    if len(numbers) != loops + 2 or not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise ValueError(f"{value!r} are no cycles of {loops} loops")
    return StrategyTerms(tuple(numbers[:loops]), numbers[-2], numbers[-1])


def _tuples(trips: tuple[LoopTrips, ...]) -> tuple[LoopTrips, ...]:
    """Expressions as tuples, which JSON has as lists: equal models compare equal, and hash."""
    return tuple(LoopTrips(_tuple(loop.bounds), tuple(map(_tuple, loop.around))) for loop in trips)


def _tuple(expression: Expression) -> Expression:
    return tuple(map(_tuple, expression)) if isinstance(expression, (list, tuple)) else expression
