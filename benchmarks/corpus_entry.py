"""What an entry of the corpus is: a kernel with its usual autotune list, what it is compiled for, what right means.

The same description gives a signature without a GPU (:func:`source`) and tensors with one (``corpus_launch.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from triton.compiler import ASTSource
from triton.runtime.autotuner import Autotuner, Heuristics

AFFINE, BLOCK, HOST, DEVICE, GATHERED = STYLES = (
    "affine pointer", "block pointer", "host descriptor", "device descriptor", "gathered",
)  # fmt: skip
"""How a kernel's loop loads its operands: by addresses that are linear in row and column, by ``tl.make_block_ptr``, by
descriptors made on the host or in the kernel, or, at least one operand, by addresses that are looked up in a table or
found by division."""
ELEMENTS = {
    "bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float8_e4m3fn": "fp8e4nv", "int8": "i8", "uint8": "u8",
    "int32": "i32", "int64": "i64",
}  # fmt: skip
"""Triton's names of torch's element types."""
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8e4nv": 1, "i8": 1, "u8": 1, "i32": 4, "i64": 8}
TUNERS = (Autotuner, Heuristics)
ALIGNED = [["tt.divisibility", 16]]
Sizes = Mapping[str, int]
Constants = Mapping[str, Any]
Tensors = Mapping[str, Any]


@dataclass(frozen=True)
class Tensor:
    """``fill``: "normal" (times ``scale``), "uniform" in [0, 1) times ``scale``, "zero", "nan" for what the kernel
    writes, "integers" from ``low`` to ``high`` exclusive, or "values", which ``values`` gives in row-major order.
    ``pad`` elements lie between a row's end and the next row."""

    shape: tuple[int, ...]
    dtype: str = "bfloat16"
    fill: str = "normal"
    scale: float = 1.0
    low: int = 0
    high: int = 0
    values: Callable[[], Sequence[int]] | None = None
    pad: int = 0

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        strides, step = [], 1
        for size in reversed(self.shape):
            strides.append(step)
            step = step * size + (self.pad if len(strides) == 1 and len(self.shape) > 1 else 0)
        return tuple(reversed(strides))

    @property
    def bytes(self) -> int:
        return self.strides[0] * self.shape[0] * BYTES[ELEMENTS[self.dtype]]


def table(values: Callable[[], Sequence[int]], *shape: int, dtype: str = "int32") -> Tensor:
    """Whole numbers that a kernel looks up."""
    return Tensor(shape, dtype, "values", values=values)


def output(*shape: int, dtype: str = "bfloat16") -> Tensor:
    return Tensor(shape, dtype, "nan")


@dataclass(frozen=True)
class Stride:
    """An argument: the stride of ``tensor`` along ``axis``, in elements."""

    tensor: str
    axis: int


@dataclass(frozen=True)
class Box:
    """An argument: a host-made descriptor of ``tensor``, its block in numbers and names of constexprs."""

    tensor: str
    block: tuple[int | str, ...]

    def sizes(self, constants: Constants) -> tuple[int, ...]:
        return tuple(constants[size] if isinstance(size, str) else size for size in self.block)


def strides(tensor: str, prefix: str, letters: str) -> dict[str, Stride]:
    """``strides("a", "stride_a", "mk")``: the arguments ``stride_am`` and ``stride_ak``."""
    return {f"{prefix}{letter}": Stride(tensor, axis) for axis, letter in enumerate(letters)}


Argument = str | int | float | None | Stride | Box
"""A run-time argument: a tensor's name, a number, a stride, a descriptor; ``None`` for an optional pointer."""


@dataclass(frozen=True)
class Problem:
    """One kernel at one shape and dtype.

    ``constants`` are the constexprs that no configuration gives. ``grid`` takes the constants of a configuration with
    them. ``reference`` computes the outputs named in ``outputs`` from the inputs, in fp32. ``peers`` make launches.
    """

    tensors: Mapping[str, Tensor]
    arguments: Mapping[str, Argument]
    grid: Callable[[Any], tuple[int, ...]]
    outputs: tuple[str, ...]
    reference: Callable[[Tensors], Any]
    constants: Constants = field(default_factory=dict)
    flops: float = 0.0
    peers: Mapping[str, Callable[[Tensors], Callable[[], object]]] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Of all tensors, once."""
        return sum(tensor.bytes for tensor in self.tensors.values())

    def padded(self, pads: Mapping[str, int]) -> Problem:
        """The same with gaps between the rows of some tensors."""
        return replace(self, tensors={n: replace(t, pad=pads.get(n, 0)) for n, t in self.tensors.items()})


@dataclass(frozen=True, eq=False)
class Entry:
    """``kernel`` is an autotuned one (then ``plain_configs`` is empty) or a jitted one with a plain list. ``sizes`` are
    those of the benchmark; ``choices`` what the soak draws each from, smallest first; ``padded`` the tensors all of
    whose strides are arguments. ``tolerance`` is ‖error‖ / ‖reference‖."""

    name: str
    family: str
    style: str
    kernel: Any
    sizes: Sizes
    build: Callable[[Mapping[str, int], str], Problem]
    choices: Mapping[str, tuple[int, ...]]
    dtypes: tuple[str, ...]
    has_dot: bool
    plain_configs: tuple[Any, ...]
    padded: tuple[str, ...]
    tolerance: float

    @property
    def jit(self) -> Any:
        """The ``JITFunction`` under autotune and heuristics."""
        found = self.kernel
        while isinstance(found, TUNERS):
            found = found.fn
        return found

    @property
    def configs(self) -> tuple[Any, ...]:
        """The list of ``triton.Config``."""
        return self.plain_configs or tuple(self.kernel.configs)

    def problem(self, sizes: Sizes | None = None, dtype: str = "") -> Problem:
        return self.build({**self.sizes, **(sizes or {})}, dtype or self.dtypes[0])

    @property
    def smallest(self) -> dict[str, int]:
        """The first choice of each size."""
        return {**self.sizes, **{name: choices[0] for name, choices in self.choices.items()}}

    def constants(self, problem: Problem, config: Any) -> dict[str, Any]:
        """Every constexpr: the configuration's, the problem's, what ``@triton.heuristics`` computes, defaults."""
        given = {p.name: p.default for p in getattr(self.jit, "params", ()) if p.is_constexpr and p.has_default}
        given |= {**problem.constants, **config.kwargs}
        layer = self.kernel
        while isinstance(layer, TUNERS):
            for name, compute in getattr(layer, "values", {}).items():
                given[name] = compute({**resolved(problem), **given})
            layer = layer.fn
        return given


def entry(
    kernel: Any, style: str, sizes: Sizes, *, family: str, choices: Mapping[str, tuple[int, ...]],
    dtypes: tuple[str, ...] = ("bfloat16",), has_dot: bool = True, configs: Sequence[Any] = (),
    padded: tuple[str, ...] = (), tolerance: float = 1e-2,
) -> Callable[[Callable[[Mapping[str, int], str], Problem]], Entry]:  # fmt: skip
    """Makes an :class:`Entry` of the function that describes the kernel's problem, under that function's name."""

    def made(build: Callable[[Mapping[str, int], str], Problem]) -> Entry:
        return Entry(
            build.__name__, family, style, kernel, sizes, build, choices, dtypes, has_dot, tuple(configs), padded,
            tolerance,
        )  # fmt: skip

    return made


def resolved(problem: Problem) -> dict[str, Any]:
    """The arguments with the strides as numbers."""
    return {
        name: problem.tensors[value.tensor].strides[value.axis] if isinstance(value, Stride) else value
        for name, value in problem.arguments.items()
    }


def source(entry: Entry, problem: Problem, config: Any) -> ASTSource:
    """The specialisation that Triton's own launcher would compile: numbers of 1 and multiples of 16 are known."""
    signature: dict[str, str] = {}
    constants: dict[tuple[int], Any] = {}
    attributes: dict[tuple[int], Any] = {}
    values, given = entry.constants(problem, config), resolved(problem)
    for index, parameter in enumerate(entry.jit.params):
        name = parameter.name
        value = values[name] if parameter.is_constexpr else given[name]
        if parameter.is_constexpr or value is None or (not isinstance(value, float) and value == 1):
            signature[name], constants[(index,)] = "constexpr", value
        elif isinstance(value, Box):
            box = ", ".join(map(str, value.sizes(values)))
            signature[name] = f"tensordesc<{ELEMENTS[problem.tensors[value.tensor].dtype]}[{box}]>"
        elif isinstance(value, str):
            signature[name], attributes[(index,)] = f"*{ELEMENTS[problem.tensors[value].dtype]}", ALIGNED
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32" if abs(value) < 2**31 else "i64"
            if value % 16 == 0:
                attributes[(index,)] = ALIGNED
    return ASTSource(entry.jit, signature, constants, attributes)


def options(config: Any) -> dict[str, Any]:
    """Triton's compile options of a configuration."""
    given = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    return given if config.maxnreg is None else {**given, "maxnreg": config.maxnreg}


def whole_grid(entry: Entry, problem: Problem, constants: Constants) -> tuple[int, int, int]:
    """The grid in three dimensions: a compiled kernel's launcher reads all, and only Triton's dispatch adds them."""
    grid = tuple(problem.grid(constants))
    if not 1 <= len(grid) <= 3 or min(grid) < 1:
        raise ValueError(
            f"grid of {entry.name}: {grid}, expected one to three dimensions of at least 1; see its problem's grid"
        )
    x, y, z = (*grid, 1, 1)[:3]
    return x, y, z


def cdiv(a: int, b: int) -> int:
    return -(-a // b)
