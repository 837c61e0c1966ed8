"""Triton 3.7: the passes of 3.6."""

from __future__ import annotations

from warpplan.kernels.compiler.pipeline.v3_6 import BLACKWELL, HOPPER

__all__ = ["BLACKWELL", "HOPPER"]
