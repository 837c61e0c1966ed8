"""Polynomials with whole coefficients over a kernel's scalar values: what addresses, bounds and strides are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Monomial = tuple[str, ...]
"""The names of its factors, sorted; ``()`` is the constant's."""


@dataclass(frozen=True)
class Polynomial:
    """The sum of ``terms``: monomials, sorted, and their coefficients, none of which is 0."""

    terms: tuple[tuple[Monomial, int], ...] = ()

    @classmethod
    def of(cls, terms: Mapping[Monomial, int]) -> Polynomial:
        return cls(tuple(sorted((monomial, c) for monomial, c in terms.items() if c)))

    @classmethod
    def constant(cls, value: int) -> Polynomial:
        return cls.of({(): value})

    @classmethod
    def named(cls, name: str) -> Polynomial:
        return cls.of({(name,): 1})

    def __add__(self, other: Polynomial) -> Polynomial:
        found = dict(self.terms)
        for monomial, c in other.terms:
            found[monomial] = found.get(monomial, 0) + c
        return Polynomial.of(found)

    def __neg__(self) -> Polynomial:
        return Polynomial(tuple((monomial, -c) for monomial, c in self.terms))

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial) -> Polynomial:
        found: dict[Monomial, int] = {}
        for mine, c in self.terms:
            for theirs, d in other.terms:
                product = tuple(sorted(mine + theirs))
                found[product] = found.get(product, 0) + c * d
        return Polynomial.of(found)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for monomial, _ in self.terms for name in monomial)

    @property
    def value(self) -> int | None:
        """The number that it is, ``None`` where it has a factor with a name."""
        if not self.terms:
            return 0
        (monomial, c), *more = self.terms
        return c if not more and not monomial else None

    def with_name(self, name: str, value: Polynomial) -> Polynomial:
        """It with ``value`` in place of ``name``."""
        total = Polynomial()
        for monomial, c in self.terms:
            product = Polynomial.constant(c)
            for factor in monomial:
                product = product * (value if factor == name else Polynomial.named(factor))
            total = total + product
        return total

    def where(self, keep: Callable[[Monomial, int], bool]) -> Polynomial:
        """Those of its terms that ``keep`` says yes to."""
        return Polynomial(tuple((monomial, c) for monomial, c in self.terms if keep(monomial, c)))

    def divided(self, divisor: Polynomial) -> Polynomial | None:
        """The quotient by ``divisor``, a single term; ``None`` where a term is no multiple of it."""
        if len(divisor.terms) != 1:
            return None
        (factors, c) = divisor.terms[0]
        found: dict[Monomial, int] = {}
        for monomial, d in self.terms:
            left = list(monomial)
            for factor in factors:
                if factor not in left:
                    return None
                left.remove(factor)
            if d % c:
                return None
            found[tuple(left)] = d // c
        return Polynomial.of(found)

    def divisor(self, of_name: Callable[[str], int]) -> int:
        """A number that it is always a multiple of, where each name is one of ``of_name(name)``; 0 for nothing."""
        return math.gcd(*(c * math.prod(map(of_name, monomial)) for monomial, c in self.terms))
