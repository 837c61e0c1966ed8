"""Operations written one after another into one partition of a specialised kernel."""

from __future__ import annotations

from warpplan.kernels.compiler.ttgir.ir import IrOperation
from warpplan.kernels.compiler.ttgir.parsing import parse_operation
from warpplan.kernels.compiler.ttgir.types import ShapedType

BARRIER = "!ttg.memdesc<1xi64, ALIAS, #smem, mutable>"
BARRIER_LAYOUT = "#ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>"


class Builder:
    """Writes operations whose names start with ``prefix``; constants are made once, before everything else."""

    def __init__(self, barrier_alias: str, prefix: str) -> None:
        self.barrier = BARRIER.replace("ALIAS", barrier_alias)
        self.prefix = f"%wp_{prefix}"
        self.constants: dict[str, IrOperation] = {}
        self.count = 0

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{self.prefix}_{stem}{self.count}"

    def constant(self, value: int, kind: str = "i32") -> str:
        name = f"{self.prefix}_c{'m' if value < 0 else ''}{abs(value)}_{kind}"
        if name not in self.constants:
            self.constants[name] = parse_operation(f"{name} = arith.constant {value} : {kind}")
        return name

    def true(self) -> str:
        name = f"{self.prefix}_true"
        self.constants.setdefault(name, parse_operation(f"{name} = arith.constant true"))
        return name

    def op(self, out: list[IrOperation], text: str, location: str = "unknown") -> str:
        """Append the operation that ``text`` is; its result, named here where the text has ``$`` for it."""
        name = self.fresh("v")
        operation = parse_operation(text.replace("$", name))
        operation.location = location
        out.append(operation)
        return name

    def barrier_at(self, out: list[IrOperation], ring: str, depth: int, index: str) -> str:
        """The barrier of one slot, of the ``depth`` of ``ring``."""
        many = self.barrier.replace("<1xi64", f"<{depth}x1xi64")
        return self.op(out, f"$ = ttg.memdesc_index {ring}[{index}] : {many} -> {self.barrier}")

    def slot_at(self, out: list[IrOperation], ring: str, kind: ShapedType, index: str) -> str:
        """One slot of ``ring``, whose whole type is ``kind``."""
        slot = kind.with_shape(kind.shape[1:])
        return self.op(out, f"$ = ttg.memdesc_index {ring}[{index}] : {kind} -> {slot}")

    def wait(self, out: list[IrOperation], barrier: str, phase: str) -> None:
        self.op(out, f"ttng.wait_barrier {barrier}, {phase} : {self.barrier}")

    def arrive(self, out: list[IrOperation], barrier: str, condition: str = "") -> None:
        guard = f", {condition}" if condition else ""
        self.op(out, f"ttng.arrive_barrier {barrier}, 1{guard} : {self.barrier}")

    def next_position(self, out: list[IrOperation], index: str, phase: str, depth: int) -> tuple[str, str]:
        """Ring index and phase bit after (``index``, ``phase``): the bit flips where the ring of ``depth`` slots
        wraps."""
        one = self.constant(1)
        if depth == 1:
            return index, self.op(out, f"$ = arith.xori {phase}, {one} : i32")
        following = self.op(out, f"$ = arith.addi {index}, {one} : i32")
        wraps = self.op(out, f"$ = arith.cmpi eq, {following}, {self.constant(depth)} : i32")
        slot = self.op(out, f"$ = arith.select {wraps}, {self.constant(0)}, {following} : i32")
        flipped = self.op(out, f"$ = arith.xori {phase}, {one} : i32")
        return slot, self.op(out, f"$ = arith.select {wraps}, {flipped}, {phase} : i32")

    def slot_before(self, out: list[IrOperation], index: str, depth: int) -> str:
        """The slot before ``index`` on the ring."""
        back = self.op(out, f"$ = arith.addi {index}, {self.constant(-1)} : i32")
        first = self.op(out, f"$ = arith.cmpi eq, {index}, {self.constant(0)} : i32")
        return self.op(out, f"$ = arith.select {first}, {self.constant(depth - 1)}, {back} : i32")
