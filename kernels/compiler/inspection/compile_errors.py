"""What Triton says of a kernel that it does not compile, in one line with the place in the user's file."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from warpplan.kernels.triton_types import JitFunction


def compile_error_line(error: BaseException, kernel: JitFunction) -> str:
    """The last line of what ``error``, or the error that caused it, says, after the file, line and column where
    Triton's front end was: in ``kernel`` or in a helper that it calls, where that is found."""
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    lines = [line.strip() for line in str(causes[-1]).splitlines() if line.strip()]
    message = lines[-1] if lines else type(causes[-1]).__name__
    places = (_place(each, kernel) for each in reversed(causes))  # the innermost is the statement itself
    where = next((place for place in places if place), "")
    return f"{where}: {message}" if where else message


def _place(error: BaseException, kernel: JitFunction) -> str:
    """Where a ``CompilationError`` of Triton's says that it is: it counts lines from the ``def`` of the function whose
    source it has; "" for another error, and for a function that is not found."""
    node, source = getattr(error, "node", None), getattr(error, "src", None)
    line, column = getattr(node, "lineno", None), getattr(node, "col_offset", None)
    if not isinstance(line, int) or not isinstance(column, int) or not isinstance(source, str):
        return ""
    function = next((f for f in _functions(kernel) if getattr(f, "src", None) == source), None)
    if function is None:
        return ""
    try:
        code, first = inspect.getsourcelines(function.fn)
        file = inspect.getsourcefile(function.fn)
    except (OSError, TypeError):
        return ""
    heads = [i for i, text in enumerate(code) if re.match(r"\s*def\s", text)]
    if file is None or not heads:
        return ""
    indent = len(code[heads[0]]) - len(code[heads[0]].lstrip())
    return f"{Path(file).name}:{first + heads[0] + line - 1}:{indent + column + 1}"


def _functions(kernel: JitFunction) -> Iterator[JitFunction]:
    """``kernel`` and the functions under ``@triton.jit`` that it can name, those that these can name, and so on."""
    waiting, seen = [kernel], set[int]()
    while waiting:
        function = waiting.pop(0)
        if id(function) in seen:
            continue
        seen.add(id(function))
        yield function
        named = getattr(getattr(function, "fn", None), "__globals__", {})
        waiting += [value for value in named.values() if isinstance(value, type(kernel))]
