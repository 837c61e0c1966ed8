"""Which layer a table was exported for, read from the title in the folder's provenance.

Consumers look a table up by experts, columns, device and dtype. Layers that differ in hidden size, top-k or shared
experts alone have one file name, and the consumer reads whichever table was written last.
"""

from __future__ import annotations

import re

from warpplan.planner.errors import InvalidInput
from warpplan.service.feeds.moe.model_shapes import MoeLayer, MoeModel, layer_of, model_named, with_shared
from warpplan.service.feeds.moe_facts.moe_schemes import MoeScheme, scheme_named

TITLE = re.compile(r"(.+) tp=([0-9]{1,9}) (\S+)", re.DOTALL)


def title_of(model: str, tp: int, scheme: MoeScheme) -> str:
    """``deepseek-v3 tp=8 fp8_w8a8_block``: all that a layer follows from. ``model`` is a name or the spelled sizes."""
    return f"{model} tp={tp} {scheme.name}"


def layers_of(model: MoeModel, tp: int, scheme: MoeScheme, *, shares: bool) -> tuple[tuple[MoeLayer, int], ...]:
    """The layers of ``model`` that have a table, each with its number of shared experts among the routed ones: the
    layer itself, and where the consumer ``shares`` experts, the layer with them. Raises as
    :func:`~warpplan.service.feeds.moe.model_shapes.layer_of`."""
    layer = layer_of(model, tp, scheme)
    if not shares or not model.shared_experts:
        return ((layer, 0),)
    return (layer, 0), (with_shared(layer, model.shared_experts), model.shared_experts)


def layer_difference(
    title: str, asked: tuple[MoeLayer, int], schemes: tuple[str, ...], *, shares: bool
) -> str:  # fmt: skip
    """How the layer of ``title`` differs from the ``asked`` one of the same experts, in words; "" where it does not."""
    sizes = _sizes(*asked)
    for layer in _layers_titled(title, schemes, shares=shares):
        found = _sizes(*layer)
        if found["experts"] == sizes["experts"]:
            return "; ".join(f"{k} {found[k]}, asked {sizes[k]}" for k in sizes if found[k] != sizes[k])
    return title or "not known"


def _layers_titled(title: str, schemes: tuple[str, ...], *, shares: bool) -> tuple[tuple[MoeLayer, int], ...]:
    """None for a title that is no :func:`title_of`, or whose model this release does not know."""
    found = TITLE.fullmatch(title)
    if found is None:
        return ()
    try:
        return layers_of(model_named(found[1]), int(found[2]), scheme_named(found[3], schemes), shares=shares)
    except InvalidInput:
        return ()


def _sizes(layer: MoeLayer, shared: int) -> dict[str, int]:
    return {
        "experts": layer.experts, "hidden": layer.hidden, "columns a rank": layer.intermediate, "top-k": layer.top_k,
        "shared experts": shared,
    }  # fmt: skip
