"""Every constant and every technique of the exact planner's search: meaning, unit, source, what doubling it does.

Defaults are the solver's behaviour. "Training loops" below are the 32 loop bodies of ``benchmarks/loop_graphs.py``, on
which values were chosen by hand where no other source is named; what the solver does there with all of them is recorded
in ``benchmarks/results/solver.json``. What each technique is worth is recorded in
``benchmarks/results/solver_ablation.json``. No value here can make a plan wrong: whatever is found is checked against
every rule, and a bound is raised by proofs alone. They decide how soon an answer comes, and so what a work budget
suffices for.

"Seconds" are seconds of a slow core, counted in deterministic time (see :class:`CpSatParams`), unless a field ends in
``_wall_s``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

MemoryModel = Literal["apart", "shared", "free"]
"""How a model lays rings out: side by side; in one another's place too; memory not limited."""
Branching = Literal["free", "median"]
"""Besides the constraints' own variables, CP-SAT branches on nothing else; each value of a stage, from the median."""


@dataclass(frozen=True)
class CpSatParams:
    """How CP-SAT is run, and how its deterministic time is turned into seconds."""

    rate: float = 0.25
    """CP-SAT's deterministic time that a slow core gets through in one second, where nothing better is known. Measured
    by hand: 0.2 to 2. Doubled: every run may work twice as long before it counts as out of time."""
    interval_model_rate: float = 0.15
    """The same for interval models. Measured by hand: 0.1 to 0.25. Doubled: attempts work twice as long for the same
    seconds of the budget."""
    seconds_per_constraint: float = 6e-6
    """For a constraint to be built, in seconds. Measured by hand; CP-SAT's deterministic time does not count it.
    Doubled: a budget ends after fewer attempts; the order of attempts stays."""
    presolve_seconds_per_constraint: float = 4e-5
    """For a constraint to be presolved, in seconds. Measured by hand, likewise. Doubled: likewise, for proofs with
    presolve only."""
    random_branches_ratio: float = 0.1
    """Share of decisions that are made at random in the randomised branchings. CP-SAT's documentation names no best
    value; chosen by hand on the training loops. Doubled: not measured."""
    proof_activity_decay: float = 0.95
    """Factor by which CP-SAT forgets, conflict by conflict, what variables conflicts were about, in proofs of whole
    models; its default is 0.8. Chosen by hand on 15 final proofs of moved training loops and as many schedules one
    cycle above: 15 % and 35 % less time than with 0.8, 0.98 being no better. Not a quantity that can be doubled."""
    clock_factor: float = 5.0
    """The wall clock ends a run only at this many times its limit: a machine that swaps must still answer, but a busy
    one must answer the same. Chosen by hand. Doubled: only a machine that is slower than a slow core by that much can
    tell."""
    clock_wall_s: float = 10.0
    """And not before, in seconds by the clock: a short run on a busy machine must not give another answer. Chosen by
    hand. Doubled: likewise."""


@dataclass(frozen=True)
class AttemptParams:
    """One feasibility query: which attempts are made, in which order, for how long."""

    stage_window: int = 5
    """Stages around the anchor that a windowed attempt allows. Chosen by hand on the training loops, whose schedules
    nearly all lie within; with more stages they are found later. Doubled: larger models, slower attempts."""
    narrow_windows: tuple[int, ...] = (2, 1)
    """Further windows, in stages: short software pipelines are found sooner in them, and they are soon proven empty.
    Chosen by hand. Doubled: they would exclude little that ``stage_window`` does not."""
    small_loop_operations: int = 14
    """Operations up to which all schedules are searched about as fast as those in the stage window, so that the window
    is left out. Chosen by hand on the training loops. Doubled: proofs are attempted where windowed attempts would find
    a schedule sooner."""
    small_loop_factor: float = 5.0
    """Times as many seconds for the one attempt at such a small loop. Chosen by hand. Doubled: an infeasible interval
    costs more before the next one is tried."""
    shared_memory_factor: float = 1.5
    """Times as many seconds for unrestricted attempts where rings may lie in one another's place: such models are
    larger. Chosen by hand. Doubled: half as many attempts."""
    new_restrictions: int = 4
    """Restrictions that each round adds. Chosen by hand. Doubled: the first round lasts longer; there are at most nine
    in all, so a larger number means all of them at once."""
    unrestricted_attempts: int = 6
    """Unrestricted attempts per round once every restriction has failed, and in the first round where there are no
    clones. Chosen by hand on the training loops. Doubled: later intervals wait longer."""
    lockstep_attempts: int = 2
    """Attempts at a restriction that keeps clones in lockstep, before it is given up: found soon, or hardly ever.
    Chosen by hand on the training loops. Doubled: wasted work where lockstep is infeasible."""
    relaxation_levels: tuple[tuple[float, float], ...] = ((0.9, 1.3), (1.0, 1.0))
    """(Share of the interval that a partition's issue may fill, factor on the least life of a value), for each
    partition relaxation. Chosen by hand: the first keeps slack, the second is the relaxation as it is. Not a quantity
    that can be doubled."""
    relaxation_seconds: float = 0.1
    """For each partition relaxation. Chosen by hand; most end sooner. Doubled: not measured."""
    crossing_cost: int = 4
    """What the partition relaxation pays for a dependence that crosses partitions, in KB of register values that cross.
    Chosen by hand. Doubled: fewer crossings, of more bytes."""
    layout_seconds: float = 1.0
    """For the layout of one solution's rings. Chosen by hand. Doubled: only layouts that are
    left open now can tell."""


@dataclass(frozen=True)
class DriverParams:
    """The bidirectional search over II: which interval is queried next, and for how long."""

    tiny_loop_operations: int = 8
    """Operations up to which the best of all schedules of MinII is asked for at once, and ties are broken by a model at
    the end. Chosen by hand. Doubled: tie-breaks cost up to two times ``tie_break_seconds`` in larger loops."""
    large_loop_operations: int = 48
    """Operations from which list scheduling comes before any model, at every interval. Chosen by hand on the classic
    loops of ``benchmarks/modulo_instances.py``. Doubled: loops in between build models that list scheduling
    makes needless."""
    attempt_seconds: float = 0.35
    """For each attempt of the first round. Chosen by hand on the training loops with their costs moved: of 20 hard ones
    whose MinII is feasible, 0.2 decides 10 within a second, 0.3 to 0.4 decide 12 or 13 in two thirds of the work.
    Doubled: infeasible intervals cost twice as much."""
    seconds_growth: float = 2.0
    """Factor on the seconds of an attempt from one round to the next. Chosen by hand. Doubled: fewer, longer rounds."""
    first_attempts: float = 6.0
    """Work for schedules of the proven bound, in attempts of the round. Chosen by hand: mostly the bound is feasible;
    where none is found soon, neighbourhoods of a longer schedule find one sooner. Doubled: incumbents come later."""
    step_attempts: float = 1.5
    """Likewise for each interval above the bound. Doubled: likewise."""
    step_failures: int = 1
    """After this many such intervals left open, the serial schedule has to do. Doubled: likewise."""
    bisection_attempts: float = 20.0
    """Likewise for bisecting the gap; the first model left open ends it. Chosen by hand. Doubled: not measured."""
    bisected_parts: int = 16
    """Bisection ends where the gap is below one part of the incumbent in this many. Chosen by hand. Doubled: more
    proofs that each take as long as the last one."""
    bound_attempts: float = 5.0
    """Likewise for raising the bound from below. Chosen by hand. Doubled: less is left for the rest."""
    bound_step_parts: int = 16
    """The first step up from the proven bound is the bound divided by this number. Chosen by hand. Doubled: one proof
    more where the optimum is far above."""
    bound_failures: int = 2
    """Intervals left open after which a round no longer raises the bound. Chosen by hand. Doubled: higher bounds, later
    incumbents."""
    improvement_attempts: float = 20.0
    """Likewise for improving the incumbent. Chosen by hand: nearly all of it goes to neighbourhoods. Doubled: proofs
    come later."""
    early_proof_attempts: float = 2.0
    """Likewise for a proof of optimality once no neighbourhood improves the incumbent, where the bound is MinII. Chosen
    by hand. Doubled: more work on incumbents that are not optimal."""
    proof_attempts: float = 5.0
    """Likewise where proofs have raised the bound, and for the last proof of a round. Chosen by hand. Doubled:
    likewise."""
    proofs_in_a_row: int = 3
    """Proofs that end with a schedule after which neighbourhoods are searched again. Chosen by hand. Doubled:
    likewise."""
    restricted_attempts: float = 0.7
    """Likewise for each restricted problem, from the second round on. Chosen by hand. Doubled: less is left for the
    loop itself."""
    restricted_depths: tuple[int, ...] = (2, 3)
    """Slots of all rings in restricted problems: what kernels mostly have. Not a quantity that can be doubled."""
    least_seconds: float = 0.02
    """With less of the budget left, nothing is asked. Chosen by hand. Doubled: not measurable."""
    first_step_parts: int = 6
    """The first step up from the proven bound is the bound divided by this number. Chosen by hand. Doubled: the first
    schedule is closer to the bound, and found later."""
    step_growth: int = 3
    """Factor from one step up to the next. Chosen by hand. Doubled: a first schedule sooner, further from the bound."""
    precision: int = 100
    """With the incumbent's partitions kept, the interval is improved until the gap is below one part in this many.
    Chosen by hand on the training loops. Doubled: more attempts for gains below one per cent."""
    exact_factor: float = 10.0
    """Times as many seconds for a decision on the core, where that decides the whole problem. Chosen by hand on the
    classic loops. Doubled: not measured."""
    construction_ladder: tuple[float, ...] = (1.15, 1.3, 2.2, 3.0)
    """Multiples of the proven bound at which a small loop's schedule is constructed once the bound is infeasible.
    Chosen by hand on the training loops. Doubled: first schedules further from the bound."""
    tight_memory_ladder: tuple[float, ...] = (1.15, 1.3, 1.5, 1.75, 2.2, 3.0)
    """Likewise for schedules placed backwards, where rings have to share bytes. Chosen by hand on the training loops
    with 60 % and 40 % of their memory. Doubled: first schedules further from the bound."""
    spare_memory_ladder: tuple[float, ...] = (1.5,)
    """Likewise where rings fit side by side, once the bound is infeasible or undecided. Chosen by hand on the practice
    loops: of the 31 that take most, 19 are proven as without, and the others' intervals are nearer to the best known
    by a quarter; with 1.15 and 1.3 before, by a third, and one proof less. Doubled: schedules further from the bound,
    with which three loops ended worse."""
    diagnosis_share: float = 0.3
    """Share of the work left for each limit that may bind where no interval is feasible. Chosen by hand. Doubled: later
    limits may be left undecided."""
    tie_break_seconds: float = 0.3
    """For each of the two steps of a tie-break. Chosen by hand; most end within 0.1, but in one of 523 pairs
    (``benchmarks/results/monotone.json``) that was too short for the fewest crossings. Doubled: not measured."""
    patience_wall_s: float = 0.4
    """Seconds by the clock after which a query counts as hard, and speculation begins in a second thread. No answer
    depends on it. Chosen by hand: 0.1 takes 6 % more CPU time and 5 % less wall time. Doubled: less is gained."""
    late_schedule_wall_s: float = 0.8
    """Seconds by the caller's clock beyond its deadline, and of work, for a serial schedule where the limits ended the
    search before it had any. Chosen by hand: 40 operations take 0.07, 99 take 0.6. Doubled: only slower machines can
    tell."""


@dataclass(frozen=True)
class NeighbourhoodParams:
    """Large-neighbourhood search around the incumbent. All values were chosen by hand on the training loops with their
    costs moved by up to 10 %, and on these with 70 % of the memory and a partition more."""

    seed: int = 20
    """Of the sequence that neighbourhoods are drawn from. Arbitrary. Doubled: another sequence."""
    failures: tuple[int, int] = (5, 1)
    """Attempts in a row without a shorter interval after which a proof is tried, where the bound is MinII, and where
    proofs have raised it. Doubled: more work on incumbents that are optimal."""
    shared_memory_failures: float = 30.0
    """Further such attempts where rings lie in one another's place, times the gap between incumbent and bound as a
    share of the bound: where it is large, whole models are mostly left open. Chosen by hand on the training loops with
    60 % and 40 % of their memory. Doubled: proofs come later."""
    layout_period: int = 2
    """Where rings lie in one another's place, one neighbourhood in this many is of all layouts, the others keep every
    ring where it lies: such models are smaller, and need no cuts. Chosen by hand on the training loops with 60 % and
    40 % of their memory, where intervals are longer with 1 (none is kept), with 3, and with all of them. Doubled: fewer
    layouts are decided anew."""
    first_share: float = 0.25
    """Share of the free clusters whose partitions are decided anew, at first. Doubled: larger models, fewer of them
    decided in time."""
    least_share: float = 0.1
    """The smallest such share. Doubled: likewise."""
    first_gain: float = 0.4
    """Share of the gap between bound and incumbent that is asked for, at first. Not above 1."""
    least_gain: float = 0.01
    """Where less would be asked for, the first share is asked for again. Doubled: fewer small steps."""
    growth: float = 1.5
    """Factor on both shares after an attempt: larger neighbourhoods after an infeasible one, smaller ones after one
    left open, larger gains after a success. Doubled: larger jumps."""
    shrinking: float = 0.8
    """Factor on the gain after an attempt without success. Nearer to 1: more neighbourhoods for each gain."""
    decay: float = 0.8
    """How much of a kind's weight stays after an attempt (Ropke and Pisinger 2006). Doubled: not a share."""
    reward: float = 4.0
    """What the rest of the weight becomes after a success; first weights are 1. Doubled: successful kinds are drawn
    more often."""
    least_weight: float = 0.2
    """No kind's weight falls below it. Doubled: kinds without success are drawn more often."""


@dataclass(frozen=True)
class ConstructionParams:
    """List scheduling, and the partitions that it is tried with."""

    attempts: int = 3
    """Orders of priority that are tried with one choice of partitions (recurrences first, long holds first, dependences
    alone). There are three kinds. Doubled: each kind again, with what made trouble moved to the front."""
    placements_per_operation: int = 4
    """Placements that an attempt may make, per operation, before it fails (Rau 1994 calls it the budget ratio).
    Chosen by hand. Doubled: failures cost twice as much."""
    seconds_per_operation: float = 5e-4
    """What all attempts with one choice of partitions take off the budget, per operation. Measured by hand. Doubled: a
    budget ends sooner."""
    seconds_per_path: float = 1e-8
    """What longest paths take off the budget, per operation cubed. Measured by hand; only loops of hundreds of
    operations feel it. Doubled: likewise."""
    serial_states: int = 600
    """Sets of operations that the beam search of the serial schedule keeps, times the loop's operations. Chosen by
    hand: it takes milliseconds. Doubled: twice the time; lower peaks only where memory hardly suffices."""
    serial_seconds_per_operation: float = 2e-3
    """What one such search takes off the budget, per operation. Measured by hand. Doubled: a budget ends sooner."""
    overload_cost: int = 1_000
    """What a cycle of issue beyond the interval costs the partition heuristics, in cycles of hand-off: it is never
    worth it. Any large number. Doubled: nothing."""
    issue_targets: tuple[float, ...] = (1.0, 0.9, 0.75)
    """Shares of the interval that a partition's issue slot may fill: barriers and gaps want some of it. Chosen by hand.
    Not a quantity that can be doubled: one choice of partitions for each."""
    recurrence_weight: int = 4
    """How many times as dear a hand-off on a recurrence may be: it lengthens the interval, others only the pipeline.
    Chosen by hand. Doubled: not measured."""
    local_search_passes: int = 10
    """Most passes of the local search over clusters. Chosen by hand; it ends at a local optimum. Doubled: not
    measured."""


@dataclass(frozen=True)
class ModuloParams:
    """Iterative modulo scheduling with a reservation table, for large loops."""

    least_operations: int = 100
    """Operations from which it gives the first schedule. Chosen by hand: below, list scheduling and the core take
    milliseconds. Doubled: loops in between begin with list scheduling, which needs longest paths between all pairs."""
    placements_per_operation: int = 6
    """Placements that an attempt may make, per operation, before it fails: the largest budget ratio that Rau (1994)
    reports a use for. Doubled: failures cost twice as much."""
    first_placements_per_operation: int = 2
    """The same while no interval has had a schedule yet. Doubled: a first schedule later, nearer to the bound."""
    first_step_parts: int = 40
    """The first step up from the bound is the bound divided by this number. Doubled: likewise."""
    step_growth: int = 2
    """Factor from one step up to the next while no interval has had a schedule. Doubled: a first schedule sooner,
    further from the bound."""
    sweep_share: float = 0.3
    """Share of the work left for the intervals below the best one, from the bound up as Rau's method tries them. Chosen
    by hand. Doubled: less is left for models."""
    rounds: int = 1
    """Rounds over the intervals that are left below the best one, each with twice the placements. Chosen by hand.
    Doubled: more work where nothing is mostly found."""
    partitions: int = 12
    """Choices of partitions that are tried where they are not given. Chosen by hand: the four by the kind of operation
    and some balanced ones. Doubled: more of the work goes into first schedules."""
    seconds_per_placement: float = 5e-5
    """What a placement takes off the budget. Measured by hand: 20 to 60 µs. Doubled: a budget ends sooner."""
    most_table_cycles: int = 20_000_000
    """Cycles of all reservation tables together beyond which no table is built: they would take some 100 MB. Doubled:
    twice the memory."""


@dataclass(frozen=True)
class BoundParams:
    """Lower bounds without search."""

    tightening_rounds: int = 64
    """Most rounds in which exclusion on units makes distances tighter and longest paths spread that: they may grow by
    a cycle a round. Chosen by hand. Doubled: only loops that are cut off now can tell."""
    tightened_operations: int = 400
    """Operations of a strongly connected component up to which its distances are made tight: that takes their cube.
    Larger ones keep the windows that single longest paths give. Chosen by hand. Doubled: eight times the time."""


@dataclass(frozen=True)
class SearchParams:
    """The constants by group, and a switch for each technique. With a technique off the search is slower or ends with a
    larger gap; no plan becomes wrong and no bound unproven."""

    cpsat: CpSatParams = field(default_factory=CpSatParams)
    attempts: AttemptParams = field(default_factory=AttemptParams)
    driver: DriverParams = field(default_factory=DriverParams)
    construction: ConstructionParams = field(default_factory=ConstructionParams)
    modulo: ModuloParams = field(default_factory=ModuloParams)
    bounds: BoundParams = field(default_factory=BoundParams)
    neighbourhoods: NeighbourhoodParams = field(default_factory=NeighbourhoodParams)

    # First schedules
    list_scheduling: bool = True
    """Schedules constructed by iterative modulo scheduling (Rau 1994). Off: first schedules come from models alone. In
    loops of up to 40 operations, models alone do as well: two held-out loops more are proven without it. It stays for
    larger ones, where one classic loop more has a plan with it (``solver_ablation_modulo.json``)."""
    backward_schedules: bool = True
    """First schedules placed backwards where rings have to share bytes. Off: serial schedules, from which a search may
    never leave their one partition."""
    modulo_scheduling: bool = True
    """First schedules of large loops by iterative modulo scheduling with a reservation table. Off: by list scheduling,
    which needs longest paths between all pairs."""
    serial_schedule: bool = True
    """A first schedule in which every operation waits for the one before. Off: loops whose memory or registers hardly
    suffice may end without a plan."""
    partition_heuristics: bool = True
    """Balanced partitions with few hand-offs for list scheduling, besides those by the kind of operation. Off: those by
    kind alone."""

    # Restrictions: models with some decisions fixed
    stage_window: bool = True
    """Attempts within a few stages of the anchor. Off: all stages that a best schedule may need."""
    partition_relaxation: bool = True
    """Restrictions to the partitions of a relaxation that averages issue and registers over the interval."""
    clones_in_lockstep: bool = True
    """Restrictions to schedules in which clones run an equal part of the interval apart."""
    register_relaxation: bool = True
    """Attempts without registers, whose partitions are tried again with them."""
    randomised_branching: bool = True
    """Later attempts at a model randomise the order or the choice of decisions. Off: only the seed changes."""

    # Improving the incumbent
    fixed_partition_improvement: bool = True
    """A shorter interval with the incumbent's partitions, by steps that grow, then by bisection."""
    large_neighbourhoods: bool = True
    """Shorter intervals in neighbourhoods of the incumbent, which keep most of its partitions and of its order."""
    restricted_problems: bool = True
    """The same loop in fewer partitions, or with rings of few slots, whose schedules are handed up. Off: a loop that is
    left open may end with a longer interval where more is allowed."""
    layouts_kept: bool = True
    """Where rings lie in one another's place, improvements with every ring where it lies. Off: all layouts in each
    model, which is larger then, and mostly left open."""
    retiming: bool = True
    """Each schedule found is re-timed to the smallest interval of its order, a maximum cycle ratio."""

    # Bounds and proofs
    core_feasibility: bool = True
    """Problems that consist of dependences, units and issue slots alone are decided on their core. Off: by the interval
    model, as all others."""
    gap_bisection: bool = True
    """Where MinII is infeasible, whole models bisect the gap between bound and incumbent before anything else. Off:
    neighbourhoods improve the incumbent first, and only what is next to it is proven."""
    bound_bisection: bool = True
    """Proofs from the lower bound up, in growing steps, then by bisection. Off: only what is next to the incumbent is
    proven."""

    # In the constraint model
    start_windows: bool = True
    """Windows of starts around the anchor, from longest paths. Off: stages are bounded, starts are not."""
    dominance_cuts: bool = True
    """In proofs: in some best schedule, one arc of each cut of the graph is tight to within an interval."""
    redundant_constraints: bool = True
    """In proofs and restrictions: the order of all that issues, barriers in an issue slot, registers on average."""
    symmetry_breaking: bool = True
    """Clones, twins and partitions that could change places are ordered."""
    median_branching: bool = True
    """A literal for each value of a stage, tried from the median. Off: CP-SAT's own branching."""
    no_good_cuts: bool = True
    """A ring layout that cannot be packed is excluded and the model solved again. Off: such an attempt ends without an
    answer, so that intervals which need rings in one another's place may be left open; no plan becomes wrong, since no
    solution without a layout is ever taken."""
    hints: bool = True
    """After a no-good cut, the solution before it is CP-SAT's hint. Off: each search starts anew."""

    # Among schedules of the same interval
    tie_break: bool = True
    """Tiny loops: fewest crossings, then short lives and early starts, by a model. Off: the first schedule found."""
    compaction: bool = True
    """Starts that make lives and starts shortest in sum, with the order fixed, by a linear program."""

    # Threads
    speculation: bool = True
    """The query that is likely to be next is begun in a second thread. The answers are the same; off: one thread."""
