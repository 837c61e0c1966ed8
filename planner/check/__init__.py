"""Every rule of RULES.md again, by the obvious method, from a plan and its graph alone. ``plan_check.check`` is the
entry; ``schedule_rules`` has rules 0 to 5, ``memory_rules`` 6 and 7. Imports values only: a mistake of the solver must
not hide in code that both share."""

EXPORTS = {
    "plan_check": ("check",),
}
