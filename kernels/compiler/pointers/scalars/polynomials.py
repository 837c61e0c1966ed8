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
        """The quotient by ``divisor``; ``None`` where :meth:`divided_with_remainder` leaves a remainder."""
        quotient, remainder = self.divided_with_remainder(divisor)
        return quotient if divisor.terms and not remainder.terms else None

    def divided_with_remainder(self, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
        """Quotient and remainder of a division that adds no terms: ``self`` is quotient times ``divisor`` plus
        remainder, and each term of the remainder has a monomial of ``self``, with its sign and no larger a coefficient.

        A multiple of ``divisor`` is taken out where its terms are all there and at least one of them is used up: of
        128pK + 2048p + 3p + k by K + 16, 128p times K + 16, and 3p + k remains. Of a divisor of one term these are the
        terms that are multiples of it. Polynomial division by the leading term alone would also turn K into the
        quotient 1 and the remainder -16, which as a column of a tensor lies before it.
        """
        left, found = dict(self.terms), dict[Monomial, int]()
        quotients = {_without(monomial, factors) for monomial in left for factors, _ in divisor.terms}
        for factors in sorted(q for q in quotients if q is not None):
            product = [(tuple(sorted(factors + monomial)), c) for monomial, c in divisor.terms]
            times = _times([(left.get(monomial, 0), c) for monomial, c in product])
            for monomial, c in product if times else ():
                left[monomial] -= times * c
            found[factors] = times
        return Polynomial.of(found), Polynomial.of(left)

    def divisor(self, of_name: Callable[[str], int]) -> int:
        """A number that it is always a multiple of, where each name is one of ``of_name(name)``; 0 for nothing."""
        return math.gcd(*(c * math.prod(map(of_name, monomial)) for monomial, c in self.terms))


def _without(monomial: Monomial, factors: Monomial) -> Monomial | None:
    """``monomial`` over ``factors``; ``None`` where one of them is not in it."""
    left = list(monomial)
    for factor in factors:
        if factor not in left:
            return None
        left.remove(factor)
    return tuple(left)


def _times(pairs: list[tuple[int, int]]) -> int:
    """How many times the second of each pair goes into its first, all at once and with nothing left of one of them; 0
    where it does not. No first is overshot."""
    times = min(abs(mine) // abs(c) for mine, c in pairs)
    if not times or not any(abs(mine) == times * abs(c) for mine, c in pairs):
        return 0
    signs = {mine * c > 0 for mine, c in pairs}
    return 0 if len(signs) > 1 else times if signs.pop() else -times
