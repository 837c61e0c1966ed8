"""Compile a configuration of the attention backward kernels for a GPU that need not be there."""

from __future__ import annotations

from warpplan.kernels.attention_bwd.space import ELEMENT_BYTES, AttentionBwdConfig
from warpplan.kernels.attention_fwd.compile_attention_fwd import MANY_SEQUENCES
from warpplan.kernels.compile import CompiledReport, compile_report, element_type, specialized
from warpplan.kernels.triton_types import AstSource
from warpplan.planner.errors import UnknownName


def compile_attention_bwd(
    config: AttentionBwdConfig, dtype: str, *, causal: bool = False, window: bool = False, target: int = 90
) -> dict[str, CompiledReport]:
    """Compile the kernels of ``config`` for capability ``target`` (major · 10 + minor), some seconds of work; the
    report of each by its name. ``window`` bounds the mask's band on the left, and ``causal`` or ``window`` on the
    right. Raises :class:`InvalidConfig` where Triton or ptxas refuses, in one line."""
    if dtype not in ELEMENT_BYTES:
        raise UnknownName("dtype", dtype, ELEMENT_BYTES)
    sources = attention_bwd_sources(config, element_type(dtype), window, causal or window)
    return {name: compile_report(*made, target, what=f"{name} of {config!r}") for name, made in sources.items()}


def attention_bwd_sources(
    config: AttentionBwdConfig, element: str, bounded_left: bool, bounded_right: bool, *,
    sequences: int = MANY_SEQUENCES,
) -> dict[str, tuple[AstSource, dict[str, int]]]:  # fmt: skip
    """(source, compile options) of each kernel by its name, in the order in which they run; ``element`` is Triton's
    short name of the tensors' type, ``sequences`` how many are packed where they are."""
    from warpplan.kernels.attention_bwd import gluon, tl
    from warpplan.kernels.attention_bwd.query_gradients import gluon as query_gradients
    from warpplan.kernels.triton_compat import GluonASTSource

    statistics = tl.statistics_signature(config, element)
    found = {"row_statistics": (specialized(tl.row_statistics_kernel, *statistics), tl.LAUNCH_OPTIONS)}
    keys = gluon.signature(config, element, bounded_left, bounded_right, sequences)
    source = specialized(gluon.key_gradients_kernel, *keys, source=GluonASTSource)
    found["key_gradients"] = source, gluon.launch_options(config)
    if config.dq == "reduce":
        conversion = tl.conversion_signature(config, element)
        found["converted_queries"] = specialized(tl.converted_queries_kernel, *conversion), tl.LAUNCH_OPTIONS
        return found
    queries = query_gradients.signature(config, element, bounded_left, bounded_right, sequences)
    source = specialized(query_gradients.query_gradients_kernel, *queries, source=GluonASTSource)
    found["query_gradients"] = source, query_gradients.launch_options(config)
    return found
