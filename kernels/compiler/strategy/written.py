"""Strategies as people write them, and as commands print them.

2x4:3/2:1:persistent:copies1                  consumers x warps, slots of each loop's rings, 1 to keep a product in
                                              flight (the default), one program an SM walks over the grid, what the
                                              producer copies of what is loaded through pointers: operands, or all (2)
1x4:3:2blocks:stores                          registers and shared memory for two blocks on an SM at once; TMA stores
                                              what the kernel stores through pointers
2 x 4 warps, 3/2 slots, in flight, persistent as printed
apart:3:single                                Blackwell: workers, slots of all rings, one place for each result
loads and products apart, 3 slots, single     as printed
{"consumers": 2, "depths": [3, 2], …}         JSON
"""

from __future__ import annotations

import json
import re

from warpplan.kernels.compiler.strategy.blackwell import FOUND, BlackwellStrategy
from warpplan.kernels.compiler.strategy.hopper import COPIED, HopperStrategy
from warpplan.kernels.compiler.strategy.protocol import Strategy
from warpplan.kernels.compiler.strategy.recorded import strategy_from_json
from warpplan.planner.errors import InvalidConfig, MalformedFile

_HOPPER = re.compile(
    r"(\d+)x(\d+):(\d+(?:/\d+)*)(?::([01]))?(:persistent)?(?::copies([12]))?(?::(\d+)blocks)?(:stores)?"
    r"(?::assigned(\d+(?:/\d+)*))?"
)
_BLACKWELL = re.compile(r"(apart|together|found):(\d+)(:single)?")
_HOPPER_PRINTED = re.compile(
    r"(\d+) x (\d+) warps, (\d+(?:/\d+)*) slots(, in flight)?(, persistent)?(?:, (copied operands|all copied))?"
    r"(?:, (\d+) blocks)?(, TMA stores)?(?:, assigned (\d+(?:/\d+)*))?"
)
_BLACKWELL_PRINTED = re.compile(
    r"(?:loads and products (apart|together)|as Triton finds best), (\d+) slots(?:, staged (.+?))?(, single)?"
)
FORMS = (
    "CONSUMERSxWARPS:SLOTS such as 2x4:3, or 2x4:3/2:0 with the slots of each loop and 0 for no product in flight, and "
    ":persistent behind, :copies1 where operands loaded through pointers are copied, :copies2 where all else is, too, "
    ":2blocks for two on an SM, :stores where TMA stores what the kernel stores through pointers, :assigned0/1/2 for "
    "the partition of each load and computed operand; for Blackwell "
    "apart:SLOTS, together:SLOTS or found:SLOTS; or as it is printed"
)


def strategy_from_text(text: str, words: tuple[str, ...] = ()) -> Strategy:
    """The strategy that ``text`` writes in any of the forms above: ``strategy_from_text(str(s)) == s``. Raises
    :class:`InvalidConfig` for anything else, with the ``words`` that the caller takes beside them, and naming the field
    that has no such value."""
    text = text.strip()
    if match := _HOPPER.fullmatch(text):
        return _hopper(match, in_flight=match[4] != "0")
    if match := _HOPPER_PRINTED.fullmatch(text):
        return _hopper(match, in_flight=match[4] is not None)
    if match := _BLACKWELL.fullmatch(text):
        return BlackwellStrategy(match[1], int(match[2]), double=int(match[3] is None))
    if match := _BLACKWELL_PRINTED.fullmatch(text):
        return BlackwellStrategy(match[1] or FOUND, int(match[2]), _stages(match[3]), int(match[4] is None))
    try:
        return strategy_from_json(json.loads(text), "scheme")
    except MalformedFile as error:
        raise InvalidConfig(str(error), field="scheme", value=text) from None
    except ValueError:
        expected = ", ".join([*words, f"or {FORMS}" if words else FORMS])
        raise InvalidConfig(f"scheme {text!r}: expected {expected}", field="scheme", value=text) from None


def _hopper(match: re.Match[str], in_flight: bool) -> HopperStrategy:
    depths = tuple(int(depth) for depth in match[3].split("/"))
    levels = {str(level): level for level in COPIED} | {shown: level for level, shown in COPIED.items()}
    copies = levels.get(match[6] or "", 0)
    return HopperStrategy(
        int(match[1]), depths, int(match[2]), int(in_flight), int(match[5] is not None), copies, int(match[7] or 1),
        tuple(int(number) for number in (match[9] or "").split("/") if number), int(match[8] is not None),
    )  # fmt: skip


def _stages(text: str | None) -> tuple[tuple[str, int], ...]:
    """``(file.py:12) 1 (file.py:14) 0``."""
    pairs = re.findall(r"\((.+?)\) (\d+)(?= \(|$)", text or "")
    return tuple((line, int(stage)) for line, stage in pairs)
