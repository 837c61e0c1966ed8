"""Compile a configuration of the decoding attention kernel for a GPU that need not be there."""

from __future__ import annotations

from warpplan.kernels.attention_decode.space import DecodeConfig
from warpplan.kernels.attention_fwd.space import SIXTEEN_BIT
from warpplan.kernels.compile import CompiledReport, compile_report, element_type, specialized
from warpplan.kernels.triton_types import AstSource
from warpplan.planner.errors import UnknownName


def compile_attention_decode(
    config: DecodeConfig, dtype: str, *, causal: bool = False, target: int = 90
) -> CompiledReport:
    """Compile ``config`` for capability ``target`` (major · 10 + minor), a few seconds of work. Raises
    :class:`InvalidConfig` where Triton or ptxas refuses, in one line."""
    if dtype not in SIXTEEN_BIT:
        raise UnknownName("dtype", dtype, SIXTEEN_BIT)
    source, options = attention_decode_source(config, element_type(dtype), causal)
    return compile_report(source, options, target, what=repr(config))


def attention_decode_source(
    config: DecodeConfig, element: str, causal: bool, *, has_lengths: bool = True, stores_lse: bool = True
) -> tuple[AstSource, dict[str, int]]:
    """(source, compile options) of one specialisation; ``element`` is Triton's short name of the tensors' type."""
    from warpplan.kernels.attention_decode import gluon
    from warpplan.kernels.triton_compat import GluonASTSource

    described = gluon.signature(config, element, causal, has_lengths=has_lengths, stores_lse=stores_lse)
    return specialized(gluon.attention_decode_kernel, *described, source=GluonASTSource), gluon.launch_options(config)


def combine_source(element: str, head_dim: int, most_splits: int, stores_lse: bool) -> tuple[AstSource, dict[str, int]]:
    """The same of the kernel that combines splits."""
    from triton.compiler import ASTSource

    from warpplan.kernels.attention_decode import tl

    pointers = {"parts": "*fp32", "part_lse": "*fp32", "out": f"*{element}", "lse": "*fp32" if stores_lse else None}
    given = {name: kind for name, kind in pointers.items() if kind is not None}
    strides = ("OUT_BATCH", "OUT_HEAD", "OUT_QUERY")
    kinds = given | dict.fromkeys((*strides, "SHARERS", "QUERIES", "KV_HEADS", "SPLITS"), "i32")
    values: dict[str, object] = {"HEAD_DIM": head_dim, "MOST_SPLITS": most_splits, "TOGETHER": tl.TOGETHER}
    values |= {name: None for name in pointers if name not in given}
    source = specialized(tl.combine_splits_kernel, kinds, values, [*given, *strides], source=ASTSource)
    return source, {"num_warps": 4, "num_stages": 1}
