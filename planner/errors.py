"""The exceptions of warpplan, drawn as one tree.

WarpplanError
├── InvalidInput          something the user gave cannot be used       (exit 2, HTTP 422)
│   ├── UnknownName       a kernel, dtype, device, target nobody knows (HTTP 404)
│   ├── InvalidShape      a size that is missing, not whole, too small or absurd
│   ├── InvalidConfig     a tuning configuration that the kernel cannot run
│   ├── InvalidGraph      a dependence graph that contradicts itself
│   └── MalformedFile     a file that does not parse, with its line
├── Infeasible            no plan exists within the limits, with what binds
├── InvalidPlan           the solver's own plan breaks a rule: a bug
├── MissingCosts          the profile lacks operations that the plan needs
├── SimulationFault       a played plan deadlocks, overwrites a slot or reads too early
├── StoreError            the store cannot be read or written
└── MeasurementFailed     a probe or kernel crashed, hung or gave nothing
"""

from __future__ import annotations

from collections.abc import Iterable


class WarpplanError(Exception):
    """Base of every error that warpplan raises on purpose.

    ``field`` names the offending input, ``value`` is what it held and ``limit`` what it may hold; each is
    ``None`` where it does not apply. The message is one line and says the way out.
    """

    def __init__(self, message: str, *, field: str | None = None, value: object = None, limit: object = None) -> None:
        super().__init__(message)
        self.field = field
        self.value = value
        self.limit = limit


class InvalidInput(WarpplanError):
    """Something the user gave cannot be used."""


class UnknownName(InvalidInput):
    """A name that is not in its list; the message ends with the list."""

    def __init__(self, field: str, value: object, known: Iterable[str]) -> None:
        names = tuple(known)
        super().__init__(
            f"unknown {field} {value!r}: expected one of {', '.join(names) or '(none)'}",
            field=field,
            value=value,
            limit=list(names),
        )


class InvalidShape(InvalidInput):
    """A size that is missing, not a whole number, too small or absurd."""


class InvalidConfig(InvalidInput):
    """A tuning configuration that its kernel cannot run on the device."""


class InvalidGraph(InvalidInput):
    """A dependence graph that contradicts itself."""


class MalformedFile(InvalidInput):
    """A file that does not parse. ``line`` counts from 1; ``None`` where the file has no lines."""

    def __init__(self, path: object, reason: str, *, line: int | None = None, field: str | None = None) -> None:
        where = f"{path}:{line}" if line is not None else f"{path}"
        super().__init__(f"{where}: {reason}", field=field, value=str(path))
        self.path = str(path)
        self.line = line


class Infeasible(WarpplanError):
    """No plan exists within the limits; ``limit`` names the constraint that binds."""


class InvalidPlan(WarpplanError):
    """A plan that breaks a rule left the solver: a mistake in the solver or in the checker, never an answer."""


class MissingCosts(WarpplanError):
    """The profile lacks operations that the plan needs; ``operations`` lists them."""

    def __init__(self, operations: Iterable[str]) -> None:
        self.operations = tuple(operations)
        super().__init__(
            f"the profile has no measured cost for {', '.join(self.operations)}: "
            "record them with `warpplan profile --out FILE` or use the embedded profile",
            field="profile",
            value=list(self.operations),
        )


class SimulationFault(WarpplanError):
    """What a plan would do wrong when run: operation ``op`` of ``iteration`` at ``cycle``; ``slot`` of the ring
    concerned, if any."""

    def __init__(self, message: str, *, op: str, iteration: int, cycle: int, slot: int | None = None) -> None:
        super().__init__(message, field="plan", value=op)
        self.op, self.iteration, self.cycle, self.slot = op, iteration, cycle, slot


class StoreError(WarpplanError):
    """The store cannot be read or written (locked, read-only, corrupt, newer schema)."""


class MeasurementFailed(WarpplanError):
    """A probe or a kernel crashed, hung or gave no number."""
