"""Zeros in the rows of no packed sequence, which the kernels of attention leave as they are, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from warpplan.kernels.compile import specialized
from warpplan.kernels.triton_types import AstSource

ROWS = 128
"""Of a program, which nearly always finds them within sequences and ends. Not timed yet: half as many make twice as
many programs."""
NUM_WARPS = 4
INTEGERS = ["SEQUENCES", "LENGTH", "ROW_STRIDE", "HEAD_STRIDE"]


@triton.jit(do_not_specialize=INTEGERS)
def clear_rows_kernel(
    tensor, starts, SEQUENCES, LENGTH, ROW_STRIDE, HEAD_STRIDE, HEAD_DIM: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Fill rows of ``tensor`` [LENGTH, heads, HEAD_DIM] with zeros: those before ``starts[0]``, and those from
    ``starts[SEQUENCES]`` on. Program (i, h): block i of head h; strides in elements, of the last dimension 1."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    outside = (row < tl.load(starts)) | (row >= tl.load(starts + SEQUENCES))
    written = tensor + row.to(tl.int64)[:, None] * ROW_STRIDE + tl.program_id(1).to(tl.int64) * HEAD_STRIDE
    zeros = tl.zeros([ROWS, HEAD_DIM], tensor.dtype.element_ty)
    tl.store(written + tl.arange(0, HEAD_DIM)[None, :], zeros, mask=(outside & (row < LENGTH))[:, None])


def clear_rows_source(head_dim: int, element: str) -> tuple[AstSource, dict[str, int]]:
    """(source, compile options) as a launch specialises them; ``element`` is Triton's short name of a type."""
    types = {"tensor": f"*{element}", "starts": "*i32"} | dict.fromkeys(INTEGERS, "i32")
    constants: dict[str, object] = {"HEAD_DIM": head_dim, "ROWS": ROWS}
    return specialized(clear_rows_kernel, types, constants, ["tensor", "starts"]), {"num_warps": NUM_WARPS}
