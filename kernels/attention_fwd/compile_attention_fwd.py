"""Compile a configuration of the attention forward kernel for a GPU that need not be there."""

from __future__ import annotations

from warpplan.kernels.attention_fwd.space import ELEMENT_BYTES, AttentionConfig
from warpplan.kernels.compile import CompiledReport, compile_report, element_type, specialized
from warpplan.kernels.triton_types import AstSource
from warpplan.planner.errors import UnknownName

MANY_SEQUENCES = 64
"""A warp looks at so many together at most."""


def compile_attention_fwd(
    config: AttentionConfig, dtype: str, *, causal: bool = False, window: bool = False, target: int = 90
) -> CompiledReport:
    """Compile ``config`` for capability ``target`` (major · 10 + minor), a few seconds of work. ``window`` bounds the
    mask's band on the left, and ``causal`` or ``window`` on the right. Raises :class:`InvalidConfig` where Triton or
    ptxas refuses, in one line."""
    if dtype not in ELEMENT_BYTES:
        raise UnknownName("dtype", dtype, ELEMENT_BYTES)
    source, options = attention_fwd_source(config, element_type(dtype), window, causal or window)
    return compile_report(source, options, target, what=repr(config))


def attention_fwd_source(
    config: AttentionConfig, element: str, bounded_left: bool, bounded_right: bool, *, stores_lse: bool = True,
    sequences: int = MANY_SEQUENCES,
) -> tuple[AstSource, dict[str, int]]:  # fmt: skip
    """(source, compile options) of one specialisation; ``element`` is Triton's short name of the tensors' type,
    ``sequences`` how many are packed where they are."""
    from warpplan.kernels.attention_fwd import gluon
    from warpplan.kernels.triton_compat import GluonASTSource

    described = gluon.signature(config, element, bounded_left, bounded_right, stores_lse, sequences)
    return specialized(gluon.attention_fwd_kernel, *described, source=GluonASTSource), gluon.launch_options(config)
