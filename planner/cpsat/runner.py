"""One way to run CP-SAT: one worker, a fixed seed, and a limit in its deterministic time.

The same model then gives the same answer on every machine, however slow or busy.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Literal

from warpplan.planner.values.search_params import CpSatParams

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Answer = Literal["yes", "no", "unknown"]


DEFAULTS = CpSatParams()


class Stop:
    """Ends a run from another thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._solver: cp_model.CpSolver | None = None
        self.called = False

    def call(self) -> None:
        with self._lock:
            self.called = True
            if self._solver is not None:
                self._solver.stop_search()

    def watch(self, solver: cp_model.CpSolver) -> bool:
        """Remembers what to end; false where it is too late to begin."""
        with self._lock:
            self._solver = solver
            return not self.called


def run(
    model: cp_model.CpModel,
    seconds: float,
    *,
    presolve: bool = True,
    relax: int = 1,
    small: bool = False,
    turn: int = 0,
    randomised: bool = True,
    rate: float | None = None,
    stop: Stop | None = None,
    params: CpSatParams = DEFAULTS,
) -> tuple[Answer, cp_model.CpSolver]:
    """Whether ``model`` has a solution; the solver holds it. ``relax``: how much linear relaxations see, 0 to 2;
    ``small``: whether the model is decided in milliseconds; ``turn``: each searches in another way, the first in the
    one fit for proofs; ``rate``: the deterministic time to a second. A run that ``stop`` ends has no meaning."""
    from ortools.sat.python import cp_model  # half a second to import

    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = 1
    parameters.random_seed = 0
    parameters.max_deterministic_time = seconds * (params.rate if rate is None else rate)
    parameters.max_time_in_seconds = max(params.clock_wall_s, seconds * params.clock_factor)
    # OR-Tools would leave the process's interrupt handler at its default: Ctrl-C would then end a server on the spot.
    parameters.catch_sigint_signal = False
    parameters.cp_model_presolve = presolve
    parameters.linearization_level = relax
    if small:
        # Trying literals one by one, tidying up what was learnt, looking for symmetries: each takes longer than what it
        # saves in models that are decided in milliseconds (measured: about half of the time together).
        parameters.cp_model_probing_level = 0
        parameters.use_sat_inprocessing = False
        parameters.symmetry_level = 0
    if turn:
        parameters.random_seed = turn
        if not randomised:
            pass
        elif turn % 4 == 2:
            parameters.preferred_variable_order = parameters.IN_RANDOM_ORDER
            if hasattr(parameters, "use_new_integer_conflict_resolution"):
                parameters.use_new_integer_conflict_resolution = True
        else:
            parameters.random_branches_ratio = params.random_branches_ratio
            if turn % 4 == 3:
                parameters.initial_polarity = parameters.POLARITY_TRUE
    if stop is not None and not stop.watch(solver):
        parameters.max_time_in_seconds = 0.0
    try:
        status = solver.solve(model)
    except IndexError:  # OR-Tools 9.15's presolve loses a key of its own on some models
        parameters.cp_model_presolve = False
        status = solver.solve(model)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return "yes", solver
    return ("no" if status == cp_model.INFEASIBLE else "unknown"), solver


def spent(solver: cp_model.CpSolver, rate: float = CpSatParams.rate) -> float:
    """What the run took of its limit, in the limit's seconds."""
    return float(solver.response_proto.deterministic_time) / rate
