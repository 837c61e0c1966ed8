"""One product of a linear layer, A[M, K] · B[N, K]ᵀ + bias, by the planned kernel where it can run, else by torch.

Forward, dgrad and wgrad are this product of operands that lie differently (``layout`` of ``gemm``): x · Wᵀ is "nt",
dy · W is "nn", dyᵀ · x is "tn". Each is planned for its own sizes. Only what is kept between launches is the
configuration, by shape: TMA descriptors hold addresses, and a training step's tensors lie elsewhere each time.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.nn.functional import linear as torch_linear

from warpplan.kernels.declaration import MAX_ELEMENTS
from warpplan.kernels.gemm.space import config_of
from warpplan.kernels.plan_source import configuration
from warpplan.kernels.torch_types import Dtype, Tensor
from warpplan.planner.errors import Infeasible
from warpplan.planner.values.tuning import TuningConfig

DTYPES: dict[Dtype, str] = {torch.bfloat16: "bfloat16", torch.float16: "float16"}
"""What the planned kernels multiply, by the names that plans have."""
ALIGNMENT_BYTES = 16
"""That TMA wants rows to start on."""
ALIGNMENT = 8
"""The same in elements of 16 bits."""
HOPPER = (9, 0)

_hopper_names: dict[int, str] = {}
_gemm_config = lru_cache(maxsize=4096)(config_of)
"""Reading a configuration takes longer than the rest of a launch."""


def multiply(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """A · Bᵀ, plus ``bias`` [N] before it is rounded: [M, N] in the operands' dtype, without a gradient.

    ``a`` is [M, K] and ``b`` [N, K], each stored by rows or by columns. What the planned kernel cannot take goes to
    torch's own: the choice follows from sizes, strides, dtype and the addresses' alignment, never from a measurement.
    """
    layout = operand_layout(a, b) if hopper(a.device.index if a.is_cuda else None) and a.dtype in DTYPES else None
    config = None if layout is None else _config(a, b, bias is not None, layout)
    if config is None:
        return torch_linear(a, b, bias)
    # Needs Triton, which a CPU's installation of torch lacks.
    if bias is None:
        from warpplan.kernels.gemm.launch import gemm

        return gemm(a, b, _gemm_config(config))
    from warpplan.kernels.gemm_bias_act.launch import gemm_bias_act

    return gemm_bias_act(a, b, config, bias=bias)


def hopper(index: int | None) -> bool:
    """Whether the CUDA device ``index`` is a Hopper GPU, which the planned kernels are written for. ``None``: a CPU."""
    if index is None:
        return False
    if index not in _hopper_names:
        found = torch.version.hip is None and torch.cuda.get_device_capability(index) == HOPPER
        _hopper_names[index] = torch.cuda.get_device_name(index) if found else ""
    return bool(_hopper_names[index])


def operand_layout(a: Tensor, b: Tensor) -> str | None:
    """The ``layout`` of ``gemm``, "nt" or "nn" or "tn" or "tt", or ``None`` where TMA cannot address an operand."""
    (rows, depth), columns = a.shape, b.shape[0]
    if max(rows * depth, columns * depth, rows * columns) > MAX_ELEMENTS or not rows * columns * depth:
        return None
    by_a, by_b = _stored_by_rows(a), _stored_by_rows(b)
    if by_a is None or by_b is None:
        return None
    return ("n" if by_a else "t") + ("t" if by_b else "n")


def _stored_by_rows(matrix: Tensor) -> bool | None:
    """Whether rows lie adjacent in memory, or columns; ``None`` where neither can be read by TMA."""
    if matrix.data_ptr() % ALIGNMENT_BYTES:
        return None
    rows, columns = matrix.shape
    from_row, from_column = matrix.stride()
    if from_column == 1 and from_row >= columns and not (columns % ALIGNMENT or from_row % ALIGNMENT):
        return True
    if from_row == 1 and from_column >= rows and not (rows % ALIGNMENT or from_column % ALIGNMENT):
        return False
    return None


def _config(a: Tensor, b: Tensor, bias: bool, layout: str) -> TuningConfig | None:
    """``None`` where no configuration fits the shape: torch multiplies it."""
    sizes = (a.shape[0], b.shape[0], a.shape[1])
    kernel, shape = _planned_shape(sizes, bias, layout)
    try:
        return configuration(kernel, shape, DTYPES[a.dtype], _hopper_names[a.device.index])
    except Infeasible:
        return None


@lru_cache(maxsize=4096)
def _planned_shape(sizes: tuple[int, int, int], bias: bool, layout: str) -> tuple[str, tuple[int | str, ...]]:
    """The kernel's name and its canonical shape: the options that are not at their defaults."""
    options = (*([] if layout == "nt" else [f"layout={layout}"]), *(["bias=yes"] if bias else []))
    return "gemm_bias_act" if bias else "gemm", (*sizes, *options)
