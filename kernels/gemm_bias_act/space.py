"""What a fused epilogue does to a matrix product, and which configurations of the GEMM can do it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from warpplan.kernels.gemm.space import GemmConfig, Shape
from warpplan.kernels.gemm.space import violations as gemm_violations
from warpplan.planner.errors import InvalidConfig, UnknownName
from warpplan.planner.values.device import Device

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu", "swiglu")
ELEMENT_BYTES = {"bfloat16": 2, "float16": 2}
MIN_COLUMNS = 16
"""Of a chunk as it is stored: the narrowest box of 16-bit elements that has a swizzle, 32 bytes."""


@dataclass(frozen=True)
class FusedEpilogue:
    """C = activation(A·Bᵀ + bias) + residual. SwiGLU takes columns in pairs, gate and value, and C has half of them."""

    activation: str = "none"
    bias: bool = False
    residual: bool = False

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise UnknownName("activation", self.activation, ACTIVATIONS)

    @property
    def halves(self) -> bool:
        """Whether C has half the columns of the product."""
        return self.activation == "swiglu"


def violations(
    config: GemmConfig, dtype: str, device: Device, epilogue: FusedEpilogue, shape: Shape | None = None
) -> tuple[str, ...]:
    """Why ``config`` cannot run ``epilogue`` on ``device`` (for ``shape``, where given); empty when it can."""
    if dtype not in ELEMENT_BYTES:
        return (f"dtype {dtype}: expected one of {', '.join(ELEMENT_BYTES)}",)
    return (*gemm_violations(config, dtype, device, shape), *epilogue_violations(config, epilogue))


def epilogue_violations(config: GemmConfig, epilogue: FusedEpilogue) -> Iterator[str]:
    """What forbids ``epilogue`` to a configuration that the GEMM itself can run."""
    if not config.specialized:
        yield "the pipelined scheme has no fused epilogue"
    if epilogue.halves and config.swap:
        yield "swiglu with swapped operands: a pair of columns would lie in two threads"
    if epilogue.halves and config.block_n // config.epilogue_split < 2 * MIN_COLUMNS:
        yield (f"swiglu makes chunks of {config.block_n // config.epilogue_split // 2} columns, {MIN_COLUMNS} at least")


def require_valid(
    config: GemmConfig, dtype: str, device: Device, epilogue: FusedEpilogue, shape: Shape | None = None
) -> None:
    """Raise :class:`InvalidConfig` with the first violation, if there is one."""
    found = violations(config, dtype, device, epilogue, shape)
    if found:
        raise InvalidConfig(f"invalid gemm_bias_act configuration: {found[0]}", field="config", value=repr(config))
