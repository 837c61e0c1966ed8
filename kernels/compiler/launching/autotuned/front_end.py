"""A configuration as far as Triton's front end takes it: the module's text, packed for a child, before any pass.

The front end needs the user's Python and so this process; everything after it needs the text alone. Source and
options are those of Triton's own run, so that what a child compiles of the text is found in Triton's cache under the
kernel's own key.
"""

from __future__ import annotations

from dataclasses import dataclass

from warpplan.kernels.compiler.costing.whole_launch import LaunchSize, launch_bound
from warpplan.kernels.compiler.launching.dispatch import Call
from warpplan.kernels.compiler.launching.packed import pack_source
from warpplan.kernels.compiler.pipeline.cutting import new_context
from warpplan.kernels.compiler.sizes.loop_trips import trip_counts
from warpplan.kernels.compiler.ttgir.ir import MalformedIR
from warpplan.kernels.compiler.ttgir.parsing import parse
from warpplan.kernels.triton_types import (
    AstSource,
    GpuTarget,
    JitFunction,
    Json,
)
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile

KNOBS = ("instrumentation_mode", "fpsan_homomorphic_casts")
"""What ``JITFunction.run`` adds to a compile's options from Triton's knobs, as far as a release has it."""
Numbers = dict[str, int | tuple[int, ...]]


@dataclass(frozen=True)
class FrontEnd:
    """``packed`` as :mod:`~warpplan.kernels.compiler.launching.packed` has kernels, not yet compiled; ``numbers`` are
    the launch's whole numbers by argument; ``bound_us`` what the configuration takes at least."""

    packed: dict[str, Json]
    numbers: Numbers
    grid: tuple[int, ...]
    bytes: int
    bound_us: float


def front_end(call: Call, profile: Profile, device: Device) -> FrontEnd:
    """Take ``call`` through the front end. Raises what the front end raises for a kernel that does not compile, and
    :class:`CannotPlan` for one that cannot be packed or that nothing can be planned in."""
    source, target, options = _source(call)
    from triton.compiler import make_backend

    backend = make_backend(target)
    parsed = backend.parse_options(dict(options))
    context = new_context(backend)
    module = source.make_ir(
        target, parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), context
    )
    packed = pack_source(source, target, dict(options), str(module))
    inlined = str(backend.make_ttir(module, {}, parsed, backend._parse_arch(parsed.arch)))
    numbers = _numbers(call)
    try:
        function = parse(inlined).function
        trips = trip_counts(function, numbers, call.grid)
        bound = launch_bound(function, LaunchSize(_programs(call.grid), trips), profile, device)
    except (AssertionError, IndexError, KeyError, StopIteration, ValueError, MalformedIR):
        bound = 0.0  # forms that are not read here: nothing is known, and the configuration stays
    return FrontEnd(packed, numbers, call.grid, _bytes(call), bound)


def launch_size(text: str, numbers: Numbers, grid: tuple[int, ...], size_bytes: int) -> LaunchSize:
    """The launch of the kernel ``text``. ``numbers`` and ``grid`` as :class:`FrontEnd` has them, or read from JSON."""
    given = {name: tuple(value) if isinstance(value, (list, tuple)) else value for name, value in numbers.items()}
    return LaunchSize(_programs(tuple(grid)), trip_counts(parse(text).function, given, tuple(grid)), size_bytes)


def _source(call: Call) -> tuple[AstSource, GpuTarget, dict[str, Json]]:
    """What Triton would compile for ``call``: source, target and options, as ``JITFunction.run`` makes them."""
    from triton import knobs

    jit: JitFunction = call.jit
    _, _, target, backend, _ = jit.device_caches[call.device]
    given = {name: getattr(knobs.compilation, name) for name in KNOBS if hasattr(knobs.compilation, name)}
    options, signature, constants, attributes = jit._pack_args(
        backend, {**call.options, **given}, call.arguments, call.specialization, None
    )
    return jit.ASTSource(jit, signature, constants, attributes), target, dict(options.__dict__)


def _numbers(call: Call) -> Numbers:
    """The whole numbers of the launch; of descriptors their shapes and strides."""
    found: Numbers = {}
    for name, value in call.arguments.items():
        if type(value) is int:
            found[name] = value
        elif hasattr(value, "block_shape"):
            found[name] = (*map(int, value.shape), *map(int, value.strides))
    return found


def _programs(grid: tuple[int, ...]) -> int:
    programs = 1
    for size in grid:
        programs *= size
    return programs


def _bytes(call: Call) -> int:
    """Of the tensors that are passed, each once, as far as they say."""
    found: dict[int, int] = {}
    for value in call.arguments.values():
        tensor = getattr(value, "base", value)
        shape, dtype = getattr(tensor, "shape", None), getattr(tensor, "dtype", None)
        size = getattr(dtype, "itemsize", None)
        if tensor is not None and shape is not None and size is not None and hasattr(tensor, "data_ptr"):
            count = 1
            for length in shape:
                count *= int(length)
            found[tensor.data_ptr()] = max(found.get(tensor.data_ptr(), 0), count * int(size))
    return sum(found.values())
