"""Lay V of fp8 out for attention forward: [B, G, M, D] as [B, G, D, keys], zeros behind the last key.

Hopper multiplies 8-bit operands with adjacent elements along the sum alone, and V is summed over keys. Callers hand V
in as it lies beside K, and each launch of the kernel has this pass before it: the order of keys that spares the
kernel's loop its shuffles is nobody else's affair, and attention reads V once for each tile of queries, the pass once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from warpplan.kernels.attention_fwd.fp8.tl import KEYS, NUM_WARPS, transpose_values_kernel
from warpplan.kernels.attention_fwd.fp8.value_pass import KEY_STEP
from warpplan.kernels.gemm.launch import run_kernel
from warpplan.kernels.torch_types import Tensor


def prepare_values(v: Tensor) -> tuple[Tensor, Callable[[], None]]:
    """(memory for ``v``, [B, G, M, D] of fp8 with adjacent elements, as the kernel reads it, a call that fills it from
    ``v`` as that is then, without waiting for the device)."""
    batch, heads, keys, head_dim = v.shape
    places = -(-keys // KEY_STEP) * KEY_STEP
    transposed = torch.empty(batch, heads, head_dim, places, dtype=v.dtype, device=v.device)
    arguments = (v, transposed, *v.stride()[:3], heads, keys, places)
    keywords: dict[str, object] = {"HEAD_DIM": head_dim, "KEYS": KEYS, "num_warps": NUM_WARPS}
    launch = transpose_values_kernel[(batch * heads * -(-places // KEYS),)]
    return transposed, lambda: run_kernel(launch, arguments, keywords, v)
