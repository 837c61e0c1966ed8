"""One way to run CP-SAT: one worker, a fixed seed, and a limit in its deterministic time.

The same model then gives the same answer on every machine, however slow or busy.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Literal

from warpplan.planner.values.deadline import NO_DEADLINE, Deadline
from warpplan.planner.values.search_params import CpSatParams

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Answer = Literal["yes", "no", "unknown"]


DEFAULTS = CpSatParams()
DecisionRule = Literal["fixed_order", "proof", "random_order", "partly_random", "partly_random_positive"]
"""How CP-SAT takes its decisions: in its own order of variables; the same, with conflicts explained on integers, fit
for proofs of whole models; in a random order; some of them at random; the same, with each literal first taken to be
true."""


@dataclass(frozen=True)
class SearchSeed:
    """What makes one run of a model differ from another: CP-SAT's random seed, and what is decided at random."""

    seed: int = 0
    rule: DecisionRule = "fixed_order"


PROOF_SEED = SearchSeed()


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
    seed: SearchSeed = PROOF_SEED,
    rate: float | None = None,
    stop: Stop | None = None,
    params: CpSatParams = DEFAULTS,
    deadline: Deadline = NO_DEADLINE,
) -> tuple[Answer, cp_model.CpSolver]:
    """Whether ``model`` has a solution; the solver holds it. ``relax``: how much linear relaxations see, 0 to 2;
    ``small``: whether the model is decided in milliseconds; ``seed``: its random numbers, and what they decide;
    ``rate``: the deterministic time to a second (``params.rate`` where None). A run that ``stop`` ends has no
    meaning; one that ``deadline`` ends is "unknown", or "yes" where a solution was found by then."""
    from ortools.sat.python import cp_model  # half a second to import

    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = 1
    parameters.random_seed = seed.seed
    parameters.max_deterministic_time = seconds * (params.rate if rate is None else rate)
    clock_s = max(params.clock_wall_s, seconds * params.clock_factor)
    parameters.max_time_in_seconds = max(0.0, min(clock_s, deadline.remaining_s()))
    # OR-Tools would leave the process's interrupt handler at its default: Ctrl-C would then end a server on the spot.
    parameters.catch_sigint_signal = False
    parameters.cp_model_presolve = presolve
    parameters.linearization_level = relax
    if small:
        # Trying literals one by one, simplifying learnt clauses, detecting symmetries: each takes longer than what it
        # saves in models that are decided in milliseconds (measured: about half of the time together).
        parameters.cp_model_probing_level = 0
        parameters.use_sat_inprocessing = False
        parameters.symmetry_level = 0
    _set_rule(solver, seed.rule, params)
    if stop is not None and not stop.watch(solver):
        parameters.max_time_in_seconds = 0.0
    interruption = deadline.interruption
    with nullcontext() if interruption is None else interruption.ending(solver.stop_search):
        try:
            status = solver.solve(model)
        except IndexError:  # OR-Tools 9.15's presolve loses a key of its own on some models
            parameters.cp_model_presolve = False
            status = solver.solve(model)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return "yes", solver
    return ("no" if status == cp_model.INFEASIBLE else "unknown"), solver


def _set_rule(solver: cp_model.CpSolver, rule: DecisionRule, params: CpSatParams) -> None:
    parameters = solver.parameters
    if rule in ("proof", "random_order") and hasattr(parameters, "use_new_integer_conflict_resolution"):
        parameters.use_new_integer_conflict_resolution = True
    if rule == "proof":
        parameters.variable_activity_decay = params.proof_activity_decay
    if rule == "random_order":
        parameters.preferred_variable_order = parameters.IN_RANDOM_ORDER
    elif rule not in ("fixed_order", "proof"):
        parameters.random_branches_ratio = params.random_branches_ratio
        if rule == "partly_random_positive":
            parameters.initial_polarity = parameters.POLARITY_TRUE


def spent(solver: cp_model.CpSolver, rate: float = CpSatParams.rate) -> float:
    """What the run took of its limit, in the limit's seconds."""
    return float(solver.response_proto.deterministic_time) / rate
