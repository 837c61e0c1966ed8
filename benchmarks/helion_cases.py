"""Kernels of Helion's public examples at fixed sizes: as a consumer of ``--target helion``, and on a GPU's tensors.

``HELION_EXAMPLES`` names the folder with the examples (``attention.py``, ``rms_norm.py``, …) as Helion's repository has
them, and in ``readme.py`` the product of its README: that of the examples takes a function, and Helion's key then
holds an address. ``helion_cases.py:calls`` is a function as ``warpplan export --consumer`` takes it.
"""

from __future__ import annotations

import importlib.util
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SEED = 29
SIZES = (512, 1024, 2048, 4096, 8192)
LEAST_FLOPS, MOST_FLOPS = 2**34, 2**39
"""Of a product."""
LEAST_ELEMENTS, MOST_ELEMENTS = 2**24, 2**27
"""Of a tensor of a kernel that is bound by memory: 32 to 256 MiB."""
TRAIN = 2
"""The first cases of a kernel; the others are held out. Kernels with one case are."""
COUNTS = {
    "matmul": 6, "attention_output": 3, "causal_attention_output": 3, "rms_norm_fwd": 3, "softmax_two_pass": 3,
    "geglu": 1, "fp8_gemm": 1, "helion_gdn_fwd_h": 1,
}  # fmt: skip
FILES = {
    "matmul": "readme", "attention_output": "attention", "causal_attention_output": "attention",
    "rms_norm_fwd": "rms_norm", "softmax_two_pass": "softmax", "helion_gdn_fwd_h": "gdn_fwd_h",
}  # fmt: skip
"""Where a file has another name than its kernel."""


@dataclass(frozen=True)
class HelionCase:
    """A kernel and its sizes: rows, columns, depth of a product; batch, heads, length, dimension of attention; rows and
    columns of the others; batch, heads, length, chunk, dimensions of keys and values of the recurrence."""

    kernel: str
    index: int
    sizes: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.kernel}_{self.index}"

    @property
    def split(self) -> str:
        return "train" if self.index < TRAIN and COUNTS[self.kernel] > TRAIN else "heldout"

    @property
    def has_product(self) -> bool:
        return any(word in self.kernel for word in ("matmul", "gemm", "attention", "gdn"))


def drawn(kernel: str) -> list[tuple[int, ...]]:
    """The sizes of a kernel's cases, none twice."""
    rng = random.Random(f"{SEED}:{kernel}")
    found: list[tuple[int, ...]] = []
    while len(found) < COUNTS[kernel]:
        if kernel in ("matmul", "fp8_gemm"):
            sizes: tuple[int, ...] = rng.choice(SIZES), rng.choice(SIZES), rng.choice(SIZES)
            fits = LEAST_FLOPS <= 2 * sizes[0] * sizes[1] * sizes[2] <= MOST_FLOPS
        elif "attention" in kernel:
            sizes = rng.choice((1, 2, 4)), rng.choice((8, 16, 32)), rng.choice(SIZES[1:]), rng.choice((64, 128))
            fits = LEAST_FLOPS <= 4 * sizes[0] * sizes[1] * sizes[2] ** 2 * sizes[3] <= MOST_FLOPS
        elif kernel == "helion_gdn_fwd_h":
            sizes, fits = (4, 32, 4096, 64, 128, 128), True
        else:
            sizes = rng.choice((2048, 4096, 8192, 16384)), rng.choice((1024, 2048, 4096, 8192, 12288))
            fits = LEAST_ELEMENTS <= sizes[0] * sizes[1] <= MOST_ELEMENTS
        if fits and sizes not in found:
            found.append(sizes)
    return found


CASES = {
    case.name: case
    for kernel in COUNTS
    for case in (HelionCase(kernel, index, sizes) for index, sizes in enumerate(drawn(kernel)))
}


@cache
def kernel_of(case: HelionCase) -> Any:
    """Helion's kernel, from the file of the examples."""
    name = FILES.get(case.kernel, case.kernel)
    path = Path(os.environ["HELION_EXAMPLES"]) / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"helion_example_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, case.kernel)


def arguments(case: HelionCase) -> tuple[Any, ...]:
    """Random, in bfloat16 or float8_e4m3fn; gates below 1 and keys of unit length, so that states stay finite."""
    import torch

    def normal(*sizes: int) -> Any:
        return torch.randn(sizes, device="cuda", dtype=torch.bfloat16)

    if case.kernel in ("matmul", "fp8_gemm"):
        rows, columns, depth = case.sizes
        operands = normal(rows, depth), normal(depth, columns)
        return operands if case.kernel == "matmul" else tuple(each.to(torch.float8_e4m3fn) for each in operands)
    if "attention" in case.kernel:
        return normal(*case.sizes), normal(*case.sizes), normal(*case.sizes)
    if case.kernel == "helion_gdn_fwd_h":
        batch, heads, length, chunk, keys, values = case.sizes
        gates = torch.nn.functional.logsigmoid(torch.randn((batch, length, heads), device="cuda") + 3.0)
        scale = keys**-0.5
        k, w = normal(batch, length, heads, keys) * scale, normal(batch, length, heads, keys) * scale
        return k, w, normal(batch, length, heads, values), gates, chunk
    if case.kernel == "rms_norm_fwd":
        return normal(*case.sizes), normal(case.sizes[1])
    return (normal(*case.sizes), normal(*case.sizes)) if case.kernel == "geglu" else (normal(*case.sizes),)


def calls() -> None:
    """Calls every case once."""
    for case in CASES.values():
        kernel_of(case)(*arguments(case))


def peer(case: HelionCase, given: Sequence[Any]) -> Callable[[], Any] | None:
    """The same by torch's own kernels, where it has one."""
    import torch
    from torch.nn import functional

    if case.kernel == "matmul":
        return lambda: given[0] @ given[1]
    if "attention" in case.kernel:
        causal = case.kernel.startswith("causal")
        return lambda: functional.scaled_dot_product_attention(*given, is_causal=causal)
    if case.kernel == "rms_norm_fwd":
        return lambda: functional.rms_norm(given[0], (case.sizes[1],), given[1], eps=1e-5)
    if case.kernel == "softmax_two_pass":
        return lambda: torch.softmax(given[0], dim=1)
    return None
