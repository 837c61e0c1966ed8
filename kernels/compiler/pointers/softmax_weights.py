"""Softmax weights: exponentials of a tile less its rows' maximum so far, of which nothing keeps the subnormal ones.

    m = maximum(m, max(s, 1));   p = exp(s - m);   l = l * exp(...) + sum(p, 1);   acc += dot(p.to(float16), v)

The largest weight of a row is 1, in this tile or in one before, so that a weight below 2⁻¹²⁶ is lost beside it in a sum
and in a product. ``math.exp`` has instructions for such results, ``math.exp2`` flushes them to zero. Which exponentials
may be flushed is told before layouts are chosen: the marks are attributes, which Triton's passes keep, and change
nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from warpplan.kernels.compiler.analysis.operation_kinds import DOTS, FLUSHED, operation_axis, short_name
from warpplan.kernels.compiler.analysis.value_flow import CARRIED, HANDED, PLAIN, Definition, definitions
from warpplan.kernels.compiler.ttgir.functions import replace_function
from warpplan.kernels.compiler.ttgir.ir import IrOperation
from warpplan.kernels.compiler.ttgir.names import unique_names
from warpplan.kernels.compiler.ttgir.parsing import parse
from warpplan.kernels.compiler.ttgir.types import ShapedType, find_types, parse_type

_MAXIMA = frozenset({"arith.maxnumf", "arith.maximumf"})
_NARROWED = frozenset({"arith.truncf", "tt.fp_to_fp"})
_ZERO_BELOW = frozenset({"f16", "f8E4M3FN", "f8E5M2"})
"""Formats in which every number below 2⁻¹²⁶ rounds to zero."""
_COMBINERS = re.compile(r"\b(?:arith|math)\.\w+")
_MOVED = frozenset({"tt.trans", "ttg.convert_layout"})
LOWEST = -1.0e20
"""A score this low stands for one that is masked, and a maximum this low for one of no scores: kernels write -inf,
-1e30 or the like. Chosen by hand; at -1e4, which scores may reach, weights beside one that is masked could be lost."""


@dataclass(frozen=True)
class _Weights:
    """Along ``axis``; ``alone``: one of them is 1, else that may be one of a tile before. Scores are masked by
    ``masks``."""

    axis: int
    alone: bool
    masks: frozenset[str]


def with_flushed_weights(text: str) -> str:
    """Triton's IR ``text`` with a mark on each softmax weight of a tile; as it is where there is none."""
    if "math.exp " not in text or "tt.reduce" not in text:
        return text
    module = parse(text)
    function = unique_names(module.function)
    weights = softmax_weights(function)
    if not weights:
        return text
    for operation in weights:
        operation.set_attribute(FLUSHED, "true")
    replace_function(module, function)
    return str(module)


def softmax_weights(function: IrOperation) -> list[IrOperation]:
    """The ``math.exp`` of ``function``, whose names are unique, that give nothing but softmax weights."""
    reader = _SoftmaxReader(function)
    exponentials = [op for op in function.walk() if op.name == "math.exp"]
    return [op for op in exponentials if (weights := reader.weights(op)) and reader.lost(op.result, weights)]


class _SoftmaxReader:
    def __init__(self, function: IrOperation) -> None:
        self.defined = definitions(function)
        self.readers: defaultdict[str, list[IrOperation]] = defaultdict(list)
        for operation in function.walk():
            for name in dict.fromkeys(operation.operands):
                self.readers[name].append(operation)

    def weights(self, operation: IrOperation) -> _Weights | None:
        """What ``operation``, a ``math.exp``, gives where its argument is a tile less its rows' maximum so far."""
        kind = _type_of(operation)
        if kind is None or len(kind.shape) != 2 or kind.element != "f32":
            return None
        less = self._plain(operation.operands[0], "arith.subf")
        spread = less and self._plain(less.sources[1], "tt.broadcast")
        row = spread and self._plain(spread.sources[0], "tt.expand_dims")
        axis = operation_axis(row.operation) if row else None
        if less is None or row is None or axis is None:
            return None
        scores, largest = less.sources[0], row.sources[0]
        alone = self._is_largest(largest, scores, axis)
        return _Weights(axis, alone, self._masks(scores)) if alone or self._is_above(largest, scores, axis) else None

    def lost(self, name: str, weights: _Weights) -> bool:
        """Whether nothing that reads ``name``, which are ``weights``, keeps those that are subnormal."""
        return all(self._lost_in(reader, name, weights) for reader in self.readers[name])

    def _lost_in(self, reader: IrOperation, name: str, weights: _Weights) -> bool:
        kind = short_name(reader)
        if kind == "ttg.convert_layout":
            return self.lost(reader.result, weights)
        if kind == "tt.trans":
            return self.lost(reader.result, _Weights(1 - weights.axis, weights.alone, weights.masks))
        if kind == "arith.select":
            mask, *tiles = reader.operands
            return mask in weights.masks and name in tiles and self.lost(reader.result, weights)
        if kind == "tt.reduce":
            summed = _combiners(reader) == ["arith.addf"] and operation_axis(reader) == weights.axis
            added = all(after.name == "arith.addf" for after in self.readers[reader.result])
            return summed and (weights.alone or added)
        if kind in _NARROWED:
            narrow = _type_of(reader)
            element = "" if narrow is None else narrow.element
            return element in _ZERO_BELOW or (element == "bf16" and self._is_multiplied(reader.result))
        return kind in DOTS and name in reader.operands[:2]

    def _is_multiplied(self, name: str) -> bool:
        """Whether ``name`` is read as an operand of products alone."""
        return all(
            self._is_multiplied(reader.result)
            if reader.name in _MOVED
            else short_name(reader) in DOTS and name in reader.operands[:2]
            for reader in self.readers[name]
        )

    def _masks(self, scores: str) -> frozenset[str]:
        """The masks by which ``scores`` are the lowest number or what they were before."""
        found: set[str] = set()
        while (made := self._plain(scores, "arith.select")) is not None:
            mask, then, otherwise = made.sources
            if not self._is_low(then) and not self._is_low(otherwise):
                break
            found.add(mask)
            scores = otherwise if self._is_low(then) else then
        return frozenset(found)

    def _is_largest(self, name: str, tile: str, axis: int) -> bool:
        """Whether ``name`` is the largest of ``tile`` along ``axis``."""
        made = self._plain(name, "tt.reduce")
        if made is None or made.sources != (tile,) or operation_axis(made.operation) != axis:
            return False
        combined = _combiners(made.operation)
        return len(combined) == 1 and combined[0] in _MAXIMA

    def _is_above(self, name: str, tile: str, axis: int) -> bool:
        """Whether ``name`` is the larger one of that and of the largest of tiles before."""
        made = self.defined.get(name)
        if made is None or made.kind != PLAIN or made.operation.name not in _MAXIMA:
            return False
        others = [source for source in made.sources if not self._is_largest(source, tile, axis)]
        return len(others) < len(made.sources) and all(self._is_maximum(other, {name}) for other in others)

    def _is_maximum(self, name: str, known: set[str]) -> bool:
        """Whether ``name`` is the largest of some scores, by induction over the iterations: where those of ``known``
        are. The lowest number is that of none."""
        if name in known or self._is_low(name):
            return True
        made = self.defined.get(name)
        if made is None:
            return False
        known = known | {name}
        if made.kind in (CARRIED, HANDED) or (made.kind == PLAIN and made.operation.name in _MAXIMA):
            return all(self._is_maximum(source, known) for source in made.sources)
        combined = _combiners(made.operation) if short_name(made.operation) == "tt.reduce" else []
        return len(combined) == 1 and combined[0] in _MAXIMA

    def _is_low(self, name: str) -> bool:
        made = self._plain(name, "arith.constant")
        if made is None:
            return False
        found = re.match(r"(?:dense<)?(0xFF800000|-[\d.]+(?:[eE][+-]?\d+)?)", "".join(made.operation.tokens))
        return found is not None and (found[1] == "0xFF800000" or float(found[1]) <= LOWEST)

    def _plain(self, name: str, kind: str) -> Definition | None:
        """What defines ``name``, where that is an operation called ``kind``."""
        made = self.defined.get(name)
        return made if made is not None and made.kind == PLAIN and short_name(made.operation) == kind else None


def _type_of(operation: IrOperation) -> ShapedType | None:
    """The type of its result."""
    kinds = find_types(operation.signature)
    return parse_type(kinds[-1]) if kinds else None


def _combiners(operation: IrOperation) -> list[str]:
    """The operations by which a reduction combines two numbers."""
    return _COMBINERS.findall(operation.text())
