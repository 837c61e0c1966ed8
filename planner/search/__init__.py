"""The exact planner's search for the smallest initiation interval (II), its schedule and its partitions.

The problem is modulo scheduling with warp partitions, rings of buffers and registers (RULES.md numbers its rules). The
method, in the order in which a solve goes through it:

1. *Lower bound.* MinII = max(ResMII, RecMII) (Rau 1994) and memory bounds come from :mod:`warpplan.planner.bounds`;
2. *First incumbent.* ``ii_search`` drives a bidirectional search: feasibility is monotone in II, so schedules bound the
   optimum from above and proofs from below. A few feasibility queries about the bound, which mostly is feasible, come
   first; then ``heuristics.serial_schedule``, one iteration at a time in an order of small peak memory, which nearly
   every loop has; then queries at intervals in growing steps, as long as they are answered. Small loops, and those with
   given partitions, begin with ``heuristics.list_scheduling`` (iterative modulo scheduling, Rau 1994, on intervals) in
   the partitions of ``heuristics.partition_heuristics``; those whose rings have to share bytes, with list schedules
   placed backwards, whose values live shorter.
3. *Feasibility queries.* ``feasibility_query`` makes windowed CP-SAT attempts on the models of
   :mod:`warpplan.planner.cpsat`: all schedules within a few stages of an anchor, the same without registers or in fewer
   stages, and the ``restrictions``: clones in lockstep, partitions of ``heuristics.partition_relaxation``. Each
   ``portfolio`` gives every attempt its own seed. Where rings may share bytes, a model lays those side by side that are
   in conflict two by two, whichever it makes them (``cpsat.sharing_constraints``). ``attempts`` packs the rings of what
   is found; where they cannot be packed, it adds a no-good cut, of few rings that are in conflict pairwise where there
   are such, and solves again (logic-based Benders decomposition). These cuts hold at every interval, and later queries
   begin with them.
4. *Bisection.* Where MinII is infeasible, whole models with disjunctive dominance cuts bisect the gap between bound and
   incumbent until little of it is left: either answer halves it, and away from the optimum both come soon.
5. *Improvement.* Each schedule is re-timed (``heuristics.retiming``): with its order fixed, the smallest II is a
   maximum cycle ratio. With the incumbent's partitions fixed, II falls by growing steps, then by bisection. Then
   large-neighbourhood search (Shaw, CP 1998) does most of the work: ``neighbourhoods`` of the incumbent keep most of
   its partitions and of its order, and CP-SAT decides the rest anew at a shorter interval. Where rings share bytes, or
   could and MinII is infeasible, every second one keeps all rings where they lie.
6. *Proofs.* Once no neighbourhood is better, the whole model decides II − 1; where that stays open, whole models raise
   the bound from below, in growing steps and then by bisection. Problems of units and dependences alone are decided on
   their core (``core_feasibility``).
7. *Among equals.* ``tie_break`` and ``heuristics.compaction`` choose a schedule of the interval found: few crossings,
   short lives, early starts. ``diagnosis`` names the binding constraint where no interval is feasible.

These steps are taken in rounds whose attempts take longer each time. No step depends on the work limit, so that a
search with a longer limit begins with exactly the steps of a shorter one, and never ends with a longer interval or a
lower bound.
From the second round on, restricted problems are searched too (fewer partitions, rings of few slots), and their
schedules are handed up: allowing more is not to give a worse plan. Where an interval is proven optimal that holds
anyhow; where the limit leaves it open it is measured, not guaranteed (``benchmarks/results/monotone.json``).

While one attempt is waited for, ``speculation`` begins the one that is likely to be next in a second thread. All limits
are work, counted alike on every machine (``work_budget``); a caller may add a deadline by a clock. Every constant and a
switch for every technique is in :mod:`warpplan.planner.values.search_params`.
"""

EXPORTS = {
    "ii_search": ("search",),
    "search_state": ("Progress",),
}
