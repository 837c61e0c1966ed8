"""Plans of anybody's loops: the queue in the store, the workers of a server, and the child process of each solve."""

EXPORTS = {
    "plan_queue": ("KeptPlan", "PlanRequest", "Plans", "QueueFull", "State"),
    "solver_process": ("GRACE_S",),
    "workers": ("Solvers",),
}
