"""Tiles that a list has not, for ``planned(extend=True)``: neighbours of those that it has.

Nothing says that a kernel is right under a tile that its author did not list, so each is compared with a configuration
of the list before it is timed.
"""

from __future__ import annotations

from collections.abc import Sequence

from warpplan.kernels.triton_types import TunerConfig

LEAST, MOST = 16, 256
"""Sizes of a tile along one dimension: the least that a product takes, the widest wgmma."""
MOST_ADDED = 8
"""Configurations added to one list at most. Chosen by hand; each costs as much as one of the list's own."""


def extended(configs: Sequence[TunerConfig]) -> list[TunerConfig]:
    """``configs``, then some with one size doubled or halved. Sizes are the powers of two of which the list has more
    than one value; warps, stages and hooks are those of the neighbour."""
    sizes = [name for name in dict.fromkeys(n for c in configs for n in c.kwargs) if _is_size(name, configs)]
    found = list(configs)
    known = {_tile(config) for config in configs}
    for config in configs:
        for name in sizes:
            for value in (2 * config.kwargs[name], config.kwargs[name] // 2):
                kwargs = {**config.kwargs, name: value}
                tile = tuple(sorted((key, repr(held)) for key, held in kwargs.items()))
                if LEAST <= value <= MOST and tile not in known and len(found) < len(configs) + MOST_ADDED:
                    known.add(tile)
                    found.append(_with(config, kwargs))
    return found


def _is_size(name: str, configs: Sequence[TunerConfig]) -> bool:
    values = {config.kwargs.get(name) for config in configs}
    return len(values) > 1 and all(
        type(value) is int and LEAST <= value <= MOST and value & (value - 1) == 0 for value in values
    )


def _tile(config: TunerConfig) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, repr(held)) for key, held in config.kwargs.items()))


def _with(config: TunerConfig, kwargs: dict[str, object]) -> TunerConfig:
    return type(config)(
        kwargs, num_warps=config.num_warps, num_stages=config.num_stages, num_ctas=config.num_ctas,
        maxnreg=config.maxnreg, pre_hook=config.pre_hook,
    )  # fmt: skip
