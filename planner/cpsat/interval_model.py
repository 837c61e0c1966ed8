"""The constraint model of one initiation interval: schedule, partition, rings and registers together.

Per operation a phase in [0, II) and a stage, per cluster a partition, per ring a depth; units, issue slots and
registers are intervals on a circle of II cycles. Costs keep their full resolution: intervals, unlike the time-indexed
reservation table of Eichenberger and Davidson (PLDI 1997), do not grow with II, and what is proven is proven for the
costs as given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpplan.planner.bounds.start_windows import distances, dominance_cuts, stage_limit
from warpplan.planner.cpsat.dependence_constraints import add_dependences, add_dominance_cuts, add_retirement_order
from warpplan.planner.cpsat.register_constraints import add_registers
from warpplan.planner.cpsat.ring_constraints import add_memory, add_rings
from warpplan.planner.cpsat.sharing_constraints import NoGoodCut, SharedMemory
from warpplan.planner.cpsat.unit_constraints import add_issue, add_shared_resources, add_units
from warpplan.planner.cpsat.variables import ModelVariables
from warpplan.planner.problem.assignment import Assignment
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.values.search_params import Branching, MemoryModel

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


class IntervalModel(ModelVariables):
    """The constraints for one interval.

    ``memory`` says how rings lie: "apart", side by side; "shared", in one another's place too (a relaxation, see
    :mod:`~warpplan.planner.cpsat.sharing_constraints`, to which :meth:`forbid` adds no-good cuts); "free", memory is
    not limited. ``registers`` False leaves rule 5 out, ``symmetric`` False the order of operations that could change
    places: what is known of a schedule may tell them apart. ``reach``: only schedules of at most this many stages
    before and after the anchor. ``tight`` adds redundant constraints (what a partition's issue slot takes with all its
    barriers, the order of all that issues, registers on average), with which infeasibility is proven sooner and a
    schedule found later. ``compact`` adds dominance cuts, with which infeasibility is proven sooner still.
    ``branching``: what the search branches on, besides what the constraints mention; with "median", about each value
    that a stage can have. (CP-SAT sets all literals before it asks a strategy, so that its order matters little; that
    the strategy makes a literal of each value does.)
    """

    def __init__(
        self,
        problem: Problem,
        ii: int,
        *,
        memory: MemoryModel = "apart",
        registers: bool = True,
        symmetric: bool = True,
        reach: int | None = None,
        tight: bool = False,
        compact: bool = False,
        branching: Branching = "median",
    ) -> None:
        from ortools.sat.python import cp_model

        limited = memory != "free"
        anchor = max(range(len(problem.ops)), key=lambda i: problem.ops[i].occupancy)
        limit, params = stage_limit(problem, ii), problem.options.search
        windows = distances(problem, ii, anchor, limited, registers) if params.start_windows else None
        super().__init__(
            problem, ii, windows or [(None, None)] * len(problem.ops), anchor=anchor,
            stage_limit=limit if reach is None else min(limit, reach), memory=limited, registers=registers,
            tight=tight and params.redundant_constraints, compact=compact,
            symmetric=symmetric and params.symmetry_breaking,
        )  # fmt: skip
        add_dependences(self)
        add_units(self)
        add_shared_resources(self)
        add_issue(self)
        add_retirement_order(self)
        if compact and params.dominance_cuts:
            add_dominance_cuts(self, dominance_cuts(problem, ii))
        add_rings(self)
        if memory == "apart":
            add_memory(self)
        self._shared = SharedMemory(self) if memory == "shared" else None
        if registers:
            add_registers(self)
        if branching == "median" and params.median_branching:
            searched = compact and problem.options.depth is None
            depths = self.depth.values() if searched else ()
            self.cp.add_decision_strategy(
                [*self.stage, *depths], cp_model.CHOOSE_MIN_DOMAIN_SIZE, cp_model.SELECT_MEDIAN_VALUE
            )

    def forbid(self, cut: NoGoodCut) -> None:
        """Excludes the ring layouts of ``cut``. Constraints come in the order of the cuts, whenever they are added: the
        same model. Raises :class:`ValueError` where the model's memory is not "shared"."""
        if self._shared is None:
            raise ValueError("cuts are about rings in one another's place: the model needs memory='shared'")
        self._shared.forbid(cut)

    def begin_with(self, known: Assignment) -> None:
        """Hints: starts like those of ``known`` are tried first."""
        self.cp.clear_hints()  # type: ignore[no-untyped-call]
        shift = self.ii * (self.stages // 2) - known.starts[self.anchor]
        for i in self.ops:
            stage, phase = divmod(known.starts[i] + shift, self.ii)
            self.cp.add_hint(self.phase[i], phase)
            self.cp.add_hint(self.stage[i], stage)

    def read(self, solver: cp_model.CpSolver) -> Assignment:
        """The solution that ``solver`` holds, its first stage numbered 0."""
        partitions = []
        for i in self.ops:
            literals = [self.inside(i, g) for g in range(self.count)]
            partitions.append(next(g for g, x in enumerate(literals) if (x if isinstance(x, int) else solver.value(x))))
        starts = [solver.value(self.start[i]) for i in self.ops]
        shift = min(starts) // self.ii * self.ii
        return Assignment(tuple(start - shift for start in starts), tuple(partitions))
