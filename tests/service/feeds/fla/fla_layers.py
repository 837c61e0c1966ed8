"""A job's layers of FLA, run on CPU tensors of its sizes; as a consumer of ``--target fla``."""

from __future__ import annotations

import torch

HEADS = (4, 8, 12, 16, 24, 32)
CHUNKS = (32, 64)


def sums() -> None:
    """Two dozen keys of one kernel with a short list."""
    from fla.ops.utils.cumsum import chunk_local_cumsum

    for heads in HEADS:
        for chunk in CHUNKS:
            for reverse in (False, True):
                gate = torch.empty(1, 2048, heads, dtype=torch.float32)
                chunk_local_cumsum(gate, chunk_size=chunk, reverse=reverse)


def outputs() -> None:
    """A kernel with products."""
    from fla.ops.common.chunk_o import chunk_fwd_o

    rows = torch.empty(1, 2048, 8, 128, dtype=torch.bfloat16)
    state = torch.empty(1, 32, 8, 128, 128, dtype=torch.bfloat16)
    chunk_fwd_o(rows, rows, rows, state, g=torch.empty(1, 2048, 8), scale=1.0)


def value_gradients() -> None:
    """A kernel some of whose configurations spill."""
    from fla.ops.gla.chunk import chunk_gla_bwd_dv

    rows = torch.empty(1, 2048, 8, 64, dtype=torch.bfloat16)
    gate = torch.empty(1, 2048, 8, 64)
    chunk_gla_bwd_dv(rows, gate, gate, rows, torch.empty(1, 32, 8, 64, 64))


def nothing() -> None:
    """Launches no kernel."""


def broken() -> None:
    """Ends with an exception."""
    raise RuntimeError("out of layers")


def left() -> None:
    """Ends the process, as scripts do."""
    raise SystemExit(3)
