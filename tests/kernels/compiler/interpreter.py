"""One block of a kernel at the cut, run in numpy: what it stores, element by element.

A pointer is a number, ``buffer · 2³² + element``; layouts do not matter, and neither do types narrower than double.
Every value's shape is compared with the printed one. A load that is cut (``warpplan.rows``) loads the whole box and
keeps its rows, as a view of a ring's slot would.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module, Region
from warpplan.kernels.compiler.ttgir.printed_shapes import operand_list, result_shapes, shapes_in

Values = dict[str, Any]
BUFFER = 1 << 32


@dataclass(frozen=True)
class Descriptor:
    """A tensor in global memory: its first element's address, its sizes and strides in elements."""

    base: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def box(self, coordinates: list[int], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """The addresses of a box and which of them are inside of the tensor."""
        grid = np.meshgrid(*(c + np.arange(n) for c, n in zip(coordinates, shape, strict=True)), indexing="ij")
        inside = np.logical_and.reduce([(g >= 0) & (g < n) for g, n in zip(grid, self.sizes, strict=True)])
        return self.base + sum(g * s for g, s in zip(grid, self.strides, strict=True)), inside


def _divide(a: Any, b: Any) -> Any:
    return np.trunc(np.asarray(a) / b).astype(np.int64)


BINARY = {
    "addi": np.add, "addf": np.add, "subi": np.subtract, "subf": np.subtract, "muli": np.multiply, "mulf": np.multiply,
    "divf": np.divide, "divsi": _divide, "ceildivsi": lambda a, b: -(-a // b),
    "remsi": lambda a, b: a - _divide(a, b) * b, "andi": np.bitwise_and, "ori": np.bitwise_or, "xori": np.bitwise_xor,
    "shrsi": np.right_shift,
    "maxnumf": np.fmax, "minnumf": np.fmin, "maximumf": np.maximum, "maxsi": np.maximum, "minsi": np.minimum,
}  # fmt: skip
COMPARE = {
    "slt": np.less, "sle": np.less_equal, "sgt": np.greater, "sge": np.greater_equal, "eq": np.equal,
    "ne": np.not_equal, "olt": np.less, "ogt": np.greater, "oge": np.greater_equal,
}  # fmt: skip
UNARY = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sqrt": np.sqrt, "absf": np.abs,
    "rsqrt": lambda a: 1 / np.sqrt(a), "tanh": np.tanh, "negf": np.negative,
}  # fmt: skip
SAME = {
    "arith.truncf", "arith.extf", "arith.extsi", "arith.extui", "arith.trunci", "arith.sitofp", "tt.fp_to_fp",
    "ttg.convert_layout", "ttg.local_alloc", "ttg.local_load",
}  # fmt: skip


class Block:
    """:meth:`run` gives what was stored: the addresses, ascending, each as often as it was written, and the values."""

    def __init__(
        self, module: Module, arguments: Values, buffers: list[np.ndarray], program: tuple[int, ...],
        programs: tuple[int, ...] = (1, 1, 1),
    ) -> None:  # fmt: skip
        self.function, self.arguments = module.function, arguments
        self.buffers, self.program, self.programs = buffers, program, programs
        self.addresses: list[np.ndarray] = []
        self.values: list[np.ndarray] = []

    def run(self) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(all="ignore"):
            self._region(self.function.regions[0], {f"%{name}": value for name, value in self.arguments.items()})
        addresses = np.concatenate([np.empty(0, np.int64), *self.addresses])
        values = np.concatenate([np.empty(0), *self.values])
        order = np.argsort(addresses, kind="stable")
        return addresses[order], values[order]

    def shapes(self, operation: IrOperation) -> dict[str, tuple[int, ...]]:
        """The shapes that its results are held to."""
        return result_shapes(operation)

    def _region(self, region: Region, outer: Values) -> list[Any]:
        values = dict(outer)
        for operation in region.operations:
            if operation.name in ("scf.yield", "scf.condition", "ttg.warp_yield"):
                return [values[name] for name in operation.operands]
            for name, value in zip(operation.defined, self._operation(operation, values), strict=True):
                shape = self.shapes(operation).get(name)
                assert shape is None or np.shape(value) == shape, (operation.text(), np.shape(value))
                values[name] = value
        return []

    def _operation(self, operation: IrOperation, values: Values) -> list[Any]:
        if operation.name == "scf.for":
            loop = control.read_loop(operation)
            carried = [values[initial] for _, initial, _, _ in loop.carried]
            for i in range(values[loop.lower], values[loop.upper], values[loop.step]):
                names = [inside for inside, *_ in loop.carried]
                carried = self._region(loop.body, values | {loop.variable: i} | dict(zip(names, carried, strict=True)))
            return carried
        if operation.name == "scf.while":
            repeat = control.read_while(operation)
            carried = [values[initial] for _, initial, _ in repeat.carried]
            while True:
                names = [inside for inside, *_ in repeat.carried]
                runs, *handed = self._region(repeat.before, values | dict(zip(names, carried, strict=True)))
                if not runs:
                    return handed
                names = [inside for inside, *_ in repeat.handed]
                carried = self._region(repeat.after, values | dict(zip(names, handed, strict=True)))
        if operation.name == "scf.if":
            branch = control.read_branch(operation)
            return self._region(branch.then if values[branch.condition] else branch.otherwise, values)
        operands = [values[name] for name in operand_list(operation)]
        result = self._plain(operation, operands)
        if result is None:
            return []
        return result if isinstance(result, list) else [result]

    def _plain(self, operation: IrOperation, operands: list[Any]) -> Any:
        name, text = operation.name.strip('"'), "".join(operation.tokens)
        short, shapes = name.partition(".")[2], [p.shape for p in shapes_in(operation.parts)]
        if name == "arith.constant":
            return _constant(text, shapes)
        if name in SAME:
            return operands[0]
        if name in ("arith.cmpi", "arith.cmpf"):
            return COMPARE[operation.tokens[0]](*operands)
        if name == "arith.select":
            return np.where(*operands)
        if name.startswith(("arith.", "math.")):
            return (BINARY if short in BINARY else UNARY)[short](*operands)
        if name == "tt.addptr":
            return operands[0] + operands[1]
        if name == "tt.get_program_id":
            return self.program["xyz".index(operation.tokens[0])]
        if name == "tt.get_num_programs":
            return self.programs["xyz".index(operation.tokens[0])]
        if name == "tt.int_to_ptr":
            return operands[0]
        if name == "tt.make_range":
            start, end = (int(operation.attributes[key].split()[0]) for key in ("start", "end"))
            return np.arange(start, end)
        if name == "tt.splat":
            return np.full(shapes[-1], operands[0])
        if name == "tt.expand_dims":
            return np.expand_dims(operands[0], int(operation.attributes["axis"].split()[0]))
        if name == "tt.broadcast":
            return np.broadcast_to(operands[0], shapes[-1])
        if name == "tt.reshape":
            return operands[0].reshape(shapes[-1])
        if name in ("tt.trans", "ttg.memdesc_trans"):
            order = re.search(r"order=array<i32:([\d,]+)>", text)
            assert order is not None
            return np.transpose(operands[0], [int(n) for n in order.group(1).split(",")])
        if name == "tt.split":
            return [operands[0][..., 0], operands[0][..., 1]]
        if name == "tt.join":
            return np.stack(operands, -1)
        if name == "tt.reduce":
            axis = re.search(r"axis=(\d+)", text)
            assert axis is not None
            function = np.sum if "arith.addf" in text else np.max
            assert ("arith.addf" in text) != ("arith.maxnumf" in text or "arith.maximumf" in text)
            return function(operands[0], int(axis.group(1)))
        if name in ("ttng.warp_group_dot", "tt.dot"):
            return operands[0] @ operands[1] + operands[2]
        if name == "tt.load":
            mask = operands[1] if len(operands) > 1 else np.ones_like(operands[0], bool)
            loaded = self._load(operands[0], mask, operands[2] if len(operands) > 2 else 0.0)
            return loaded.astype(np.int64) if "!tt.ptr<i" in text else loaded
        if name == "tt.store":
            mask = operands[2] if len(operands) > 2 else np.ones_like(operands[0], bool)
            return self._store(operands[0], operands[1], mask)
        if name == "tt.atomic_rmw":  # what is added counts as stored; what was there before is not modelled
            assert operation.tokens[0] in ("fadd", "add"), text
            self._store(operands[0], operands[1], operands[2] if len(operands) > 2 else np.ones_like(operands[0], bool))
            return np.full(np.shape(operands[1]), np.nan)
        if name == "tt.make_tensor_descriptor":
            rank = (len(operands) - 1) // 2
            return Descriptor(int(operands[0]), tuple(operands[1 : 1 + rank]), tuple(operands[1 + rank :]))
        if name == "tt.descriptor_load":
            tile = self._load(*operands[0].box(operands[1:], shapes[0]), 0.0)
            tile = tile.reshape(tile.shape[-len(shapes[1]) :])  # leading dimensions of one may be left out
            rows = operation.attributes.get("warpplan.rows")
            if rows is None:
                return tile
            dimension, first, count = (int(n) for n in rows.partition(":")[2].strip("> ").split(","))
            return np.take(tile, np.arange(first, first + count), dimension)
        if name == "tt.descriptor_store":
            assert shapes[0] == shapes[1], operation.text()
            addresses, inside = operands[0].box(operands[1:-1], shapes[0])
            return self._store(addresses, operands[-1], inside)
        if name == "tt.return":
            return None
        raise NotImplementedError(operation.text())

    def _load(self, addresses: Any, mask: Any, other: Any) -> np.ndarray:
        addresses, mask = np.asarray(addresses), np.asarray(mask)
        result = np.broadcast_to(np.asarray(other, float), addresses.shape).copy()
        for buffer in np.unique(addresses[mask] // BUFFER):
            here = mask & (addresses // BUFFER == buffer)
            result[here] = np.take(self.buffers[buffer], addresses[here] % BUFFER, mode="wrap")
        return result

    def _store(self, addresses: Any, values: Any, mask: Any) -> None:
        addresses, values, mask = np.broadcast_arrays(addresses, values, mask)
        self.addresses.append(addresses[mask])
        self.values.append(values[mask].astype(float))


def _constant(text: str, shapes: list[tuple[int, ...]]) -> Any:
    literal = re.match(r"(?:dense<)?([^>:]+)>?(?:\{.*\})?(?::|$)", text)
    assert literal is not None, text
    word = literal.group(1)
    value: Any
    if word in ("true", "false"):
        value = word == "true"
    elif word.startswith("0x"):
        value = float(np.array(int(word, 16), np.uint32).view(np.float32))  # f32 that no decimal stands for
    else:
        value = float(word) if "." in word or "e" in word else int(word)
    return np.full(shapes[0], value) if shapes else value
