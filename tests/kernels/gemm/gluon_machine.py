"""Runs the Gluon GEMM's own source, as Python, on a machine of mbarriers, TMA copies and asynchronous multiplies.

Nothing of the kernel is copied here: its module, and the device modules that it imports, run with this
machine in place of Triton. Every partition of every CTA is a thread of which one runs at a time; at each primitive a
seeded choice picks who goes on next: a partition that is not blocked, or an asynchronous operation in flight, which
then reads or writes memory. A slot that is overwritten early, released early or never, a wait that nothing satisfies or
a lost C chunk shows as a wrong result or as ``ProtocolError``. Threads inside a partition are not modelled (the compile
tests are about the barriers between them), and memory is sequentially consistent.

In a launch of clusters each CTA holds its part of every tile, as the tile's layout says; multicast copies land in all
of a cluster's CTAs, and barriers that they share are the first one's, where it alone waits (PTX ISA, "mbarrier" and
"cp.async.bulk.tensor"; Triton 3.9).
"""

from __future__ import annotations

import builtins
import contextlib
import contextvars
import functools
import itertools
import random
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[3]
DEVICE = ROOT / "kernels" / "device"
POISON = np.nan
ELEMENT_BYTES = 2


class ProtocolError(AssertionError):
    pass


class Stopped(BaseException):
    """Unwinds the threads of a run that has ended."""


class Barrier:
    """An mbarrier: a phase ends when all arrivals and all announced bytes are in (PTX ISA, "mbarrier")."""

    def __init__(self) -> None:
        self.count = 0
        self.phase = 0
        self.missing = 0
        self.bytes = 0
        self.sharers = 1
        self.peers = [self]

    def init(self, count: int) -> None:
        if self.sharers == 1 or _CTA.rank == 0:
            self.count = self.missing = count * self.sharers

    def arrive(self, count: int = 1) -> None:
        if self.count == 0:
            raise ProtocolError("arrival at a barrier that was not initialised")
        self.missing -= count
        if self.missing < 0:
            raise ProtocolError("more arrivals than the barrier counts in one phase")
        self._finish()

    def transfer(self, count: int) -> None:
        self.bytes += count
        self._finish()

    def _finish(self) -> None:
        if self.missing == 0 and self.bytes == 0:
            self.phase += 1
            self.missing = self.count

    def passed(self, parity: int) -> bool:
        return self.phase & 1 != parity


class ElementType(str):
    """The type of the operands' elements."""

    primitive_bitwidth = 8 * ELEMENT_BYTES


class Shared:
    """A view of shared memory: numpy for elements, :class:`Barrier` objects where the type is int64."""

    dtype = ElementType("element")

    def __init__(self, data: np.ndarray) -> None:
        self.data = data

    def index(self, i: int) -> Any:
        if not 0 <= i < len(self.data):
            raise ProtocolError(f"index {i} of {len(self.data)} shared tiles")
        return self.data[i, 0] if self.data.dtype == object else Shared(self.data[i])

    def permute(self, order: tuple[int, ...]) -> Shared:
        return Shared(self.data.transpose(order))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    def slice(self, start: int, length: int, dim: int) -> Shared:
        return Shared(np.moveaxis(np.moveaxis(self.data, dim, 0)[start : start + length], 0, dim))

    def store(self, value: Tensor) -> None:
        machine().step()
        if value.data.shape != self.data.shape:
            raise ProtocolError(f"{value.data.shape} stored into {self.data.shape}")
        self.data[...] = value.data
        partition().unfenced.add(_allocation(self.data))

    def load(self, layout: object) -> Tensor:
        machine().step()
        return Tensor(self.data.copy())


class Tensor:
    """Registers of a partition."""

    type = SimpleNamespace(layout=None)

    def __init__(self, data: np.ndarray) -> None:
        self.values = np.asarray(data)
        self.in_flight = 0

    @property
    def data(self) -> np.ndarray:
        if self.in_flight:
            raise ProtocolError("an accumulator was read with multiplies in flight")
        return self.values

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def to(self, dtype: object) -> Tensor:
        return self

    def reshape(self, shape: list[int]) -> Tensor:
        return Tensor(self.data.reshape(shape))

    def permute(self, *order: int) -> Tensor:
        return Tensor(self.data.transpose(order))

    def split(self) -> tuple[Tensor, Tensor]:
        return Tensor(self.data[..., 0]), Tensor(self.data[..., 1])

    def __add__(self, other: Any) -> Tensor:
        return Tensor(self.data + _raw(other))

    def __sub__(self, other: Any) -> Tensor:
        return Tensor(self.data - _raw(other))

    def __rsub__(self, other: Any) -> Tensor:
        return Tensor(_raw(other) - self.data)

    def __mul__(self, other: Any) -> Tensor:
        return Tensor(self.data * _raw(other))

    def __lt__(self, other: float) -> Tensor:
        return Tensor(self.data < other)

    __radd__, __rmul__ = __add__, __mul__

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor(self.data[index])


def _raw(value: Any) -> Any:
    return value.data if isinstance(value, Tensor) else value


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of numpy's on registers, or on plain numbers."""

    def of_either(*values: Any) -> Any:
        found = function(*map(_raw, values))
        return Tensor(found) if any(isinstance(value, Tensor) for value in values) else found[()]

    return of_either


def _exp2(x: np.ndarray) -> np.ndarray:
    """``ex2.approx.ftz``: results below the normal numbers are zero (PTX ISA, "ex2")."""
    found = np.exp2(x)
    return np.where(found < np.finfo(np.float32).tiny, np.zeros_like(found), found)


def _inline_asm(asm: str, constraints: str, arguments: list[Any], **_: Any) -> Any:
    if asm == "mov.b32 $0, $1;":
        return arguments[0]
    if not asm.startswith("rcp.approx"):
        raise NotImplementedError(asm)
    return Tensor(1 / arguments[0].data)


class Pointer:
    dtype = SimpleNamespace(element_ty=ElementType("element"))

    def __init__(self, memory: np.ndarray, offset: Any = 0) -> None:
        self.memory = memory
        self.offset = offset

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.memory, self.offset + offset)

    def __getitem__(self, index: Any) -> Pointer:
        return Pointer(self.memory, self.offset[index])

    def __sub__(self, offset: Any) -> Pointer:
        return self + -offset

    def within(self, offsets: Any) -> Any:
        if np.size(offsets) and not (np.min(offsets) >= 0 and np.max(offsets) < len(self.memory)):
            raise ProtocolError(f"offsets {np.min(offsets)} to {np.max(offsets)} of {len(self.memory)} elements")
        return offsets


class Descriptor:
    """A TMA descriptor of ``array`` [rows, columns], or with more dimensions before these, with boxes of ``box``
    elements; out of bounds it reads zeros and writes nothing."""

    dtype = ElementType("element")
    layout = None

    def __init__(self, array: np.ndarray, box: tuple[int, ...], split: int | None = None) -> None:
        self.array = array
        self.box = box
        self.split = split
        self.block_type = SimpleNamespace(shape=list(box), nbytes=int(np.prod(box)) * ELEMENT_BYTES)

    def part(self, at: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(first element, size) of what the running CTA has of the box at ``at``."""
        if self.split is None or _cluster() == 1:
            return at, self.box
        size = self.box[self.split] // _cluster()
        first = at[self.split] + _rank() * size
        return (
            (*at[: self.split], first, *at[self.split + 1 :]),
            (*self.box[: self.split], size, *self.box[self.split + 1 :]),
        )

    def inside(self, at: tuple[int, ...], box: tuple[int, ...]) -> np.ndarray:
        """The elements of the box at ``at`` that there are."""
        return self.array[tuple(slice(first, first + size) for first, size in zip(at, box, strict=True))]

    def read(self, at: tuple[int, ...], box: tuple[int, ...]) -> np.ndarray:
        found = self.inside(at, box)
        padded = np.zeros(box)
        padded[tuple(map(slice, found.shape))] = found
        return padded

    def write(self, at: tuple[int, ...], box: tuple[int, ...], values: np.ndarray) -> None:
        target = self.inside(at, box)
        target[...] = values[tuple(map(slice, target.shape))]


def _always() -> bool:
    return True


def _held_lock() -> threading.Lock:
    """A baton that somebody waits for until it is released: locks change hands sooner than semaphores."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class Partition:
    """One partition of one CTA: a thread that holds the baton while it runs."""

    def __init__(self, machine: Machine, cta: int, name: str, body: Callable[[], None]) -> None:
        self.machine = machine
        self.cta = cta
        self.rank = cta % machine.cluster
        self.name = name
        self.until: Callable[[], bool] = _always
        self.waits_for = ""
        self.multiplies: list[Operation] = []
        self.stores: list[Operation] = []
        self.unfenced: set[int] = set()
        self.done = False
        self.baton = _held_lock()
        # In the test's context, which says what numpy does with NaN.
        self.thread = threading.Thread(target=contextvars.copy_context().run, args=(self._main, body), daemon=True)

    def _main(self, body: Callable[[], None]) -> None:
        self.baton.acquire()
        try:
            if not self.machine.failure:
                _LOCAL.partition = self
                body()
                if self.stores or self.multiplies:
                    raise ProtocolError(f"{self.name} ends with {len(self.stores)} stores that read shared memory")
        except Stopped:
            pass
        except BaseException as error:
            self.machine.failure = self.machine.failure or error
        self.done = True
        self.machine.hand_on()


class Operation:
    """Asynchronous work in flight; ``ready`` says whether it may complete now."""

    def __init__(self, effect: Callable[[], None], ready: Callable[[], bool] = _always) -> None:
        self.effect = effect
        self.ready = ready


class Machine:
    def __init__(self, seed: int, max_steps: int = 2_000_000) -> None:
        self.random = random.Random(seed)
        self.programs = 1
        self.cluster = 1
        self.peers: dict[int, list[np.ndarray]] = {}
        self.resident = 0
        self.partitions: list[Partition] = []
        self.copied_into: set[int] = set()
        self.launching: list[int] = []
        """CTAs that let the next launch begin, in the order in which they said so."""
        self.in_flight: list[Operation] = []
        self.failure: BaseException | None = None
        self.baton = _held_lock()
        self.steps = 0
        self.max_steps = max_steps
        self.eager = self.random.random()

    def step(self, until: Callable[[], bool] = _always, what: str = "") -> None:
        """Hand the baton on; return once chosen again with ``until`` true."""
        me = partition()
        me.until, me.waits_for = until, what
        self.hand_on()
        me.baton.acquire()
        if self.failure:
            raise Stopped

    def run(self) -> None:
        for p in self.partitions:
            p.thread.start()
        self.hand_on()
        self.baton.acquire()
        for p in self.partitions:
            while not p.done:
                p.baton.release()
                self.baton.acquire()
        if self.failure:
            raise self.failure

    def started(self, partition: Partition) -> bool:
        """Whether the CTA has a place on the device: CTAs start in the order of their numbers, as places become free;
        all at once where ``resident`` is 0."""
        if not self.resident:
            return True
        return len({p.cta for p in self.partitions if p.cta < partition.cta and not p.done}) < self.resident

    def hand_on(self) -> None:
        """Let go on who is chosen, or :meth:`run` where the run has ended: whoever holds the baton chooses, itself
        perhaps."""
        try:
            chosen = self._chosen()
        except BaseException as error:
            chosen, self.failure = None, self.failure or error
        (self if chosen is None else chosen).baton.release()

    def _chosen(self) -> Partition | None:
        """Who goes on, after the operations that are chosen before; nobody at the end of the run."""
        while not self.failure:
            if all(p.done for p in self.partitions):
                if self.in_flight:
                    left = len(self.in_flight)
                    self.failure = ProtocolError(f"{left} operations in flight after the last partition ended")
                return None
            if self.steps == self.max_steps:
                self.failure = ProtocolError(f"no end after {self.max_steps} steps")
                return None
            self.steps += 1
            running = [p for p in self.partitions if not p.done and self.started(p) and p.until()]
            completing = [o for o in self.in_flight if o.ready()]
            if completing and (not running or self.random.random() < self.eager):
                operation = self.random.choice(completing)
                self.in_flight.remove(operation)
                operation.effect()
            elif running:
                return self.random.choice(running)
            else:
                stuck = "; ".join(f"CTA {p.cta} {p.name}: {p.waits_for}" for p in self.partitions if not p.done)
                self.failure = ProtocolError(f"deadlock: {stuck}")
        return None


_LOCAL = threading.local()


def partition() -> Partition:
    return _LOCAL.partition


def machine() -> Machine:
    return _LOCAL.partition.machine


def _wait(barrier: Barrier, phase: int) -> None:
    if barrier.sharers > 1 and partition().rank > 0:
        return
    machine().step(lambda: barrier.passed(phase), f"parity {phase} of a barrier in phase {barrier.phase}")


def _arrive(barrier: Barrier, *, count: int = 1, pred: bool = True) -> None:
    machine().step()
    if pred:
        if partition().unfenced & machine().copied_into:
            raise ProtocolError("a slot was released with plain writes not fenced from the producer's copies")
        barrier.arrive(count)


def _expect(barrier: Barrier, count: int, pred: bool = True) -> None:
    machine().step()
    if pred:
        barrier.bytes += count
        barrier.arrive()


def _allocation(view: np.ndarray) -> int:
    while view.base is not None:
        view = view.base
    return id(view)


def _load(
    descriptor: Descriptor, coordinates: list[int], barrier: Barrier, target: Shared, multicast: bool = False
) -> None:
    machine().step()
    if partition().cta in machine().launching:
        raise ProtocolError("a copy is issued after the next launch was let begin")
    if multicast and partition().rank > 0:
        return
    in_flight = machine().in_flight
    at, box = descriptor.part(tuple(coordinates))
    for into, counts in zip(_held_by_all(target.data), barrier.peers, strict=True) if multicast else (
        (target.data, barrier),
    ):  # fmt: skip
        machine().copied_into.add(_allocation(into))
        _copy(in_flight, lambda: descriptor.read(at, box), into, counts)


def _copy(in_flight: list[Operation], read: Callable[[], np.ndarray], into: np.ndarray, barrier: Barrier) -> None:
    def land() -> None:
        into[...] = read()
        barrier.transfer(-into.size * ELEMENT_BYTES)

    def begin() -> None:
        # Rubbish first, as of a copy that is half way.
        into.fill(POISON)
        in_flight.append(Operation(land))

    in_flight.append(Operation(begin))


def _held_by_all(view: np.ndarray) -> list[np.ndarray]:
    """``view`` in the shared memory of each CTA of the cluster."""
    root = view
    while root.base is not None:
        root = root.base
    offset = view.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return [
        np.ndarray(view.shape, view.dtype, buffer=of_cta, offset=offset, strides=view.strides)
        for of_cta in machine().peers[id(root)]
    ]


def _store(descriptor: Descriptor, coordinates: list[int], source: Shared) -> None:
    machine().step()
    me = partition()
    if _allocation(source.data) in me.unfenced:
        raise ProtocolError("a TMA store was issued before its plain writes were fenced")
    part = descriptor.part(tuple(coordinates))
    operation = Operation(lambda: (descriptor.write(*part, source.data), me.stores.remove(operation)))
    me.stores.append(operation)
    machine().in_flight.append(operation)


def _store_wait(pendings: int) -> None:
    me = partition()
    machine().step(lambda: len(me.stores) <= pendings, "TMA stores")


def _fence() -> None:
    machine().step()
    partition().unfenced.clear()


def _multiply(a: Shared, b: Shared, acc: Tensor, *, use_acc: bool = True, is_async: bool = False) -> Tensor:
    machine().step()
    me = partition()
    acc.in_flight += 1

    def effect() -> None:
        product = a.data @ b.data
        acc.values = acc.values + product if use_acc else product
        acc.in_flight -= 1
        me.multiplies.remove(operation)

    operation = Operation(effect, ready=lambda: me.multiplies[0] is operation)
    me.multiplies.append(operation)
    machine().in_flight.append(operation)
    return acc


def _multiply_wait(num_outstanding: int, deps: list[Tensor]) -> Tensor | tuple[Tensor, ...]:
    me = partition()
    machine().step(lambda: len(me.multiplies) <= num_outstanding, "multiplies")
    return deps[0] if len(deps) == 1 else tuple(deps)


def _allocate(dtype: str, shape: list[int], layout: Layout | None) -> Shared:
    number = len(_CTA.allocations[_CTA.rank])
    if dtype == "int64":
        memory = _barriers(shape[0], number, shared=layout is not None and layout.basis == (0,))
    else:
        memory = np.full(local_shape(shape, layout), POISON)
    _CTA.allocations[_CTA.rank].append(memory)
    peers = [memory] if _CTA.rank == 0 else [*_CTA.peers[id(_CTA.allocations[0][number])], memory]
    for each in peers:
        _CTA.peers[id(each)] = peers
    return Shared(memory)


def _barriers(count: int, number: int, shared: bool) -> np.ndarray:
    """The running CTA's barriers, the cluster's ``number``-th allocation; ``shared`` ones are the first CTA's."""
    first = _CTA.allocations[0][number] if _CTA.rank else None
    if shared and first is not None:
        return first
    found = np.empty((count, 1), dtype=object)
    for i in range(count):
        found[i, 0] = barrier = Barrier()
        barrier.sharers = _CTA.cluster if shared else 1
        if first is not None:
            first[i, 0].peers.append(barrier)
            barrier.peers = first[i, 0].peers
    return found


def _reinterpret(view: Shared, dtype: str, shape: tuple[int, ...], layout: object) -> Shared:
    size = int(np.prod(shape))
    if size > view.data.size:
        raise ProtocolError(f"a chunk of {size} elements does not fit the {view.data.size} of its slot")
    if tuple(shape[-view.data.ndim :]) == view.data.shape:
        return Shared(view.data[(None,) * (len(shape) - view.data.ndim)])
    return Shared(view.data.reshape(-1)[:size].reshape(shape))


def _gl_store(pointer: Pointer, value: Any, mask: np.ndarray | None = None) -> None:
    machine().step()
    values = value.data if isinstance(value, Tensor) else np.asarray(value)
    offsets, values = np.broadcast_arrays(pointer.offset, values)
    if mask is None:
        pointer.memory[pointer.within(offsets)] = values
    else:
        pointer.memory[pointer.within(offsets[mask])] = values[mask]


def _gl_load(pointer: Pointer, mask: Any = True, other: Any = 0, cache_modifier: str = "") -> Any:
    """Whole numbers, which addresses are made of, are plain arrays."""
    machine().step()
    offsets, mask = np.broadcast_arrays(pointer.offset, mask)
    found = np.full(offsets.shape, other, dtype=pointer.memory.dtype)
    found[mask] = pointer.memory[pointer.within(offsets[mask])]
    return found if np.issubdtype(found.dtype, np.integer) else Tensor(found)


def _scan(values: np.ndarray, axis: int, combine: Callable[[Any, Any], Any]) -> np.ndarray:
    return np.fromiter(itertools.accumulate(values, combine), values.dtype, len(values))


def _atomic_add(pointer: Pointer, value: int, sem: str, scope: str) -> int:
    machine().step()
    old = int(pointer.memory[pointer.within(pointer.offset)])
    pointer.memory[pointer.offset] = old + value
    return old


def _atomic_xchg(pointer: Pointer, value: int, sem: str, scope: str) -> int:
    machine().step()
    old = int(pointer.memory[pointer.within(pointer.offset)])
    pointer.memory[pointer.offset] = value
    return old


def _atomic_cas(pointer: Pointer, expected: int, value: int, sem: str, scope: str) -> int:
    """One that would fail goes on only once it would succeed: kernels spin on it, which changes nothing."""
    offset = pointer.within(pointer.offset)
    machine().step(lambda: pointer.memory[offset] == expected, f"{expected} in element {offset} of the flags")
    pointer.memory[offset] = value
    return expected


def _jit(fn: Any = None, **_: Any) -> Any:
    return fn if fn is not None else lambda f: f


class Layout:
    """How the CTAs of a cluster hold a tile: each dimension's basis is 1 where they split it."""

    def __init__(self, bases: list[list[int]] | None = None) -> None:
        self.basis = tuple(bases[0]) if bases else ()

    def without(self, dim: int) -> Layout:
        return Layout([[b for d, b in enumerate(self.basis) if d != dim]] if self.basis else None)


def local_shape(shape: Any, layout: Layout | None) -> tuple[int, ...]:
    """What one CTA has of a tile of ``shape``; the layout is that of the last dimensions."""
    basis = layout.basis if layout is not None else ()
    whole = len(shape) - len(basis)
    return (*shape[:whole], *(n // _cluster() if b else n for n, b in zip(shape[whole:], basis, strict=True)))


def _arange(start: int, end: int, layout: Layout | None) -> np.ndarray:
    (size,) = local_shape((end - start,), layout)
    first = start + (_rank() * size if size < end - start else 0)
    return np.arange(first, first + size)


class _Cta(threading.local):
    program = 0
    programs = 1
    cluster = 1
    rank = 0
    waited = False
    """For the kernel before this one."""
    partitions: list[Any]

    def __init__(self) -> None:
        self.allocations: list[list[np.ndarray]] = [[]]
        self.peers: dict[int, list[np.ndarray]] = {}


_CTA = _Cta()


def _wait_for_previous_kernel() -> None:
    _CTA.waited = True


def _launch_dependents() -> None:
    machine().launching.append(partition().cta)


def _specialize(functions: Any, warps: Any, registers: Any) -> None:
    if not _CTA.waited:
        raise ProtocolError("partitions begin while the kernel before may still write what they read")
    _CTA.partitions.extend(functions)


def fake_compat() -> SimpleNamespace:
    """What ``warpplan.kernels.triton_compat`` exports, on this machine."""
    gl = SimpleNamespace(
        tensor=object,
        shared_memory_descriptor=object,
        constexpr=lambda value: value,
        int32="int32",
        int64="int64",
        float32="float32",
        bfloat16="bfloat16",
        float16="float16",
        float8e4nv="float8e4nv",
        cdiv=lambda a, b: -(-a // b),
        minimum=_elementwise(np.minimum),
        maximum=_elementwise(np.maximum),
        where=_elementwise(np.where),
        abs=_elementwise(np.abs),
        exp2=_elementwise(_exp2),
        inline_asm_elementwise=_inline_asm,
        multiple_of=lambda value, divisor: value,
        max=np.max,
        min=np.min,
        sum=np.sum,
        associative_scan=_scan,
        static_range=range,
        num_warps=lambda: 4,
        cast=lambda value, dtype: value,
        convert_layout=lambda value, layout, assert_trivial: value,
        num_ctas=lambda: _cluster(),
        arange=_arange,
        SliceLayout=lambda dim, parent: parent and parent.without(dim),
        NVMMASharedLayout=SimpleNamespace(get_default_for=lambda shape, dtype, cga_layout=None: Layout(cga_layout)),
        NVMMADistributedLayout=lambda cga_layout=None, **kwargs: Layout(cga_layout),
        BlockedLayout=lambda *args, cga_layout=None: Layout(cga_layout),
        zeros=lambda shape, dtype, layout: Tensor(np.zeros(local_shape(shape, layout))),
        zeros_like=lambda like: Tensor(np.zeros(like.shape)),
        allocate_shared_memory=_allocate,
        store=_gl_store,
        load=_gl_load,
        atomic_add=_atomic_add,
        atomic_cas=_atomic_cas,
        atomic_xchg=_atomic_xchg,
        program_id=lambda axis: _current_cta(0),
        num_programs=lambda axis: _current_cta(1),
        warp_specialize=_specialize,
    )
    return SimpleNamespace(
        gl=gl,
        gluon=SimpleNamespace(jit=_jit, constexpr_function=lambda f: f),
        mbarrier=SimpleNamespace(
            MBarrierLayout=Layout,
            init=lambda barrier, count: barrier.init(count),
            wait=_wait,
            arrive=_arrive,
            expect=_expect,
        ),
        proton=SimpleNamespace(scope=lambda name: contextlib.nullcontext()),
        fence_async_shared=_fence,
        gdc_launch_dependents=_launch_dependents,
        gdc_wait=_wait_for_previous_kernel,
        has_clusters=True,
        reinterpret=_reinterpret,
        thread_barrier=lambda: None,
        tma_load=_load,
        tma_store=_store,
        tma_store_wait=_store_wait,
        warpgroup_mma=_multiply,
        warpgroup_mma_wait=_multiply_wait,
    )


def _current_cta(which: int) -> int:
    found = getattr(_LOCAL, "partition", None)
    program = found.cta // found.machine.cluster if found is not None else _CTA.program
    return (program, found.machine.programs if found is not None else _CTA.programs)[which]


def _cluster() -> int:
    found = getattr(_LOCAL, "partition", None)
    return found.machine.cluster if found is not None else _CTA.cluster


def _rank() -> int:
    found = getattr(_LOCAL, "partition", None)
    return found.rank if found is not None else _CTA.rank


_NAMES = itertools.count()
ON_THE_MACHINE = ("warpplan.kernels.gemm.units", "warpplan.kernels.gemm.gluon")
"""What kernels import from each other of device code."""


def load_kernel(path: Path, edit: Callable[[str], str] = lambda source: source) -> types.ModuleType:
    """The module at ``path`` on this machine, with the device modules that it imports; ``edit`` may break their sources
    first, to see that a test notices."""
    source = edit(path.read_text())
    module = types.ModuleType(f"gluon_on_a_machine_{next(_NAMES)}")
    real_import = builtins.__import__
    compat = fake_compat()

    def importing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "warpplan.kernels.triton_compat":
            return compat
        if name in ("triton", "triton.language"):
            return SimpleNamespace(jit=_jit, language=compat.gl)
        if name.startswith("warpplan.kernels.device.") or name in ON_THE_MACHINE:
            return load_kernel(ROOT.joinpath(*name.split(".")[1:]).with_suffix(".py"), edit)
        return real_import(name, *args, **kwargs)

    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": importing}
    sys.modules[module.__name__] = module
    exec(compile(source, str(path), "exec"), module.__dict__)
    if path.name == "stream_k.py":
        _order_small_tiles(module)
    return module


def _order_small_tiles(stream_k: types.ModuleType) -> None:
    """Tiles here are smaller than what a warp holds of a row: they lie in a workspace by rows."""
    order, back = stream_k.in_register_order, stream_k.from_register_order

    def held(tile: Tensor) -> bool:
        return tile.shape[0] % 16 == 0 and tile.shape[1] % 8 == 0

    stream_k.in_register_order = lambda x: order(x) if held(x) else x.reshape([-1])
    stream_k.from_register_order = lambda line, like: back(line, like) if held(like) else line.reshape(like.shape)


NAMES = (
    "SCHEME", "CONSUMERS", "BLOCK_M", "BLOCK_N", "BLOCK_K", "DEPTH", "EPILOGUE_SPLIT", "STAGING_IN_RING", "SWAP",
    "TMA_STORE",
)  # fmt: skip
"""What a plan says of a block, in the order of the kernel's own constructor."""


def run_gemm(
    kernel: types.ModuleType,
    a: np.ndarray,
    b: np.ndarray,
    *,
    programs: int,
    seed: int,
    group_m: int = 2,
    split_k: int = 1,
    whole_tiles: int = 0,
    stream_k: bool = False,
    resident: int = 0,
    cluster: int = 1,
    a_major: str = "k",
    b_major: str = "k",
    scales: tuple[np.ndarray, np.ndarray] | None = None,
    **constants: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """(C, the margin around it) of C[M, N] = a[M, K] · b[N, K]ᵀ, NaN where nothing was written.

    Where K is split, it is not that of the first ``whole_tiles`` tiles, with ``stream_k`` a multiple of ``programs``.
    ``a_major`` "m" and ``b_major`` "n" store the
    operands of the computed matrix transposed. ``scales`` of the rows and of the columns of the computed matrix are
    matrices, a column for a block of K; ``SCALES`` says what they are.
    """
    constants = {
        "CONSUMERS": 1 if constants["SCHEME"] == "single" else 2,
        "SPLIT": split_of(split_k, stream_k),
        "A_MAJOR": a_major,
        "B_MAJOR": b_major,
        "SCALES": "none",
        "LAUNCH_DEPENDENTS": False,
        "PRODUCER_REGISTERS": 24,
        "CONSUMER_REGISTERS": 240,
        **constants,
    }
    m, n = len(a), len(b)
    left, right = (b, a) if constants["SWAP"] else (a, b)
    block = kernel.block(
        *(constants[name] for name in NAMES), constants["SPLIT"], constants["A_MAJOR"], constants["B_MAJOR"],
        constants["SCALES"], cluster, constants["LAUNCH_DEPENDENTS"],
    )  # fmt: skip
    stride = n + 3
    c = np.full((m, stride), POISON)
    a_desc = _operand(left, (block.rows, block.block_k), a_major == "k", 0)
    b_descs = by_width(right, block, b_major == "k")
    halves = 1 if constants["SWAP"] else 0
    out: Any = Descriptor(c[:, :n], block.tile, halves) if constants["TMA_STORE"] else Pointer(c.reshape(-1))
    tiles = -(-len(left) // block.block_m) * -(-len(right) // block.block_n)
    places = programs if stream_k else (tiles - whole_tiles) * (split_k - 1)
    workspace = np.full(places * block.block_m * block.block_n, POISON)
    counters = np.zeros((tiles - whole_tiles) * block.sharers, dtype=np.int64)

    pointers = [Pointer(s.reshape(-1)) for s in scales] if scales else [None, None]
    strides = [step for s in scales for step in (s.shape[1], 1)] if scales else [0] * 4
    arguments = (
        a_desc, *b_descs, out, Pointer(workspace), Pointer(counters), *pointers, len(left), len(right), a.shape[1],
        group_m, split_k, whole_tiles, stride, *strides,
    )  # fmt: skip
    run_ctas(kernel.gemm_kernel, arguments, constants, programs, seed, resident, cluster)
    if counters.any():
        raise ProtocolError("a counter was left above zero")
    return c[:, :n], c[:, n:]


def split_of(split_k: int, stream_k: bool) -> str:
    """How K is split, as a block says it."""
    return "stream" if stream_k else "equal" if split_k > 1 else "none"


def run_ctas(
    kernel: Callable[..., None],
    arguments: tuple[Any, ...],
    constants: dict[str, Any],
    programs: int,
    seed: int,
    resident: int = 0,
    cluster: int = 1,
) -> None:
    """Launch ``programs`` clusters of ``cluster`` CTAs of ``kernel``, ``resident`` of the CTAs at once or all, and run
    them to their ends."""
    runner = Machine(seed)
    runner.programs, runner.resident, runner.cluster = programs, resident, cluster
    _CTA.cluster, _CTA.peers = cluster, runner.peers
    for cta in range(programs * cluster):
        _CTA.program, _CTA.programs, _CTA.partitions, _CTA.rank = cta // cluster, programs, [], cta % cluster
        _CTA.waited = False
        _CTA.allocations = [*(_CTA.allocations if _CTA.rank else ()), []]
        kernel(*arguments, **constants)
        for i, (function, given) in enumerate(_CTA.partitions):
            name = f"{function.__name__} {i}"
            runner.partitions.append(Partition(runner, cta, name, functools.partial(function, *given)))
    runner.run()
    if sorted(runner.launching) != (list(range(programs * cluster)) if constants["LAUNCH_DEPENDENTS"] else []):
        raise ProtocolError(f"the next launch was let begin by CTAs {runner.launching}")


def by_width(matrix: np.ndarray, block: Any, by_k: bool = True) -> tuple[Descriptor, Descriptor | None]:
    """The descriptors of B for each of the block's widths; None where it has one."""
    main, *rest = (_operand(matrix, (columns, block.block_k), by_k) for columns in block.widths)
    return main, rest[0] if rest else None


def _operand(matrix: np.ndarray, box: tuple[int, int], by_k: bool, split: int | None = None) -> Descriptor:
    """``matrix`` [rows, K] with boxes of ``box``, stored as it is or transposed; ``split`` as of a matrix as it is."""
    if by_k:
        return Descriptor(matrix, box, split)
    return Descriptor(np.ascontiguousarray(matrix.T), box[::-1], None if split is None else 1 - split)
