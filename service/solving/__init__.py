"""Plans of anybody's loops: the queue in the store, the workers of a server, and the child process of each solve."""

EXPORTS = {
    "plan_queue": ("KeptPlan", "Plans", "QueueFull", "State"),
    "plan_request": ("PlanRequest",),
    "solver_process": ("GRACE_S",),
    "workers": ("Solvers",),
}
