"""Run the GEMM with a fused epilogue: check what it takes, describe it, launch the kernel.

    c = gemm_bias_act(a, b, config, bias=bias, activation="gelu")    # a [M, K], b [N, K] -> c [M, N]
    run = prepare(a, b, config, out, bias=bias); run()               # run() may be captured in a CUDA graph

``config`` is a :class:`GemmConfig` or the :class:`TuningConfig` that training jobs receive.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from warpplan.kernels.declaration import Shape
from warpplan.kernels.gemm.launch import describe_product, random_operands, run_kernel
from warpplan.kernels.gemm.space import GemmConfig, config_of
from warpplan.kernels.gemm_bias_act.kernel import GEMM_BIAS_ACT
from warpplan.kernels.gemm_bias_act.space import ELEMENT_BYTES, FusedEpilogue, require_valid
from warpplan.kernels.operands.gpus import device_limits
from warpplan.kernels.operands.matrices import (
    TMA_ALIGNMENT_BYTES,
    layout_of,
    require_operands,
    require_output,
    row_strides,
    tma_stores,
)
from warpplan.kernels.torch_types import Tensor
from warpplan.planner.errors import InvalidShape, UnknownName
from warpplan.planner.values.tuning import TuningConfig


def gemm_bias_act(
    a: Tensor,
    b: Tensor,
    config: GemmConfig | TuningConfig,
    *,
    bias: Tensor | None = None,
    activation: str = "none",
    residual: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """activation(A[M, K] · B[N, K]ᵀ + bias) + residual, computed in fp32 and rounded once, on the current stream.

    ``activation`` is "none", "relu", "gelu" (by erf), "gelu_tanh", "silu" or "swiglu", which of columns 2j (the gate)
    and 2j + 1 makes column j. The result is [M, N], of SwiGLU [M, N / 2], in the operands' dtype, bfloat16 or float16.
    ``bias`` [N] is of that dtype or float32; ``residual`` has the result's shape and dtype, and any row stride, as
    ``out`` has. A and B may lie as in :func:`warpplan.kernels.gemm.launch.gemm`.

    Raises :class:`InvalidShape` for tensors that do not fit, :class:`UnknownName` for a dtype or an activation that
    there is not and :class:`InvalidConfig` for a plan that cannot run this epilogue.
    """
    if out is None:
        _require_16_bits(a, b)
        columns = b.shape[0] // 2 if activation == "swiglu" else b.shape[0]
        out = torch.empty((a.shape[0], columns), dtype=a.dtype, device=a.device)
    prepare(a, b, config, out, bias=bias, activation=activation, residual=residual)()
    return out


def prepare(
    a: Tensor,
    b: Tensor,
    config: GemmConfig | TuningConfig,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Callable[[], None]:
    """A call that computes ``out`` from the tensors where they lie now; the first call may compile the kernel.

    Splits of K meet in buffers of the stream that is current here: run the call there, or never beside another of it,
    and keep it as long as a CUDA graph that captured it.
    """
    from warpplan.kernels.gemm.gluon import launch_options
    from warpplan.kernels.gemm_bias_act import gluon

    if isinstance(config, TuningConfig):
        config = config_of(config)
    epilogue = FusedEpilogue(activation, bias is not None, residual is not None)
    _require_16_bits(a, b)
    if epilogue.halves and b.shape[0] % 2:
        raise InvalidShape(
            f"N={b.shape[0]}: swiglu takes columns in pairs, so N must be even", field="N", value=b.shape[0], limit=2
        )
    require_output(a, b[: b.shape[0] // 2] if epilogue.halves else b, out)
    if bias is not None:
        _require_bias(bias, a, b.shape[0])
    if residual is not None:
        _require_residual(residual, out)
    shape = (a.shape[0], b.shape[0], a.shape[1])
    require_valid(config, str(a.dtype).removeprefix("torch."), device_limits(a.device.index), epilogue, shape)
    tma_store, layout = tma_stores(out), layout_of(a, b)
    product = describe_product(a, b, config, out, tma_store, gluon.descriptor_blocks(config, epilogue, layout))
    arguments = (
        *product.matrices,
        *product.split_buffers,
        bias,
        residual,
        *product.numbers,
        0 if residual is None else row_strides(residual)[0],
    )
    constants = gluon.constants(
        config, activation, _bias_access(bias, out), _residual_access(residual, config), tma_store, layout
    )
    keywords = {**constants, **launch_options(config)}
    launch = gluon.gemm_bias_act_kernel[(product.grid,)]
    return lambda: run_kernel(launch, arguments, keywords, a)


def random_launch(shape: Shape, dtype: str, config: TuningConfig) -> Callable[[], None]:
    """A launch on random operands of ``shape`` (of :class:`~warpplan.kernels.gemm_bias_act.kernel.GemmBiasAct`), for
    timing."""
    m, n, k = GEMM_BIAS_ACT.sizes(shape)
    chosen = GEMM_BIAS_ACT.chosen(shape)
    a, b = random_operands(m, n, k, dtype, chosen["layout"])
    out = torch.empty((m, n // 2 if chosen["activation"] == "swiglu" else n), dtype=a.dtype, device="cuda")
    bias = torch.randn(n, device="cuda").to(a.dtype) if chosen["bias"] == "yes" else None
    residual = torch.randn_like(out) if chosen["residual"] == "yes" else None
    return prepare(a, b, config, out, bias=bias, activation=chosen["activation"], residual=residual)


def _bias_access(bias: Tensor | None, out: Tensor) -> str:
    """How the kernel may read ``bias``, as a block of :mod:`warpplan.kernels.gemm_bias_act.gluon` names it."""
    if bias is None:
        return "none"
    whole = bias.shape[0] * out.element_size() % TMA_ALIGNMENT_BYTES == 0
    return "aligned" if whole and bias.data_ptr() % TMA_ALIGNMENT_BYTES == 0 else "any"


def _residual_access(residual: Tensor | None, config: GemmConfig) -> str:
    if residual is None:
        return "none"
    # Of swapped operands a thread has neighbours in a column, which are apart in memory however rows lie.
    return "aligned" if tma_stores(residual) and not config.swap else "any"


def _require_16_bits(a: Tensor, b: Tensor) -> None:
    require_operands(a, b)
    dtype = str(a.dtype).removeprefix("torch.")
    if dtype not in ELEMENT_BYTES:
        raise UnknownName("dtype", dtype, ELEMENT_BYTES)


def _require_bias(bias: Tensor, a: Tensor, columns: int) -> None:
    if tuple(bias.shape) != (columns,):
        raise InvalidShape(
            f"bias is {tuple(bias.shape)}: expected ({columns},), an element a column of the product",
            field="bias", value=tuple(bias.shape), limit=columns,
        )  # fmt: skip
    if bias.dtype not in (a.dtype, torch.float32) or bias.device != a.device:
        raise InvalidShape(
            f"bias is {bias.dtype} on {bias.device}: expected {a.dtype} or torch.float32 on {a.device}", field="bias"
        )
    if columns > 1 and bias.stride(0) != 1:
        raise InvalidShape(
            f"bias has stride {bias.stride(0)}: expected 1; copy it first, bias.contiguous()",
            field="bias", value=bias.stride(0), limit=1,
        )  # fmt: skip


def _require_residual(residual: Tensor, out: Tensor) -> None:
    if residual.shape != out.shape or residual.dtype != out.dtype or residual.device != out.device:
        raise InvalidShape(
            f"residual is {residual.dtype} {tuple(residual.shape)} on {residual.device}: expected {out.dtype} "
            f"{tuple(out.shape)} on {out.device}, as the result",
            field="residual",
        )
    if residual.shape[1] > 1 and residual.stride(1) != 1:
        raise InvalidShape(
            f"residual has column stride {residual.stride(1)}: expected 1; copy it first, residual.contiguous()",
            field="residual", value=residual.stride(1), limit=1,
        )  # fmt: skip
