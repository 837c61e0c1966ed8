"""The constraint model of one initiation interval for CP-SAT, and the one way to run it.

``lean_model``, ``literals`` and ``variables`` come first; a module for each family of constraints imports only the last
two: dependences, units and issue, rings, shared memory, registers. ``interval_model`` puts them together; ``runner``
runs any model with one worker, a named seed and a limit in deterministic time.
"""

EXPORTS = {
    "interval_model": ("IntervalModel",),
    "lean_model": ("LeanModel",),
    "literals": ("negated", "Truth"),
    "runner": ("Answer", "DecisionRule", "run", "SearchSeed", "spent", "Stop"),
    "sharing_constraints": ("keep_layout", "no_good_cut", "NoGoodCut"),
    "work_budget": ("RunSettings", "solve_model", "WorkBudget"),
}
