"""A kernel and what it is compiled for, written on one line: ``a=bf16[128,64], c_ptr=*bf16, M=i32:16, BM=128``.

``bf16[128,64]`` or ``tensordesc<bf16[128,64]>`` is a host-made descriptor with its box; ``*bf16`` a pointer, aligned to
16 bytes as tensors are unless it says ``:1``; ``i32:16`` a number that is a multiple of 16; a plain number is the value
of a constexpr, or a number of that value's kind for a parameter that is none; ``None`` a pointer that is not passed. A
constexpr may be a type, ``DTYPE=bf16`` or ``DTYPE=tl.bfloat16``. Constexprs may have defaults.
"""

from __future__ import annotations

import ast
import re

from warpplan.kernels.compiler.ttgir.ir import split_list
from warpplan.kernels.triton_types import AstSource, JitFunction, Json
from warpplan.planner.errors import InvalidInput

_SCALARS = ("i1", "i8", "i16", "i32", "i64", "u1", "u8", "u16", "u32", "u64", "fp16", "bf16", "fp32", "fp64")
_ELEMENTS = ("fp8e4nv", "fp8e5", "fp8e4b15", *_SCALARS)
_BOX = re.compile(r"(?:tensordesc<)?(\w+)\s*\[\s*(\d+(?:\s*,\s*\d+)*)\s*\]>?")
_DIVISIBLE = 16


def source_of(kernel: JitFunction, text: str) -> AstSource:
    """The Triton ``ASTSource`` of ``kernel`` (a ``JITFunction``) with the arguments in ``text``.

    Raises :class:`InvalidInput` naming the parameter that is missing, unknown or of no type.
    """
    from triton.compiler import ASTSource

    given = parse_signature(text)
    names = [parameter.name for parameter in kernel.params]
    unknown = next((name for name in given if name not in names), None)
    if unknown is not None:
        raise _bad(unknown, given[unknown], f"the kernel has no such parameter, but {', '.join(names)}")
    signature: dict[str, str] = {}
    constants: dict[tuple[int], Json] = {}
    attributes: dict[tuple[int], list[list[str | int]]] = {}
    for index, parameter in enumerate(kernel.params):
        name = parameter.name
        if name not in given:
            default = getattr(parameter, "default", None)
            if not parameter.is_constexpr or not parameter.has_default:
                raise _bad(name, None, "missing: give its type, or a value if it is a constexpr")
            signature[name], constants[(index,)] = "constexpr", default
            continue
        kind, value, divisible = _argument(name, given[name], bool(parameter.is_constexpr))
        signature[name] = kind
        if kind == "constexpr":
            constants[(index,)] = value
        elif divisible:
            attributes[(index,)] = [["tt.divisibility", _DIVISIBLE]]
    return ASTSource(kernel, signature, constants, attributes)


def parse_signature(text: str) -> dict[str, str]:
    """``name=…`` pairs, in order. Raises :class:`InvalidInput` for anything else, and for a name given twice."""
    found: dict[str, str] = {}
    for piece in split_list(text):
        name, equals, value = (part.strip() for part in piece.partition("="))
        if not equals or not name.isidentifier() or not value:
            raise InvalidInput(
                f"signature has {piece!r}: expected NAME=TYPE or NAME=VALUE, such as a=bf16[128,64] or BM=128",
                field="signature", value=piece,
            )  # fmt: skip
        if name in found:
            raise _bad(name, value, f"given twice, as {found[name]} and {value}")
        found[name] = value
    return found


def _argument(name: str, text: str, constexpr: bool) -> tuple[str, Json, bool]:
    """Triton's type, the value of a constexpr, and whether it is known to be divisible by 16."""
    if constexpr:
        try:
            return "constexpr", ast.literal_eval(text), False
        except (ValueError, SyntaxError):
            pass
        dtype = _dtype(text)
        if dtype is None:
            raise _bad(
                name, text, "a constexpr: expected a number, True, False, None, a quoted text or a type such as bf16"
            )
        return "constexpr", dtype, False
    if text == "None":
        return "constexpr", None, False
    kind, _, multiple = text.partition(":")
    kind = kind.strip()
    if multiple and multiple.strip() not in ("1", str(_DIVISIBLE)):
        raise _bad(name, text, f"expected :{_DIVISIBLE} for a multiple of {_DIVISIBLE}, or :1 for any number")
    box = _BOX.fullmatch(text)
    if box is not None and box[1] in _ELEMENTS:
        sizes = ",".join(size.strip() for size in box[2].split(","))
        return f"tensordesc<{box[1]}[{sizes}]>", None, False
    if kind.startswith("*") and kind[1:] in _ELEMENTS:
        return kind, None, multiple.strip() != "1"
    if kind in _SCALARS:
        return kind, None, multiple.strip() == str(_DIVISIBLE)
    if re.fullmatch(r"-?\d+", text):
        number = int(text)
        return ("constexpr", 1, False) if number == 1 else ("i32", None, number % _DIVISIBLE == 0)
    if re.fullmatch(r"-?\d+\.\d*(e-?\d+)?", text):
        return "fp32", None, False
    known = ", ".join(_SCALARS)
    raise _bad(name, text, f"no type: expected bf16[128,64] for a descriptor, *bf16 for a pointer, or one of {known}")


def _dtype(text: str) -> Json:
    """Triton's type that is named as in a signature (``bf16``, ``i32``) or as ``triton.language`` has it
    (``tl.bfloat16``, ``int32``); ``None`` where there is none."""
    import triton.language as tl

    name = re.sub(r"^(tl\.|triton\.language\.)", "", text)
    whole = re.fullmatch(r"([iu])(\d+)", name)
    name = f"{'u' * (whole[1] == 'u')}int{whole[2]}" if whole is not None else name
    dtypes = {key: value for key, value in vars(tl).items() if type(value) is tl.dtype}
    return dtypes.get(name) or next((dtype for dtype in dtypes.values() if dtype.name == name), None)


def _bad(name: str, value: object, why: str) -> InvalidInput:
    shown = f" = {value}" if value is not None else ""
    return InvalidInput(f"signature: {name}{shown}: {why}", field=f"signature.{name}", value=value)
