"""One plain kernel at one shape: arguments declared once, for a signature without a GPU and for tensors with one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from triton.compiler import ASTSource

SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "int32": "i32"}
Tensors = Mapping[str, Any]


@dataclass(frozen=True)
class Tensor:
    """A contiguous tensor: random normal values, the given ones, or NaN where the kernel is to write."""

    shape: tuple[int, ...]
    dtype: str = "bfloat16"
    values: tuple[int, ...] | None = None
    poisoned: bool = False


@dataclass(frozen=True)
class Described:
    """A host-made TMA descriptor of a tensor."""

    tensor: str
    block: tuple[int, ...]


@dataclass(frozen=True)
class Setting:
    """One choice of a careful user: the kernel's constexprs, warps and pipeline stages."""

    constants: Mapping[str, Any]
    warps: int
    stages: int

    @property
    def tile(self) -> tuple[tuple[str, Any], ...]:
        """The constexprs: what a planned and an unplanned run share."""
        return tuple(self.constants.items())

    def __str__(self) -> str:
        blocks = "x".join(str(v) for k, v in self.constants.items() if k.startswith("BLOCK"))
        return f"{blocks}, {self.warps} warps, {self.stages} stages"


@dataclass(frozen=True, eq=False)
class Case:
    """One kernel at one shape.

    ``arguments`` gives, for a setting, each run-time parameter: a tensor's name, a :class:`Described` one, or a number.
    ``reference`` computes ``output`` from the tensors in fp32 or better; ``peers`` make a launch each. ``slot`` is the
    bytes that one iteration of the innermost loop loads by TMA, 0 where nothing can be specialised; ``resident`` is
    shared memory besides the rings: loads before the loop, the store's staging.
    """

    name: str
    kernel: Any
    tensors: Mapping[str, Tensor]
    arguments: Callable[[Setting], Mapping[str, Any]]
    grid: Callable[[Setting], tuple[int, int, int]]
    settings: tuple[Setting, ...]
    output: str
    reference: Callable[[Tensors], Any]
    flops: float
    bytes: float
    peers: Mapping[str, Callable[[Tensors], Callable[[], object]]] = field(default_factory=dict)
    slot: Callable[[Setting], int] = lambda _: 0
    resident: Callable[[Setting], int] = lambda _: 0
    family: str = ""


def source(case: Case, setting: Setting) -> Any:
    """The specialisation that Triton's own launcher would compile: numbers of 1 and multiples of 16 are known."""
    signature: dict[str, str] = {}
    constants: dict[tuple[int], Any] = {}
    attributes: dict[tuple[int], Any] = {}
    arguments = case.arguments(setting)
    for index, parameter in enumerate(case.kernel.params):
        name = parameter.name
        if parameter.is_constexpr:
            signature[name], constants[(index,)] = "constexpr", setting.constants[name]
            continue
        value = arguments[name]
        if isinstance(value, Described):
            element = SHORT[case.tensors[value.tensor].dtype]
            signature[name] = f"tensordesc<{element}[{', '.join(map(str, value.block))}]>"
        elif isinstance(value, str):
            signature[name] = f"*{SHORT[case.tensors[value].dtype]}"
            attributes[(index,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif value == 1:
            signature[name], constants[(index,)] = "constexpr", 1
        else:
            signature[name] = "i32"
            if value % 16 == 0:
                attributes[(index,)] = [["tt.divisibility", 16]]
    return ASTSource(case.kernel, signature, constants, attributes)


def options(setting: Setting) -> dict[str, int]:
    return {"num_warps": setting.warps, "num_stages": setting.stages}
