"""A kernel with its arguments, described once: tests compile it without a GPU, probes launch it with live tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from warpplan.kernels.device.epilogue import shared_layout
from warpplan.kernels.torch_types import Tensor
from warpplan.kernels.triton_compat import GluonASTSource, TensorDescriptor, gl
from warpplan.kernels.triton_types import AstSource, GluonLayout, JitFunction, KernelArgument, TmaDescriptor

Constant = int | str | bool

_TRITON_NAMES = {
    "int8": "i8",
    "int32": "i32",
    "int64": "i64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8e4nv",
}
_GLUON = {
    "int32": gl.int32,
    "bfloat16": gl.bfloat16,
    "float16": gl.float16,
    "float8_e4m3fn": gl.float8e4nv,
    "float32": gl.float32,
}


@dataclass(frozen=True)
class Pointer:
    """A global buffer of ``elements``; "normal" data is random (tensor power depends on the bits), "zeros" is zeros,
    "permutation" the numbers below ``elements`` in random order."""

    dtype: str
    elements: int
    fill: str = "zeros"

    def signature(self) -> str:
        return f"*{_TRITON_NAMES[self.dtype]}"

    def live(self) -> Tensor:
        return _tensor(self.dtype, (self.elements,), self.fill)


@dataclass(frozen=True)
class Box:
    """A TMA descriptor: boxes of ``box`` (rows, columns) over a [rows, columns] matrix, which each of a cluster's
    ``ctas`` CTAs holds whole."""

    dtype: str
    rows: int
    columns: int
    box: tuple[int, int]
    fill: str = "zeros"
    ctas: int = 1

    def layout(self) -> GluonLayout:
        return shared_layout(self.box, _GLUON[self.dtype], self.ctas)

    def signature(self) -> str:
        return f"tensordesc<{_TRITON_NAMES[self.dtype]}{list(self.box)},{self.layout()!r}>"

    def live(self) -> TmaDescriptor:
        matrix = _tensor(self.dtype, (self.rows, self.columns), self.fill)
        return TensorDescriptor.from_tensor(matrix, list(self.box), self.layout())


@dataclass(frozen=True)
class Case:
    """``arguments`` in the kernel's order: a Pointer, a Box, "i32" or "fp32" for a number given at launch."""

    kernel: JitFunction
    arguments: tuple[tuple[str, Pointer | Box | str], ...]
    constants: tuple[tuple[str, Constant], ...]
    num_warps: int
    options: tuple[tuple[str, int], ...] = field(default=())

    def signature(self) -> dict[str, str]:
        kinds = {n: a if isinstance(a, str) else a.signature() for n, a in self.arguments}
        return kinds | {name: "constexpr" for name, _ in self.constants}

    def source(self) -> AstSource:
        """What Triton compiles, specialised as a launch would be; no GPU is touched."""
        names = [name for name, _ in self.arguments]
        aligned = {
            (names.index(name),): [["tt.divisibility", 16]] for name, a in self.arguments if isinstance(a, Pointer)
        }  # fmt: skip
        return GluonASTSource(self.kernel, self.signature(), dict(self.constants), aligned)

    def compile_options(self) -> dict[str, int]:
        return {"num_warps": self.num_warps, **dict(self.options)}

    def live(self) -> Live:
        return Live(self, {n: a.live() for n, a in self.arguments if not isinstance(a, str)})


@dataclass(frozen=True)
class Live:
    """A case whose buffers are allocated on the current GPU."""

    case: Case
    buffers: Mapping[str, KernelArgument]

    def launch(self, blocks: int, **numbers: float) -> None:
        """Start ``blocks`` blocks; ``numbers`` are the arguments that have no buffer."""
        arguments = [self.buffers[n] if n in self.buffers else numbers[n] for n, _ in self.case.arguments]
        self.case.kernel[(blocks,)](*arguments, **dict(self.case.constants), **self.case.compile_options())


def _tensor(dtype: str, shape: tuple[int, ...], fill: str) -> Tensor:
    import torch

    kind = getattr(torch, dtype)
    if fill == "permutation":
        return torch.randperm(shape[0], device="cuda", dtype=kind)
    if fill == "normal":
        return torch.randn(shape, device="cuda", dtype=torch.float32 if kind.itemsize == 1 else kind).to(kind)
    return torch.zeros(shape, device="cuda", dtype=kind)
