"""V [batch, heads, keys, D] of 8 bits as [batch, heads, D, keys], for products that sum over adjacent keys.

Within each 16, keys come in the order in which a thread of
:func:`~warpplan.kernels.attention_fwd.fp8.gluon.pack_columns` has their scores: place 4c + 2h + b has key 8h + 2c + b.
Rows are read in that order, so that it costs nothing. The last 16 are filled up with zeros, for the kernel's weights of
keys that are not there are zero, and zero times whatever lay there may be NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl

from warpplan.kernels.compile import CompiledReport, compile_report, specialized
from warpplan.kernels.triton_types import AstSource

KEYS = 128
"""Of a program; with all of a head's elements a tile of 8 to 32 KB, which goes through shared memory. Not timed yet:
half as many write half a cache line a row, twice as many leave few programs to short sequences."""
NUM_WARPS = 8
"""A thread has one to four 16-byte loads under way. Not timed yet."""
STRIDES = ("BATCH_STRIDE", "HEAD_STRIDE", "KEY_STRIDE")


@triton.jit(do_not_specialize=["HEADS", "K_LENGTH"])
def transpose_values_kernel(
    v,
    out,
    BATCH_STRIDE,
    HEAD_STRIDE,
    KEY_STRIDE,
    HEADS,
    K_LENGTH,
    OUT_LENGTH,
    HEAD_DIM: tl.constexpr,
    KEYS: tl.constexpr,
):
    """``v`` has adjacent elements and strides in elements; ``out`` is contiguous, its ``OUT_LENGTH`` places K_LENGTH
    rounded up to 16. A program for each ``KEYS`` places of each head, those of a head one after the other."""
    blocks = tl.cdiv(OUT_LENGTH, KEYS)
    batch_head = (tl.program_id(0) // blocks).to(tl.int64)
    place = tl.program_id(0) % blocks * KEYS + tl.arange(0, KEYS)
    key = place // 16 * 16 + place // 2 % 2 * 8 + place // 4 % 4 * 2 + place % 2
    column = tl.arange(0, HEAD_DIM)
    rows = v + batch_head // HEADS * BATCH_STRIDE + batch_head % HEADS * HEAD_STRIDE
    read = rows + key.to(tl.int64)[:, None] * KEY_STRIDE + column[None, :]
    tile = tl.load(read, mask=key[:, None] < K_LENGTH, other=0.0)
    written = out + (batch_head * HEAD_DIM + column[:, None]) * OUT_LENGTH + place[None, :]
    tl.store(written, tl.trans(tile), mask=place[None, :] < OUT_LENGTH)


def transpose_source(head_dim: int, aligned: bool = True) -> tuple[AstSource, dict[str, int]]:
    """(source, compile options) as a launch specialises them; ``aligned``: heads and rows lie apart in multiples of 16
    bytes, as TMA asks for."""
    types = {"v": "*fp8e4nv", "out": "*fp8e4nv"} | dict.fromkeys((*STRIDES, "HEADS", "K_LENGTH", "OUT_LENGTH"), "i32")
    constants: dict[str, object] = {"HEAD_DIM": head_dim, "KEYS": KEYS}
    known = ["v", "out", "OUT_LENGTH", *(STRIDES if aligned else ())]
    return specialized(transpose_values_kernel, types, constants, known), {"num_warps": NUM_WARPS}


def compile_transpose(head_dim: int, target: int = 90) -> CompiledReport:
    """Compile the pass for heads of ``head_dim``."""
    source, options = transpose_source(head_dim)
    return compile_report(source, options, target, what=f"transpose_values_kernel for heads of {head_dim}")
