"""The arguments that ``@triton.heuristics`` computes of a launch's others, as Triton's ``Heuristics.run`` does (3.6 to
3.9): each sees what those around it have computed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from warpplan.service.feeds.consumer_kernel import Tensor
from warpplan.service.tuning.launch_child import TORCH_TYPES
from warpplan.service.tuning.size_formulas import number_of

Heuristic = tuple[str, Callable[[dict[str, Any]], object]]
"""A parameter, and what computes it of the arguments by name."""


def heuristics_of(layers: Any) -> tuple[Heuristic, ...]:
    """Those that stand around a kernel, the outermost first; ``layers`` is what a job launches."""
    from triton.runtime.autotuner import Heuristics

    found: list[Heuristic] = []
    while hasattr(layers, "fn") and not hasattr(layers, "params"):
        found += layers.values.items() if isinstance(layers, Heuristics) else ()
        layers = layers.fn
    return tuple(found)


def derived(heuristics: Sequence[Heuristic], known: Mapping[str, object]) -> tuple[dict[str, object], dict[str, str]]:
    """What ``heuristics`` compute of the arguments ``known``, by name; and of those that failed, with what."""
    found: dict[str, object] = {}
    failed: dict[str, str] = {}
    for name, heuristic in heuristics:
        try:
            found[name] = heuristic({**known, **found})
        except Exception as error:  # the user's own code runs here and may raise anything
            failed[name] = f"{type(error).__name__}: {error}"
    return found, failed


def argument_of(word: str, shape: Mapping[str, int]) -> object:
    """An argument as Triton's Python sees it, of a signature's ``word``: a tensor by its dtype, a number, a literal;
    ``None`` for a descriptor and for a number of no value."""
    element = word.removeprefix("*").partition("[")[0].partition(":")[0].strip()
    if word.startswith("*"):
        return Tensor(TORCH_TYPES.get(element, element))
    number = number_of(word, shape)
    if number is not None:
        return number
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return None
