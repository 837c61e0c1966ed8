"""Polynomials written as operations, before one operation of a region."""

from __future__ import annotations

from warpplan.kernels.compiler.pointers.scalars.polynomials import Polynomial
from warpplan.kernels.compiler.pointers.scalars.scalar_values import ScalarReader
from warpplan.kernels.compiler.ttgir.ir import IrOperation
from warpplan.kernels.compiler.ttgir.parsing import parse_operation

MOST_I32 = 2**31 - 1


class ScalarWriter:
    """Appends to ``out``; its names start with ``stem``. Triton's own passes share what is computed twice."""

    def __init__(self, scalars: ScalarReader, stem: str, location: str) -> None:
        self.scalars, self.stem, self.location = scalars, stem, location
        self.out: list[IrOperation] = []

    def op(self, text: str) -> str:
        """``text`` with ``$`` for its result, which is answered."""
        name = f"{self.stem}_{len(self.out)}"
        operation = parse_operation(text.replace("$", name, 1))
        operation.location = self.location
        self.out.append(operation)
        return name

    def constant(self, value: int, kind: str) -> str:
        return self.op(f"$ = arith.constant {value} : {kind}")

    def wide(self, value: Polynomial) -> str:
        """``value`` as an ``i64``."""
        return self._sum(value, "i64")

    def narrow(self, value: Polynomial) -> str:
        """``value`` as an ``i32``: from 64 bits where one of its names has that many."""
        if any(self.scalars.kind(name) == "i64" for name in value.names):
            return self.op(f"$ = arith.trunci {self.wide(value)} : i64 to i32")
        return self._sum(value, "i32")

    def extent(self, value: Polynomial) -> str:
        """``value`` as a tensor's size: an ``i32`` from 1 on."""
        if any(self.scalars.kind(name) == "i64" for name in value.names):
            most = self.constant(MOST_I32, "i64")
            least = self.op(f"$ = arith.minsi {self.wide(value)}, {most} : i64")
            most = self.op(f"$ = arith.maxsi {least}, {self.constant(1, 'i64')} : i64")
            return self.op(f"$ = arith.trunci {most} : i64 to i32")
        return self.op(f"$ = arith.maxsi {self._sum(value, 'i32')}, {self.constant(1, 'i32')} : i32")

    def _sum(self, value: Polynomial, kind: str) -> str:
        total = ""
        for monomial, c in value.terms:
            factors = [self._named(name, kind) for name in monomial]
            if c != 1 or not factors:
                factors.append(self.constant(c, kind))
            product, *more = factors
            for factor in more:
                product = self.op(f"$ = arith.muli {product}, {factor} : {kind}")
            total = self.op(f"$ = arith.addi {total}, {product} : {kind}") if total else product
        return total or self.constant(0, kind)

    def _named(self, name: str, kind: str) -> str:
        mine = self.scalars.kind(name)
        if mine == kind:
            return name
        return self.op(f"$ = arith.extsi {name} : {mine} to {kind}")
