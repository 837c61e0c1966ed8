"""The exact planner's search for the smallest initiation interval (II), its schedule and its partitions.

The problem is modulo scheduling with warp partitions, rings of buffers and registers (RULES.md numbers its rules). The
method, in the order in which a solve goes through it:

1. *Lower bound.* MinII = max(ResMII, RecMII) (Rau 1994) and memory bounds come from :mod:`warpplan.planner.bounds`;
2. *First incumbent.* ``ii_search`` drives a bidirectional search: feasibility is monotone in II, so schedules bound the
   optimum from above and proofs from below. ``heuristics.list_scheduling`` (iterative modulo scheduling, Rau 1994, on
   intervals, with squeaky-wheel restarts) tries the partitions of ``heuristics.partition_heuristics``; where it fails,
   feasibility queries follow, at the bound and then at intervals in growing steps above it.
3. *Feasibility queries.* ``feasibility_query`` makes windowed CP-SAT attempts on the models of
   :mod:`warpplan.planner.cpsat`: all schedules within a few stages of an anchor, the same without registers, and the
   ``restrictions``: clones in lockstep, partitions of ``heuristics.partition_relaxation``. Each ``portfolio`` gives
   every attempt its own seed. ``attempts`` packs the rings of what is found, and adds a no-good cut and solves again
   where they cannot be packed (logic-based Benders decomposition).
4. *Improvement.* Each schedule is re-timed (``heuristics.retiming``): with its order fixed, the smallest II is a
   maximum cycle ratio. With the incumbent's partitions fixed, II falls by growing steps, then by bisection. What a
   proof then leaves open goes to large-neighbourhood search (Shaw, CP 1998): ``neighbourhoods`` of the incumbent keep
   most of its partitions and of its order, and CP-SAT decides the rest anew at a shorter interval.
5. *Proofs.* Whether II − 1 is feasible is decided by the whole model with disjunctive dominance cuts; where that stays
   open, bisection raises the bound. Problems of units and dependences alone are decided on their core
   (``core_feasibility``).
6. *Among equals.* ``tie_break`` and ``heuristics.compaction`` choose a schedule of the interval found: few crossings,
   short lives, early starts. ``diagnosis`` names the binding constraint where no interval is feasible.

These steps are taken in rounds whose shares of work grow. No share depends on the work limit, so that a search with a
longer limit begins with exactly the steps of a shorter one, and never ends with a longer interval or a lower bound.
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
