"""A plan for Blackwell, written into the cut as the attributes that Triton's own passes honour.

Unlike on Hopper, Triton's own warp specialisation is kept there and steered. What it honours was found by printing its
passes' results on 3.6.0, 3.7.1, 3.8.0 and 3.9.0 (compiled, not run: tests/kernels/compiler/test_annotate.py):

- ``tt.warp_specialize`` on an ``scf.for`` asks for it; with no more, Triton finds partitions itself.
- ``ttg.partition`` is kept where the loop has ``ttg.partition.stages`` and every operation of the body, combiners of
  reductions among them, has a partition. A part of them annotated is overruled (3.7 on) or aborts the process (3.6).
- ``loop.stage`` and ``loop.cluster`` are kept where ``assign_latencies`` is left out. (``tt.num_stages = 1`` keeps that
  pass away from a loop, too, but from 3.7 on it then waits for each product.)
- The depth of the rings is the compile's ``num_stages``: the loop's ``tt.num_stages`` does not change it.
- In one worker a product cannot have a later stage than a TMA load on 3.6, whose pipeliner cannot predicate the load.
- What a product leaves in tensor memory alternates between two buffers where they fit, unless the loop has
  ``tt.disallow_acc_multi_buffer``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from warpplan.kernels.compiler.analysis.operation_kinds import TMA_LOADS
from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.ttgir.control import read_loop
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module, Region, is_value, pack_of, tokenize
from warpplan.kernels.compiler.ttgir.parsing import parse, parse_operation
from warpplan.kernels.compiler.ttgir.source_locations import SourceLocations
from warpplan.planner.errors import InvalidConfig

PRODUCTS = frozenset({"ttng.tc_gen5_mma", "ttng.tc_gen5_mma_scaled"})
REST = 0
_COPIES = frozenset({"ttg.local_alloc"})
_VIEWS = frozenset({"ttg.memdesc_trans", "ttg.memdesc_reshape", "ttg.memdesc_subslice", "ttg.memdesc_index"})


@dataclass(frozen=True)
class Roles:
    """The partitions of a loop: its TMA loads in worker ``load``, its products in worker ``product``, which may be the
    same, the rest in the default partition, of the kernel's own warps. ``stages``: the pipeline stage of the
    product from source line "file.py:12"; empty leaves the schedule to Triton. ``double``: results of products may have
    two buffers of tensor memory. Raises :class:`InvalidConfig`.

    Products never share the partition of the rest: one thread issues them, and Triton 3.7 to 3.9 fail on it.
    """

    load: int = 2
    product: int = 1
    stages: Mapping[str, int] = field(default_factory=dict)
    double: bool = True

    def __post_init__(self) -> None:
        if {self.load, self.product} not in ({1}, {1, 2}):
            raise InvalidConfig(
                f"roles with the loads in worker {self.load}, the products in worker {self.product}: expected 1 and 2, "
                "2 and 1, or both 1", field="roles", value=[self.load, self.product],
            )  # fmt: skip


def annotate(text: str, roles: Roles | None = None) -> str:
    """``text``, a cut for sm_100, with every loop that loads through TMA and multiplies asked to be specialised, by
    ``roles`` or as Triton finds best. Raises :class:`CannotPlan` where there is no such loop, or one that ``roles`` do
    not fit."""
    module = parse(text)
    loops = list(_loops(module.function))
    if not loops:
        raise CannotPlan(_why_none(module))
    for tag, loop in enumerate(loops):
        loop.set_attribute("tt.warp_specialize")
        if roles is not None:
            _Annotated(module, loop, roles).write(tag)
    return str(module)


def _loops(function: IrOperation) -> Iterator[IrOperation]:
    """Innermost loops with a TMA load and a product."""
    for operation in function.walk():
        if operation.name == "scf.for":
            inside = {inner.name for inner in operation.walk() if inner is not operation}
            if inside & TMA_LOADS and inside & PRODUCTS and "scf.for" not in inside:
                yield operation


def _why_none(module: Module) -> str:
    names = {operation.name for operation in module.function.walk()}
    if "scf.for" not in names:
        return "its loop is no counted one (scf.while)" if "scf.while" in names else "no loop to specialise"
    if not names & PRODUCTS:
        return "no product on the tensor cores in a loop: Triton specialises loops around tcgen05.mma only"
    if not names & TMA_LOADS:
        return "loads through pointers: a partition of loads needs TMA (tensor descriptors)"
    return "no innermost loop has both a TMA load and a product"


class _Annotated:
    """One loop's body, and the partitions and stages that its operations get."""

    def __init__(self, module: Module, loop: IrOperation, roles: Roles) -> None:
        self.loop, self.roles, self.locations = loop, roles, SourceLocations(module)
        body = loop.regions[0].operations
        self.body, self.end = body[:-1], body[-1]
        for operation in self.body:
            if operation.name.startswith("scf."):
                why = "control flow inside the loop: only Triton's own partitions fit it (no roles)"
                raise CannotPlan(why, operation.name, str(self.locations.of(operation)))
        self.maker = {pack_of(name): operation for operation in self.body for name in operation.defined}
        for operation in self.body:
            if operation.name in _COPIES and self.maker_of(operation, "tt.load"):
                # Triton 3.6 stops at it ("cpasync not supported yet") between partitions that it did not find itself.
                why = "a product reads what is loaded through pointers: only Triton's own partitions fit it (no roles)"
                raise CannotPlan(why, "tt.load", str(self.locations.of(operation)))
        self.users: dict[int, list[IrOperation]] = {}
        for operation in self.body:
            for value in operation.operands:
                if pack_of(value) in self.maker:
                    self.users.setdefault(id(self.maker[pack_of(value)]), []).append(operation)

    def write(self, tag: int) -> None:
        roles = self.roles
        partitions = self.partitions()
        for operation in self.body:
            _set_deep(operation, "ttg.partition", _array(partitions[id(operation)]))
            if operation.name.startswith('"') and operation.results:
                each = ", ".join([_array(partitions[id(operation)])] * len(operation.defined))
                operation.set_attribute("ttg.partition.outputs", f"[{each}]")
        everyone = _array({p for one in partitions.values() for p in one})
        stages = [int(p == roles.product != roles.load) for p in range(1 + max(roles.load, roles.product))]
        self.loop.set_attribute("ttg.partition", everyone)
        self.loop.set_attribute("ttg.partition.outputs", f"[{', '.join(map(_array, self.outputs(partitions)))}]")
        self.loop.set_attribute("ttg.partition.stages", f"[{', '.join(f'{stage} : i32' for stage in stages)}]")
        if not roles.double:
            self.loop.set_attribute("tt.disallow_acc_multi_buffer")
        self.loop.set_attribute("ttg.warp_specialize.tag", f"{tag} : i32")
        _set_before_operands(self.end, "ttg.partition", everyone)
        if roles.stages:
            self.write_stages()

    def partitions(self) -> dict[int, set[int]]:
        """By ``id`` of the operation: loads and the copies of what they load; products and the views that they read;
        scalars wherever they are needed; the rest."""
        roles, found = self.roles, dict[int, set[int]]()
        for operation in reversed(self.body):
            users = self.users.get(id(operation), [])
            wanted = {p for user in users for p in found[id(user)]}
            name = operation.name
            if name in TMA_LOADS or (name in _COPIES and self.maker_of(operation, *TMA_LOADS)):
                found[id(operation)] = {roles.load}
            elif name in PRODUCTS or (name in _VIEWS and {user.name for user in users} <= PRODUCTS | _VIEWS):
                found[id(operation)] = {roles.product}
            elif wanted and not any(mark in operation.signature for mark in ("tensor<", "memdesc<", "token")):
                found[id(operation)] = wanted
            else:
                found[id(operation)] = {REST}
        return found

    def maker_of(self, operation: IrOperation, *names: str) -> bool:
        """Whether one of ``names`` in the body makes what ``operation`` reads first."""
        maker = self.maker.get(pack_of(operation.operands[0])) if operation.operands else None
        return maker is not None and maker.name in names

    def outputs(self, partitions: dict[int, set[int]]) -> list[set[int]]:
        """Of each loop-carried value: where it is made, or used where it is not made in the loop."""
        found = []
        loop = read_loop(self.loop)
        for (inside, *_), back in zip(loop.carried, loop.yielded, strict=True):
            maker = self.maker.get(pack_of(back))
            used = {p for o in self.body if inside in o.operands for p in partitions[id(o)]}
            found.append(partitions[id(maker)] if maker is not None else used or {REST})
        return found

    def write_stages(self) -> None:
        """Stages as asked for, raised where an operand comes later; an older iteration's operations go first."""
        stage: dict[int, int] = {}
        for operation in self.body:
            asked = self.roles.stages.get(str(self.locations.of(operation)), 0) if operation.name in PRODUCTS else 0
            made = [stage[id(self.maker[pack_of(v)])] for v in operation.operands if pack_of(v) in self.maker]
            stage[id(operation)] = max([asked, *made])
        last = max(stage.values())
        for operation in self.body:
            operation.set_attribute("loop.stage", f"{stage[id(operation)]} : i32")
            operation.set_attribute("loop.cluster", f"{last - stage[id(operation)]} : i32")
        self.loop.set_attribute("tt.scheduled_max_stage", f"{last} : i32")


def _array(partitions: set[int]) -> str:
    return f"array<i32: {', '.join(map(str, sorted(partitions)))}>"


def _set_deep(operation: IrOperation, name: str, value: str) -> None:
    """Set an attribute on ``operation`` and on those in the combiner of a reduction, which is printed in brackets."""
    parts = operation.parts
    start = next((i for i, p in enumerate(parts) if p == "{" and i and parts[i - 1] == "("), None)
    if start is not None:
        end = next(i for i in range(start, len(parts)) if parts[i] == "}" and parts[i + 1] == ")")
        combiner = parse_operation(f"combiner {''.join(map(str, parts[start : end + 1]))} loc(unknown)")
        region = combiner.regions[0]
        for inner in region.operations:
            inner.set_attribute(name, value)
        parts[start : end + 1] = tokenize(_printed(region))
    operation.set_attribute(name, value)


def _printed(region: Region) -> str:
    inner = "".join(f"{operation.text('  ')}\n" for operation in region.operations)
    return f"{{\n{region.label}\n{inner}}}"


def _set_before_operands(operation: IrOperation, name: str, value: str) -> None:
    """``scf.yield`` prints its dictionary before its operands."""
    if any(is_value(token) for token in operation.tokens):
        operation.parts[:0] = tokenize(f" {{{name} = {value}}}")
    else:
        operation.set_attribute(name, value)
