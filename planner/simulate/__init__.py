"""The plan played cycle by cycle, with its barriers. ``plan_program`` makes a ``program`` of a plan, ``event_loop``
plays it, ``slot_hazards`` judges what was played; ``steady_state`` retimes a long plan to one stage. ``simulation`` is
the entry: ``simulate`` gives a time line, ``verify`` the first thing that is wrong."""

EXPORTS = {
    "simulation": ("simulate", "steady_ii", "verify"),
}
