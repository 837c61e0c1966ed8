"""A case on the GPU: its tensors, its kernel as Triton compiles it or under a scheme, launched and checked."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
import triton
from children import first_line
from tl_case import Case, Described, Setting, Tensors, options, source
from triton.backends.compiler import GPUTarget
from triton.tools.tensor_descriptor import TensorDescriptor

from warpplan.kernels.compiler.strategy.hopper import HopperStrategy

TARGET = GPUTarget("cuda", 90, 32)
COLD_BYTES = 192 * 2**20
"""Three times the L2 of an H200."""
HUNG_S = 4.0
NORM_ERROR, LARGEST_ERROR = 5e-3, 2e-2
"""Of bf16 results: ‖error‖ / ‖reference‖, and the largest single error over its reference's size plus the root mean
square of all. Rounding once gives 2e-3 in either."""


class Hung(Exception):
    """The GPU did not finish a launch in ``HUNG_S``; the process cannot use it any more."""


def ended(error: BaseException) -> dict[str, Any]:
    """A job's result where it raised; "fatal" where this process cannot use the GPU any more."""
    reason = first_line(error)
    if isinstance(error, Hung):
        return {"status": "hang", "reason": reason, "fatal": True}
    if "CUDA error" in str(error) or "Triton Error [CUDA]" in str(error):
        return {"status": "crash", "reason": reason, "fatal": True}
    return {"status": "refused", "reason": reason}


def compile_case(case: Case, setting: Setting, scheme: HopperStrategy | None) -> Any:
    """Triton's compiled kernel; under ``scheme`` where there is one, which sets the warps."""
    if scheme is None:
        return triton.compile(source(case, setting), target=TARGET, options=options(setting))
    from warpplan.kernels.compiler.strategy.stage_hook import compile_with

    return compile_with(source(case, setting), TARGET, options(setting), scheme)


def tensors(case: Case, seed: int) -> dict[str, torch.Tensor]:
    """Fresh random inputs; what the kernel writes is NaN until it does."""
    generator = torch.Generator("cuda").manual_seed(seed)
    made = {}
    for name, tensor in case.tensors.items():
        dtype = getattr(torch, tensor.dtype)
        if tensor.values is not None:
            made[name] = torch.tensor(tensor.values, dtype=dtype, device="cuda")
        elif tensor.poisoned:
            made[name] = torch.full(tensor.shape, float("nan"), dtype=dtype, device="cuda")
        else:
            made[name] = torch.randn(tensor.shape, generator=generator, dtype=dtype, device="cuda")
    return made


def input_sets(case: Case) -> int:
    """Input sets, enough that a set's next use finds L2 full of the others'."""
    return max(1, min(64, -(-COLD_BYTES // int(case.bytes))))


def arguments(case: Case, setting: Setting, made: Tensors) -> dict[str, Any]:
    """Every run-time argument, by parameter."""

    def value(argument: Any) -> Any:
        if isinstance(argument, Described):
            return TensorDescriptor.from_tensor(made[argument.tensor], list(argument.block))
        return made[argument] if isinstance(argument, str) else argument

    given = case.arguments(setting)
    return {p.name: value(given[p.name]) for p in case.kernel.params if not p.is_constexpr}


def direct(compiled: Any, case: Case, setting: Setting, made: Tensors) -> Callable[[], object]:
    """A launch of a compiled kernel, past Triton's own dispatch."""
    given = arguments(case, setting, made)
    values = [setting.constants[p.name] if p.is_constexpr else given[p.name] for p in case.kernel.params]
    launcher = compiled[case.grid(setting)]
    return lambda: launcher(*values)


def ordinary(case: Case, setting: Setting, made: Tensors) -> Callable[[], object]:
    """The launch that a user writes."""
    given = arguments(case, setting, made)
    launcher = case.kernel[case.grid(setting)]
    return lambda: launcher(**given, **setting.constants, num_warps=setting.warps, num_stages=setting.stages)


def allow_scratch() -> None:
    """Descriptors that a kernel makes lie in memory that its user allocates."""
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))


def wait() -> None:
    """Until the GPU is idle. Raises :class:`Hung` where it does not become so."""
    done = torch.cuda.Event()
    done.record()
    until = time.monotonic() + HUNG_S
    while not done.query():
        if time.monotonic() > until:
            raise Hung(f"the GPU was still busy after {HUNG_S:g} s")
        time.sleep(1e-3)


@functools.lru_cache(maxsize=1)
def checked(case: Case) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Inputs that are compared, and the reference's output."""
    torch.backends.cuda.matmul.allow_tf32 = False
    made = tensors(case, seed=time.time_ns() % 2**31)
    return made, case.reference(made)


def errors(case: Case, launch_on: Callable[[Tensors], Callable[[], object]]) -> tuple[float, float]:
    """(norm, largest) error of one launch into a poisoned output; infinite where it is not finite."""
    made, reference = checked(case)
    made[case.output].fill_(float("nan"))
    launch = launch_on(made)
    launch()
    wait()
    difference = made[case.output].to(reference.dtype) - reference
    size = reference.abs() + reference.square().mean(-1, keepdim=True).sqrt()  # causal attention's first rows are large
    found = (difference.norm() / reference.norm()).item(), (difference.abs() / size).max().item()
    return tuple(e if e == e else float("inf") for e in found)  # type: ignore[return-value]


def right(found: tuple[float, float]) -> bool:
    return found[0] < NORM_ERROR and found[1] < LARGEST_ERROR
