"""What kind of work an operation of TTGIR is, in the words of the profile's cost table.

A :class:`Part` is one pass of a profile kind over ``size`` elements or bytes; an operation is a sum of parts. What was
not measured is estimated from what was, by instruction counts named here, and says so.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from warpplan.kernels.compiler.ttgir.ir import IrOperation, split_list
from warpplan.kernels.compiler.ttgir.types import ShapedType, find_types, parse_type

Kind = Literal[
    "tma_load", "copy_load", "converted", "tma_store", "load", "store", "dot", "elementwise", "sfu", "reduce",
    "shared_store", "shared_load", "convert_layout", "tmem_load", "tmem_store", "loop",
]  # fmt: skip
UNIT: dict[Kind, str] = {
    "tma_load": "TMA", "copy_load": "LSU", "converted": "LSU", "tma_store": "TMA", "load": "LSU", "store": "LSU",
    "dot": "TENSOR", "elementwise": "ALU", "sfu": "SFU", "reduce": "ALU", "shared_store": "LSU", "shared_load": "LSU",
    "convert_layout": "LSU", "tmem_load": "LSU", "tmem_store": "LSU", "loop": "ALU",
}  # fmt: skip

LONGEST_EARLY = 512
"""Elements of the longest vector that a consumer loads an iteration ahead. Chosen by hand: the rows or columns of a
tile, of which a thread has few. Doubled, longer vectors are held in registers for an iteration more."""

FREE = frozenset({
    "arith.constant", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.make_range", "tt.reshape", "tt.unsplat",
    "ttg.memdesc_trans", "ttg.memdesc_subslice", "ttg.memdesc_index", "ttg.memdesc_reshape", "ttg.memdesc_reinterpret",
    "ttg.local_dealloc", "tt.bitcast", "arith.bitcast", "tt.trans", "tt.split", "tt.join", "ub.poison", "gpu.barrier",
    "tt.get_program_id", "tt.get_num_programs", "tt.make_tensor_descriptor", "scf.yield", "scf.condition", "tt.return",
    "llvm.intr.assume", "tt.tensordesc_to_tma_ptr",
})  # fmt: skip
"""Names for values that exist already, or nothing the loop waits for."""
TMA_LOAD, WGMMA = "tt.descriptor_load", "ttng.warp_group_dot"
TMA_LOADS = frozenset({TMA_LOAD, "tt.descriptor_gather"})
COPY_LOAD = "warpplan.copy"
"""A load through pointers that the producer copies by ``cp.async``: ours, never Triton's
(:mod:`~warpplan.kernels.compiler.analysis.copies.copied_loads`)."""
CONVERTED = "warpplan.converted"
"""An operand of a product that another partition computes and puts into a ring: ours, never Triton's
(:mod:`~warpplan.kernels.compiler.lowering.assigned.anchors`)."""
OPERANDS, EVERYTHING = 1, 2
"""Which loads through pointers the producer copies: operands of products; those and what is loaded beside them."""
VECTOR = "warpplan.vector"
"""Attribute of such a load: consecutive elements that one ``cp.async`` brings."""
RING_LOADS = frozenset({TMA_LOAD, COPY_LOAD, CONVERTED})
"""Operations that fill a slot of a ring on Hopper."""
LOAD_KINDS: tuple[Kind, ...] = ("tma_load", "copy_load")
RING_KINDS: tuple[Kind, ...] = (*LOAD_KINDS, "converted")
"""What fills the slots of rings: loads, and operands that another partition converts."""
TMA_STORES = frozenset({"tt.descriptor_store", "tt.descriptor_scatter", "tt.descriptor_reduce"})
DOTS = frozenset({WGMMA, "tt.dot", "tt.dot_scaled", "ttng.tc_gen5_mma", "ttng.tc_gen5_mma_scaled"})
TMEM_ALLOC, TMEM_LOAD, TMEM_STORE = "ttng.tmem_alloc", "ttng.tmem_load", "ttng.tmem_store"
ATOMICS = frozenset({"tt.atomic_rmw", "tt.atomic_cas"})
STORES = TMA_STORES | ATOMICS | {"tt.store"}
LOOPS = frozenset({"scf.for", "scf.while"})
CONTROL = LOOPS | {"scf.if"}
_TOKENS = frozenset({TMEM_LOAD, TMEM_STORE, "ttng.tc_gen5_mma", "ttng.tc_gen5_mma_scaled"})
"""Operations whose result is a token, or that return, besides their result, a token printed without its type."""
CASTS = frozenset({"arith.truncf", "tt.fp_to_fp", "arith.sitofp", "arith.uitofp", "arith.fptosi", "arith.fptoui"})
"""Conversions between formats; widening to fp32 is a shift."""

ESTIMATED_SFU = frozenset({
    "math.log", "math.log2", "math.sqrt", "math.rsqrt", "math.sin", "math.cos", "math.tanh", "math.erf",
    "tt.precise_sqrt",
})  # fmt: skip
"""One or two special functions each; of these kinds exp2 alone was measured."""
INSTRUCTIONS = {
    "arith.divf": 8, "tt.precise_divf": 8, "arith.remf": 16, "arith.divsi": 16, "arith.divui": 16, "arith.remsi": 16,
    "arith.remui": 16, "tt.addptr": 2, "tt.extern_elementwise": 4, "tt.elementwise_inline_asm": 4, "tt.mulhiui": 2,
}  # fmt: skip
"""Instructions an element of operations that are more than one (CUDA C++ Programming Guide, "Arithmetic
Instructions")."""
EXP_INSTRUCTIONS = 4.0
"""Instructions an element of ``math.exp`` beside ``MUFU.EX2``: the factor log2 e, and where the result is below 2⁻¹²⁶
(a comparison) the argument halved and the result squared, predicated but issued. SASS of Triton 3.6.0, whose
``math.exp2`` flushes such results to zero and takes none of them. Doubled, attention that uses ``tl.exp`` seems bound
by arithmetic."""
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e4m3fn"}
"""Operand types whose wgmma was measured; e5m2 runs at e4m3's rate, what is not here at bfloat16's, byte for byte."""
_NARROW = {"f8E4M3FN": "fp8", "f8E5M2": "fp8", "i8": "int8"}
_WIDE = {"f16": "float16", "bf16": "bfloat16"}
_COMBINERS = re.compile(r"\b(?:arith|math)\.\w+")


@dataclass(frozen=True)
class Part:
    """``times`` passes of profile kind ``kind`` over ``size`` elements or bytes; ``estimated`` where that kind stands
    for another."""

    kind: str
    size: int
    times: float = 1.0
    estimated: bool = False
    avoided: float = 0.0
    """Of ``times``, those that a plan does without."""


SELDOM = "warpplan.seldom"
"""Attribute of what masks a tile in few iterations of its loop (:mod:`~...pointers.masks.seldom_masks`)."""
TRANSPOSED = "warpplan.transposed"
"""Attribute of a copy into shared memory that is made element by element (:mod:`~.copies.transposed_stores`)."""
ELEMENT_PASSES = 36.0
"""Passes over a byte in shared memory that is stored alone, in place of 16 of a lane together: a warp's store of an
element each takes as long as its load of one (9 cycles, measured on an H200), of 512 bytes 4 cycles."""
FLUSHED = "warpplan.flushed"
"""Attribute of an exponential whose subnormal results nothing keeps (:mod:`~...pointers.softmax_weights`)."""


@dataclass(frozen=True)
class Product:
    """A [m, k] · [k, n] product; ``a`` is where the first operand is, "shared" or "register"; ``tensor_cores`` names
    the generation, "wgmma" being the one that was measured."""

    m: int
    n: int
    k: int
    element: ShapedType
    a: Literal["shared", "register"]
    tensor_cores: str = "wgmma"

    @property
    def dtype(self) -> str:
        return DTYPES.get(self.element.element, "bfloat16")

    @property
    def measured(self) -> bool:
        """Whether the rate of its operands' type is known as such, not as bfloat16's."""
        return self.element.element in DTYPES


@dataclass(frozen=True)
class Classified:
    kind: Kind
    parts: tuple[Part, ...]
    product: Product | None = None


def short_name(operation: IrOperation) -> str:
    """The name that people know: ``tt.reduce`` of the quoted generic form, ``tt.load`` of what a producer copies."""
    return "tt.load" if operation.name == COPY_LOAD else operation.name.strip('"')


def vector_of(operation: IrOperation) -> int:
    """Consecutive elements of one ``cp.async`` of a marked load."""
    return int(operation.attributes[VECTOR].split()[0])


def elements(kind: ShapedType | None) -> int:
    return elements_of(kind.shape) if kind is not None else 1


def elements_of(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def result_types(operation: IrOperation) -> list[ShapedType | None]:
    """The type of each result, in order; ``None`` for scalars, pointers and tokens."""
    names, name, signature = operation.defined, short_name(operation), operation.signature
    if not names:
        return []
    if name in _TOKENS:
        shaped = parse_type(find_types(signature)[-1]) if name == TMEM_LOAD else None
        return [shaped, *[None] * (len(names) - 1)]
    for arrow in ("->", " to "):
        before, found, after = signature.rpartition(arrow)
        if found and before.count("<") == before.count(">") + before.count("->"):
            after = after.strip()
            listed = split_list(after[1:-1]) if after.startswith("(") else [after]
            types = [parse_type(text) for text in listed]
            return types if len(types) == len(names) else types[:1] * len(names)
    types = [parse_type(text) for text in find_types(signature)]
    if not types:
        return [None] * len(names)
    shaped = types[0] if name == "tt.addptr" else types[-1]
    assert shaped is not None
    if name == "tt.load":
        shaped = types[0]
        assert shaped is not None
        shaped = ShapedType("tensor", shaped.shape, shaped.element[len("!tt.ptr<") : -1], shaped.rest)
    elif name.startswith("arith.cmp"):
        shaped = ShapedType("tensor", shaped.shape, "i1", shaped.rest)
    return [shaped] * len(names)


def classify(operation: IrOperation, types: dict[str, ShapedType | None]) -> Classified | None:
    """What ``operation`` costs; ``None`` for what is free: names, views, constants and arithmetic on scalars.

    ``types`` are those of the values that it reads.
    """
    name = short_name(operation)
    if name in FREE or name == "scf.if":
        return None
    results = result_types(operation)
    result = results[0] if results else None
    read = [types.get(value) for value in operation.operands]
    tensors = [t for t in read if t is not None and t.kind == "tensor"]
    if name in LOOPS:
        return Classified("loop", ())
    if operation.name == COPY_LOAD and result is not None:
        copies = elements(result) // vector_of(operation)
        return Classified("copy_load", (Part("gather_load", result.bytes), Part("cp.async", copies)))
    if name in TMA_LOADS and result is not None:
        return Classified("tma_load", (Part("tma_load", result.bytes, estimated=name != "tt.descriptor_load"),))
    if name in TMA_STORES and tensors:
        tile = tensors[0]
        parts = (Part("tma_store", tile.bytes), Part("epilogue_store", elements(tile)))
        return Classified("tma_store", parts)
    if name in DOTS:
        return _dot(operation, name, read)
    if name == "tt.load":
        return Classified("load", (Part("tma_load", result.bytes if result else 4, estimated=True),))
    if name == "tt.store" or name in ATOMICS:
        # The value is what is written, and the second operand of either; an atomic goes there and back.
        value = read[1] if len(read) > 1 else None
        size = value.bytes if value is not None else 4
        return Classified("store", (Part("tma_store", size, 2.0 if name in ATOMICS else 1.0, estimated=True),))
    if name == "ttg.local_alloc" or name == "ttg.local_store":
        if not tensors:
            return None
        single = TRANSPOSED in operation.attributes
        passes = max(1.0, 8 * ELEMENT_PASSES / tensors[0].element_bits) if single else 1.0
        return Classified("shared_store", (Part("shared_store", tensors[0].bytes, passes, estimated=single),))
    if name == "ttg.local_load" and result is not None:
        return Classified("shared_load", (Part("shared_load", result.bytes),))
    if name == TMEM_LOAD and result is not None:
        return Classified("tmem_load", (Part("tmem_load", result.bytes),))
    if name in (TMEM_STORE, TMEM_ALLOC):
        return Classified("tmem_store", (Part("tmem_store", tensors[0].bytes),)) if tensors else None
    if name == "ttg.convert_layout" and result is not None:
        if not tensors or _same_registers(tensors[0], result):
            return None
        return Classified("convert_layout", (Part("shared_store", result.bytes), Part("shared_load", result.bytes)))
    if name in ("tt.reduce", "tt.scan", "tt.histogram", "tt.gather") and tensors:
        return _reduction(operation, name, tensors)
    if result is None or result.kind != "tensor":
        return None
    if name in CASTS:
        return Classified("elementwise", (_cast(name, tensors[0] if tensors else result, result),))
    return _pointwise(name, elements(result), flushed=FLUSHED in operation.attributes)


def _cast(name: str, source: ShapedType, result: ShapedType) -> Part:
    """A conversion by the formats that it is between: from 8 bits to 16, to fp8, or as from fp32 to bf16."""
    count, narrow, wide = elements(result), _NARROW.get(source.element), _WIDE.get(result.element)
    if narrow is not None and wide is not None:
        return Part(f"widen_{narrow}_{wide}", count, estimated=source.element == "f8E5M2" or name == "arith.uitofp")
    if _NARROW.get(result.element) == "fp8":
        return Part("convert_fp8", count, estimated=(source.element, result.element) != ("f32", "f8E4M3FN"))
    return Part("convert", count, estimated=name not in ("arith.truncf", "tt.fp_to_fp"))


def _pointwise(name: str, count: int, *, flushed: bool = False) -> Classified:
    if name == "math.exp2":
        return Classified("sfu", (Part("exp2", count),))
    if name == "math.exp":
        avoided = EXP_INSTRUCTIONS - 1 if flushed else 0.0  # all but the factor
        return Classified("sfu", (Part("exp2", count), Part("elementwise", count, EXP_INSTRUCTIONS, avoided=avoided)))
    if name in ESTIMATED_SFU:
        return Classified("sfu", (Part("exp2", count, estimated=True),))
    known = name.startswith(("arith.", "math.fma", "math.abs", "tt.addptr", "tt.clampf"))
    times = INSTRUCTIONS.get(name, 1)
    return Classified("elementwise", (Part("elementwise", count, times, not known or times > 2),))


def _reduction(operation: IrOperation, name: str, tensors: list[ShapedType]) -> Classified:
    tile = tensors[0]
    inner = set(_COMBINERS.findall(operation.text()))
    along_rows = len(tile.shape) == 2 and operation_axis(operation) == 1
    if name != "tt.reduce":
        # A scan is a reduction that keeps each step: two shuffles and an operation where that has one.
        return Classified("reduce", (Part("row_sum", elements(tile), 3.0, estimated=True),))
    if inner & {"arith.maxnumf", "arith.maximumf"} and len(tensors) == 1:
        return Classified("reduce", (Part("row_max", elements(tile), estimated=not along_rows),))
    known = inner == {"arith.addf"} and len(tensors) == 1
    return Classified("reduce", (Part("row_sum", elements(tile), float(len(tensors)), not (known and along_rows)),))


def operation_axis(operation: IrOperation) -> int | None:
    """The axis of a reduction or a scan, of expand_dims: an attribute in either dictionary."""
    text = "".join(p for p in operation.parts if isinstance(p, str))
    _, found, after = text.partition("axis = ")
    digits = after.split(":")[0].strip().split(",")[0] if found else ""
    return int(digits) if digits.isdigit() else None


def _dot(operation: IrOperation, name: str, read: list[ShapedType | None]) -> Classified | None:
    if len(read) < 2 or read[0] is None or read[1] is None:
        return None
    a, b = read[0], read[1]
    m, k = a.shape[-2:]
    where: Literal["shared", "register"] = "register" if a.kind == "tensor" else "shared"
    cores = {"ttng.warp_group_dot": "wgmma", "tt.dot": "mma"}.get(name, "tcgen05")
    product = Product(m, b.shape[-1], k, a, where if cores == "wgmma" else "shared", cores)
    return Classified("dot", (), product)


def _same_registers(source: ShapedType, result: ShapedType) -> bool:
    """Whether a conversion moves nothing: an accumulator of 16-bit elements is the register operand of the next product
    (PTX ISA, "Register fragments for wgmma"), and so is a row statistic in a slice of its own layout."""
    if source.encoding == result.encoding:
        return True
    operand = "#ttg.dot_op<{opIdx = 0, parent = " + source.encoding
    return result.encoding.startswith(operand) and result.element_bits == 16
