"""Blackwell's tensor memory in a loop: which buffer an operation writes and reads, and in what order.

Triton threads tokens (``!ttg.async.token``) through its accesses to tensor memory, and through loops. They carry
nothing: what flows is what the buffer holds. So tokens are left out. What a write leaves is a value of its own, which
the reads after it read; a write also waits for the reads before it, which is order alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from warpplan.kernels.compiler.analysis.operation_kinds import DOTS, TMEM_ALLOC, TMEM_LOAD, TMEM_STORE, short_name
from warpplan.kernels.compiler.analysis.row_values import Types
from warpplan.kernels.compiler.ttgir.ir import IrOperation, is_value
from warpplan.kernels.compiler.ttgir.types import ShapedType

SPACE = "#ttng.tensor_memory"
LANES, CELL_BYTES = 128, 4
"""128 lanes of columns of 32 bits; a tile of 64 rows takes half of the lanes (PTX ISA, "Tensor Memory")."""
ACCESSES = frozenset({TMEM_ALLOC, TMEM_LOAD, TMEM_STORE, *DOTS})
_VIEWS = frozenset({"ttg.memdesc_index", "ttg.memdesc_subslice", "ttg.memdesc_reinterpret", "ttg.memdesc_trans",
                    "ttng.tmem_subslice"})  # fmt: skip


@dataclass(frozen=True)
class TensorBuffer:
    """``bytes`` in ``lanes`` lanes of tensor memory. ``held``: an iteration reads what the one before left there, so
    it is one place for as long as the loop runs."""

    name: str
    bytes: int
    lanes: int
    held: bool

    @property
    def columns(self) -> int:
        return -(-self.bytes // (CELL_BYTES * self.lanes))


@dataclass(frozen=True)
class Access:
    """One operation's access to one buffer: ``read`` and ``written`` name what the buffer holds before and after it, ""
    where it does not read, does not write. ``adds``: as the accumulator of a product. ``number`` counts accesses in
    program order."""

    buffer: str
    number: int
    read: str
    written: str
    adds: bool = False


class TensorMemory:
    """The accesses of one loop's body, in program order: a branch counts as taken, a loop inside as one access."""

    def __init__(self, types: Types) -> None:
        self._types = types
        self._root: dict[str, str] = {}
        self._holds: dict[str, str] = {}
        self._found: list[Access] = []

    def visit(self, operation: IrOperation) -> list[Access]:
        """The accesses of ``operation``: none, for most."""
        touched: dict[str, tuple[bool, bool, bool]] = {}
        for inner in operation.walk():
            if short_name(inner) in _VIEWS and inner.operands:
                self._root.update(dict.fromkeys(inner.defined, self._buffer(inner.operands[0])))
            for buffer, *how in self._direct(inner):
                touched[buffer] = (True, True, False) if inner is not operation else (how[0], how[1], how[2])
        return [self._access(buffer, *how) for buffer, how in touched.items()]

    def _access(self, buffer: str, reads: bool, writes: bool, adds: bool) -> Access:
        number = len(self._found)
        before = self._holds.get(buffer, _at_start(buffer))
        after = f"{buffer}@{number}" if writes else ""
        access = Access(buffer, number, before if reads else "", after, adds)
        if writes:
            self._holds[buffer] = after
        self._found.append(access)
        return access

    def _direct(self, operation: IrOperation) -> list[tuple[str, bool, bool, bool]]:
        """(buffer, reads, writes, adds) of one operation, regions left out."""
        name = short_name(operation)
        if name not in ACCESSES:
            return []
        if name == TMEM_ALLOC:
            fills = any(_in_registers(self._types.get(v)) for v in operation.operands)
            return [(operation.defined[0], False, True, False)] if fills else []
        operands = values_read(operation)
        held = [(v, self._buffer(v)) for v in operands if self.holds(v)]
        if name in (TMEM_LOAD, TMEM_STORE):
            return [(buffer, name == TMEM_LOAD, name == TMEM_STORE, False) for _, buffer in held]
        # tcgen05.mma: A, B, D, …, whether it adds to D, whether it runs. Only the constant says that it does not add.
        result = operands[2:3]
        adds = not any(v.startswith("%false") for v in operands[3:])
        return [(buffer, v not in result or adds, v in result, v in result and adds) for v, buffer in held]

    def _buffer(self, value: str) -> str:
        return self._root.get(value, value)

    def holds(self, value: str) -> bool:
        """Whether ``value`` is a buffer in tensor memory."""
        kind = self._types.get(value)
        return kind is not None and SPACE in kind.rest

    def around(self) -> dict[str, str]:
        """What each buffer holds when an iteration begins: what the one before left."""
        return {_at_start(buffer): last for buffer, last in self._holds.items()}

    def written(self, accesses: Iterable[Access]) -> TensorBuffer | None:
        """The buffer that one of ``accesses`` writes."""
        for access in accesses:
            kind = self._types.get(access.buffer)
            if access.written and kind is not None:
                lanes = LANES // 2 if len(kind.shape) > 1 and kind.shape[-2] == LANES // 2 else LANES
                held = any(a.read == _at_start(access.buffer) for a in self._found)
                return TensorBuffer(access.buffer, kind.bytes, lanes, held)
        return None

    def order(self) -> list[tuple[Access, Access, int]]:
        """(earlier, later, distance): each write after the reads since the write before it, or after that write where
        nobody read; around the loop, too."""
        found = []
        for buffer in self._holds:
            accesses = [a for a in self._found if a.buffer == buffer]
            writes = [i for i, a in enumerate(accesses) if a.written]
            for number, at in enumerate(writes):
                # The last write of the iteration before where this is the first; then what came since.
                former, wraps = (writes[number - 1], 0) if number else (writes[-1] - len(accesses), 1)
                since = [(accesses[i], int(i < 0)) for i in range(former + 1, at) if accesses[i].read]
                found += [(a, accesses[at], wrap) for a, wrap in since]
                if not since and not accesses[at].read:
                    found.append((accesses[former], accesses[at], wraps))
        return found


def values_read(operation: IrOperation) -> list[str]:
    """The operands of ``operation``; of an access to tensor memory without its token, printed as
    ``%buffer[%token]``."""
    if short_name(operation) not in ACCESSES:
        return operation.operands
    tokens = operation.tokens
    return [t for i, t in enumerate(tokens) if is_value(t) and not (i and tokens[i - 1] == "[")]


def _at_start(buffer: str) -> str:
    return f"{buffer}@start"


def _in_registers(kind: ShapedType | None) -> bool:
    return kind is not None and kind.kind == "tensor"
