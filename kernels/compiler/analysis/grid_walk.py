"""Whether one program can walk over the programs of a grid, one after the other, and do the work of all of them."""

from __future__ import annotations

from warpplan.kernels.compiler.analysis.load_hazards import spins
from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module
from warpplan.kernels.compiler.ttgir.source_locations import source_line

_ORDERED = frozenset({"tt.atomic_cas", "tt.call", "ttng.cluster_arrive", "ttng.cluster_wait"})


def require_grid_walk(module: Module) -> None:
    """Raise :class:`CannotPlan` where programs of ``module``'s kernel wait for one another, which takes all of them at
    once, or where the kernel walks over its tiles by itself already."""
    function = module.function
    waiting = set(map(id, spins(function)))
    for operation in function.walk():
        if operation.name in _ORDERED or id(operation) in waiting:
            raise CannotPlan(
                "its programs cannot run one after another", operation.name, source_line(module, operation)
            )
    if _strides_over_grid(function):
        raise CannotPlan("it walks over its tiles by itself already")


def can_walk_grid(module: Module) -> bool:
    """Whether :func:`require_grid_walk` raises nothing."""
    try:
        require_grid_walk(module)
    except CannotPlan:
        return False
    return True


def _strides_over_grid(function: IrOperation) -> bool:
    """Whether a loop of the kernel starts at a program's number, or carries it on: it deals out tiles by itself."""
    numbers = {op.result for op in function.walk() if op.name == "tt.get_program_id"}
    starts: set[str] = set()
    for operation in function.walk():
        if operation.name == "scf.for":
            loop = control.read_loop(operation)
            starts |= {loop.lower, *(initial for _, initial, _, _ in loop.carried)}
        elif operation.name == "scf.while":
            starts |= {initial for _, initial, _ in control.read_while(operation).carried}
    return not numbers.isdisjoint(starts)
