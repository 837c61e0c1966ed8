"""A kernel's whole numbers as polynomials, and what is known of them: sign, divisor, type, the loop that changes them.

Sums do not leave their type's range: an index that did would point outside of any tensor. Divisors are positive and
so is what the arguments count (sizes, strides); the latter is collected, for the launch to check.
"""

from __future__ import annotations

import math
import re

from warpplan.kernels.compiler.analysis.value_flow import CARRIED, PLAIN, VARIABLE, Definition, definitions
from warpplan.kernels.compiler.pointers.scalars.polynomials import Polynomial
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.functions import arguments
from warpplan.kernels.compiler.ttgir.ir import IrOperation

ONE = Polynomial.constant(1)
_SAME = {"arith.extsi", "arith.index_cast"}
_NEVER_NEGATIVE = {"tt.get_program_id", "tt.get_num_programs", "arith.extui"}
_SINCE = " since the first"
"""Behind a counter's name: what it has gone up by since the loop began."""


class ScalarReader:
    """Reads the scalars of ``function``, whose names are unique."""

    def __init__(self, function: IrOperation) -> None:
        self.function = function
        self.defined: dict[str, Definition] = definitions(function)
        self.arguments = arguments(function)
        self._divisors = _argument_divisors(function)
        self._read: dict[str, Polynomial] = {}
        self._reading: set[str] = set()

    def read(self, name: str) -> Polynomial:
        """The scalar ``name``; itself where it is no sum of products."""
        if name not in self._read:
            if name in self._reading:
                return Polynomial.named(name)
            self._reading.add(name)
            found = self._of(name)
            self._reading.discard(name)
            self._read[name] = found
        return self._read[name]

    def _of(self, name: str) -> Polynomial:
        made = self.defined.get(name)
        itself = Polynomial.named(name)
        if made is None:
            return itself
        operation = made.operation
        if made.kind == CARRIED:
            return self._carried(name, made) or itself
        if made.kind != PLAIN:
            return itself
        if operation.name == "arith.constant":
            number = operation.tokens[0]
            return Polynomial.constant(int(number)) if re.fullmatch(r"-?\d+", number) else itself
        if operation.name in _SAME:
            return self.read(made.sources[0])
        if operation.name in ("arith.addi", "arith.subi", "arith.muli"):
            return combined(operation.name, *(self.read(source) for source in made.sources))
        if operation.name == "arith.shli":
            shift = self.read(made.sources[1]).value
            if shift is not None and 0 <= shift < 31:
                return self.read(made.sources[0]) * Polynomial.constant(1 << shift)
        return itself

    def _carried(self, name: str, made: Definition) -> Polynomial | None:
        """What a counted loop adds a fixed amount to, by the loop's own counter."""
        if made.operation.name != "scf.for":
            return None
        loop = control.read_loop(made.operation)
        inside, initial, _, _ = loop.carried[made.position]
        if name != inside:
            return None
        # Named while it is read, so that the sum shows what is added.
        step = self._unshared(loop.yielded[made.position]) - Polynomial.named(name)
        steps = self.after_steps(step, made.operation)
        return None if steps is None else self.read(initial) + steps

    def _unshared(self, name: str) -> Polynomial:
        """``name`` read with whatever is being read now left by its name, and not remembered so."""
        before = dict(self._read)
        try:
            return self.read(name)
        finally:
            self._read = before

    def after_steps(self, step: Polynomial, operation: IrOperation) -> Polynomial | None:
        """What has been added at an iteration of the ``scf.for`` that adds ``step`` in each; ``None`` where ``step``
        changes in it, or is no multiple of what the counter goes up by."""
        loop = control.read_loop(operation)
        if any(self.inside(name, operation) for name in step.names):
            return None
        by = self.read(loop.step)
        each = step.divided(by)
        return None if each is None else each * (Polynomial.named(loop.variable) - self.read(loop.lower))

    def inside(self, name: str, loop: IrOperation) -> bool:
        """Whether ``name`` is defined by ``loop`` for its body, or in it."""
        made = self.defined.get(name)
        if made is None:
            return False
        if made.operation is loop:
            return name not in loop.defined
        return any(made.operation is inner for inner in loop.walk())

    def is_counter(self, name: str) -> bool:
        made = self.defined.get(name)
        return made is not None and made.kind == VARIABLE

    def kind(self, name: str) -> str:
        """``i32`` or ``i64``, or whatever type it is printed with."""
        if name in self.arguments:
            return self.arguments[name]
        made = self.defined[name]
        operation = made.operation
        if made.kind == VARIABLE:
            return control.read_loop(operation).kind
        if operation.name == "scf.for":
            return control.read_loop(operation).carried[made.position][2]
        if operation.name == "scf.while":
            loop = control.read_while(operation)
            return loop.carried[made.position][2] if made.kind == CARRIED else loop.handed[made.position][1]
        if operation.name == "scf.if":
            return control.read_branch(operation).results[made.position][0]
        kind = operation.signature.rpartition("->")[2].rpartition(" to ")[2].strip()
        return kind.partition("!tt.ptr<")[2].rstrip(">") if operation.name == "tt.load" else kind

    def divisor(self, name: str) -> int:
        """A number that ``name`` is always a multiple of."""
        made = self.defined.get(name)
        if made is None:
            return self._divisors.get(name, 1)
        if made.kind == VARIABLE:
            loop = control.read_loop(made.operation)
            return math.gcd(*(self.read(value).divisor(self.divisor) for value in (loop.lower, loop.step))) or 1
        hint = made.operation.attributes.get("tt.divisibility", "") if made.kind == PLAIN else ""
        found = re.search(r"\d+", hint)
        return int(found[0]) if found else 1

    def not_negative(self, value: Polynomial, positive: set[str]) -> bool:
        """Whether every term of ``value`` is known to be 0 or more. Adds to ``positive`` the arguments that have to be
        for that."""
        needed: set[str] = set()
        known = self._value_not_negative(value, needed, ())
        if known:
            positive |= needed
        return known

    def _value_not_negative(self, value: Polynomial, needed: set[str], open_names: tuple[str, ...]) -> bool:
        return all(
            c > 0 and all(self._name_not_negative(n, needed, open_names) for n in monomial)
            for monomial, c in self._from_first(value).terms
        )

    def _from_first(self, value: Polynomial) -> Polynomial:
        """``value`` with each loop's counter as its first value and what it has gone up by since."""
        while True:
            counter = next((name for name in value.names if self.is_counter(name)), None)
            if counter is None:
                return value
            lower = self.read(control.read_loop(self.defined[counter].operation).lower)
            value = value.with_name(counter, lower + Polynomial.named(counter + _SINCE))

    def _name_not_negative(self, name: str, needed: set[str], open_names: tuple[str, ...]) -> bool:
        if name in open_names or name.endswith(_SINCE):
            return True  # what a loop carries, by induction; what a counter has gone up by
        below = (*open_names, name)
        made = self.defined.get(name)
        if made is None:
            needed.add(name)
            return self.arguments.get(name, "").startswith("i")

        def known(source: str) -> bool:
            return self._value_not_negative(self.read(source), needed, below)

        operation = made.operation
        if made.kind != PLAIN:
            return all(map(known, made.sources))
        if operation.name in _NEVER_NEGATIVE:
            return True
        if operation.name in ("arith.divsi", "arith.ceildivsi", "arith.remsi", "arith.shrsi"):
            return known(made.sources[0])
        if operation.name == "arith.maxsi":
            return any(map(known, made.sources))
        if operation.name == "arith.select":
            return all(map(known, made.sources[1:]))
        return operation.name in ("arith.minsi", "arith.extsi", "arith.trunci") and all(map(known, made.sources))


def combined(name: str, left: Polynomial, right: Polynomial) -> Polynomial:
    """``arith.addi``, ``arith.subi`` or ``arith.muli`` of two polynomials."""
    return left + right if name == "arith.addi" else left - right if name == "arith.subi" else left * right


def _argument_divisors(function: IrOperation) -> dict[str, int]:
    """``tt.divisibility`` of the arguments that have it: bytes for a pointer."""
    head = "".join(part for part in function.parts if isinstance(part, str))
    found = re.finditer(r"(%[\w$.-]+): [^%]*?\{[^}%]*tt\.divisibility = (\d+)", head)
    return {match[1]: int(match[2]) for match in found}
