"""Strategies read from JSON, whichever GPU generation they are for."""

from __future__ import annotations

import json
from collections.abc import Mapping

from warpplan.kernels.compiler.strategy.blackwell import BlackwellStrategy
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.strategy.protocol import Strategy
from warpplan.kernels.triton_types import Json
from warpplan.planner.errors import MalformedFile


def strategy_from_json(value: Json, where: object) -> Strategy:
    """The strategy that the JSON object ``value`` is: for Blackwell where it has ``workers``. Raises
    :class:`MalformedFile` naming ``where``."""
    if isinstance(value, Mapping) and "workers" in value:
        return BlackwellStrategy.from_json(value, where)
    if not isinstance(value, Mapping) or not isinstance(value.get("depths"), (list, tuple)):
        raise MalformedFile(where, "no scheme: expected an object with consumers and depths", field="scheme")
    return HopperStrategy.from_json(value, where)


def strategy_text(strategy: Strategy) -> str:
    """Canonical JSON: part of a decision's key where the user gave the strategy."""
    return json.dumps(strategy.to_json(), sort_keys=True)
