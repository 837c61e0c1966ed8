"""One program an SM, or a few, walk over all programs of the grid, so that loads run ahead across tiles.

    for round in range(rounds): the kernel, its program ids computed from the program that this one has in the round

The producer then loads the next tile while the consumers store this one. A round hands out as many programs as were
launched, every second one in reverse (boustrophedon): where programs take longer from one to the next, as tiles under a
causal mask do, whoever has a long one then has a short one. Dealt out in one direction, with 32 tiles of 128 heads on
132 SMs, the busiest SM works 12 % longer than the mean, so 3 %. The kernel takes the grid it was launched for
as three more arguments, and is launched on as many programs as run at once; :func:`launched` does both.
"""

from __future__ import annotations

import copy

from warpplan.kernels.compiler.analysis.grid_walk import require_grid_walk
from warpplan.kernels.compiler.lowering.hopper.load_rings import WALK
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.functions import arguments
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module, Region, tokenize
from warpplan.kernels.compiler.ttgir.parsing import parse_operation
from warpplan.kernels.triton_types import CompiledKernel, KernelArgument

GRID = ("%wp_grid_x", "%wp_grid_y", "%wp_grid_z")
MARK = "warpplan_persistent"
"""Field of a compiled kernel's metadata: the programs that are launched on each SM, 0 for those of the grid."""
_AXES = ("x", "y", "z")
_MOVABLE = ("arith.", "tt.splat", "tt.make_range", "tt.make_tensor_descriptor")


def walking(module: Module) -> IrOperation:
    """The kernel of ``module`` as one that walks over the grid, its names unique.

    Raises what :func:`require_grid_walk` does.
    """
    require_grid_walk(module)
    function = module.function
    body = function.regions[0].operations
    outside = set(arguments(function))
    before: list[IrOperation] = []
    inside: list[IrOperation] = []
    for operation in body:
        if operation.name == "tt.return":
            continue
        if _is_movable(operation) and outside.issuperset(operation.operands):
            before.append(operation)
            outside.update(operation.defined)
        else:
            inside.append(_of_grid(operation))
    head = [
        "%wp_none = arith.constant 0 : i32",
        "%wp_one = arith.constant 1 : i32",
        "%wp_first = tt.get_program_id x : i32",
        "%wp_launched = tt.get_num_programs x : i32",
        f"%wp_plane = arith.muli {GRID[0]}, {GRID[1]} : i32",
        f"%wp_programs = arith.muli %wp_plane, {GRID[2]} : i32",
        "%wp_highest = arith.subi %wp_launched, %wp_one : i32",
        "%wp_from_end = arith.subi %wp_highest, %wp_first : i32",
        # Every round but the last has a program for each.
        "%wp_whole = arith.divsi %wp_programs, %wp_launched : i32",
        "%wp_left = arith.remsi %wp_programs, %wp_launched : i32",
        *_within("last", "%wp_whole"),
        "%wp_has_last = arith.cmpi slt, %wp_within_last, %wp_left : i32",
        "%wp_more = arith.extui %wp_has_last : i1 to i32",
        "%wp_rounds = arith.addi %wp_whole, %wp_more : i32",
    ]
    place = [
        *_within("now", "%wp_round"),
        "%wp_before = arith.muli %wp_round, %wp_launched : i32",
        "%wp_program = arith.addi %wp_before, %wp_within_now : i32",
        f"%wp_id_x = arith.remsi %wp_program, {GRID[0]} : i32",
        f"%wp_row = arith.divsi %wp_program, {GRID[0]} : i32",
        f"%wp_id_y = arith.remsi %wp_row, {GRID[1]} : i32",
        f"%wp_id_z = arith.divsi %wp_row, {GRID[1]} : i32",
    ]
    loop = control.ForLoop(
        "%wp_round", "%wp_none", "%wp_rounds", "%wp_one", [], "i32", {WALK: ""},
        Region([*map(parse_operation, place), *inside]), function.location,
    )  # fmt: skip
    walk, _ = control.write_loop(loop, "%wp_walk")
    region = Region([*before, *map(parse_operation, head), walk, IrOperation("tt.return")], function.regions[0].label)
    return IrOperation(function.name, function.results, _with_grid(function, region), function.location)


def _is_movable(operation: IrOperation) -> bool:
    """Whether ``operation`` may be done once, before the walk: a pointer's shift, as of a descriptor's base, too."""
    shifts = operation.name == "tt.addptr" and "tensor<" not in operation.signature
    return shifts or operation.name.startswith(_MOVABLE)


def walked_over(first: int, launched: int, programs: int) -> list[int]:
    """Which of a grid's ``programs``, in order, number ``first`` of those ``launched`` walks over."""
    within = (first, launched - 1 - first)
    found = [start + within[number % 2] for number, start in enumerate(range(0, programs, launched))]
    return [program for program in found if program < programs]


def _within(stem: str, number: str) -> list[str]:
    """``%wp_within_<stem>``: which program of round ``number`` this one has."""
    return [
        f"%wp_parity_{stem} = arith.andi {number}, %wp_one : i32",
        f"%wp_forward_{stem} = arith.cmpi eq, %wp_parity_{stem}, %wp_none : i32",
        f"%wp_within_{stem} = arith.select %wp_forward_{stem}, %wp_first, %wp_from_end : i32",
    ]


def launched(kernel: CompiledKernel) -> CompiledKernel:
    """``kernel``; one that walks over the grid is launched on as many programs as run at once."""
    programs = int(getattr(kernel.metadata, MARK, 0))
    if not programs:
        return kernel
    kernel.src = copy.copy(kernel.src)
    kernel.src.signature = {**kernel.src.signature, **dict.fromkeys((name[1:] for name in GRID), "i32")}
    prepare = kernel._init_handles

    def _init_handles() -> None:
        if kernel.module is not None:
            return
        prepare()
        launch, resident = kernel._run, programs * _multiprocessors()

        def run(x: int, y: int, z: int, *rest: KernelArgument) -> object:
            return launch(min(x * y * z, resident), 1, 1, *rest, x, y, z)

        kernel._run = run

    kernel._init_handles = _init_handles
    return kernel


def _multiprocessors() -> int:
    from triton.runtime.driver import driver

    active = driver.active
    return int(active.utils.get_device_properties(active.get_current_device())["multiprocessor_count"])


def _of_grid(operation: IrOperation) -> IrOperation:
    """A copy whose program ids and counts, at any depth, are those of the grid that was asked for."""
    for axis, name in zip(_AXES, GRID, strict=True):
        if operation.name in ("tt.get_program_id", "tt.get_num_programs") and axis in operation.tokens:
            value = f"%wp_id_{axis}" if operation.name == "tt.get_program_id" else name
            text = f"{operation.result} = arith.addi {value}, %wp_none : i32"
            made = parse_operation(text)
            made.location = operation.location
            return made
    new = IrOperation(operation.name, operation.results, list(operation.parts), operation.location)
    new.parts = [
        Region([_of_grid(inner) for inner in part.operations], part.label) if isinstance(part, Region) else part
        for part in operation.parts
    ]
    return new


def _with_grid(function: IrOperation, body: Region) -> list[str | Region]:
    """The parts of ``function`` with three more arguments and another body."""
    parts: list[str | Region] = []
    depth, done = 0, False
    for part in function.parts:
        if isinstance(part, Region):
            parts.append(body)
            continue
        depth += (part == "(") - (part == ")")
        if part == ")" and depth == 0 and not done:
            comma = ", " if arguments(function) else ""
            parts += tokenize(comma + ", ".join(f"{name}: i32 loc(unknown)" for name in GRID))
            done = True
        parts.append(part)
    return parts
