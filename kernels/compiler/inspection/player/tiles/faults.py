"""What ends a played kernel.

KernelFault    the kernel does something wrong: a race, a hang, an access out of bounds
NotPlayed      it uses an operation that the player does not know
"""

from __future__ import annotations

from typing import Literal

from warpplan.planner.errors import InvalidInput, WarpplanError

FaultKind = Literal["race", "hang", "bounds", "fence", "barrier", "unwaited", "descriptor"]


class KernelFault(WarpplanError):
    """What a played kernel does wrong: ``kind``, in ``partition``, at source ``line``, by ``operation``."""

    def __init__(
        self, kind: FaultKind, message: str, *, partition: str = "", operation: str = "", line: str = ""
    ) -> None:
        where = ", ".join(part for part in (partition, operation, line) if part)
        super().__init__(f"{kind}: {message}" + f" ({where})" * bool(where), field="ttgir", value=operation or None)
        self.kind, self.partition, self.operation, self.line = kind, partition, operation, line


class NotPlayed(InvalidInput):
    """An ``operation`` that the player does not know, at source ``line``."""

    def __init__(self, operation: str, line: str = "", why: str = "") -> None:
        where = f" ({line})" if line else ""
        super().__init__(f"not played: {operation}{where}{f': {why}' if why else ''}", field="ttgir", value=operation)
        self.operation, self.line = operation, line
