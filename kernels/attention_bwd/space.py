"""The configurations of the attention backward kernels, and the one function that says which of them are valid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from warpplan.kernels.gemm.space import LAUNCH_REGISTERS, MAX_REGISTERS, SMEM_RESERVED_BYTES, WARP, WARP_GROUP
from warpplan.planner.errors import InvalidConfig
from warpplan.planner.values.device import Device
from warpplan.planner.values.tuning import TuningConfig

QueryGradients = Literal["reduce", "separate"]

ELEMENT_BYTES = {"bfloat16": 2, "float16": 2}
"""Of Q, K, V, O and their gradients."""
HEAD_DIMS = (64, 128)
"""With heads of 256, dK and dV of 64 keys are 256 registers a thread, more than a thread can have."""
QUERY_GRADIENTS: tuple[QueryGradients, ...] = ("reduce", "separate")
SMEM_OVERHEAD_BYTES = 2_048
"""Barriers, the arguments that warp_specialize hands to its workers, alignment; tests compare it with the compiler."""
PRODUCER_REGISTERS = 24
"""Of a producer thread; a multiple of 8, as ``setmaxnreg`` needs it. What it has, the consumer lacks."""
BASE_REGISTERS = 32
"""Of a consumer thread beside its tiles while it computes dS: addresses, phases, the mask's temporaries. D 128 with two
CTAs an SM leaves 24 and spills; the tests compile all of the space."""
REDUCTION_REGISTERS = 40
"""Of a consumer thread beside its tiles while it holds a block of dQ. One warp group of D 128 with dSᵀ in registers
leaves 32 and spills, with dSᵀ in shared memory 48 and does not."""
PACKED_REGISTERS = 16
"""More of them where sequences are packed: a tile's first row and how many keys it has, which are no arguments then.
With 8 more one warp group of D 128 spills, with 24 more two of them do not."""
DEPTHS = (2, 4)
"""Of three slots the remainder of a division says which is next: its registers make D 128 spill."""
MMA_ROWS = 64
STATISTIC_BYTES = 4
"""Of a log-sum-exp, of a delta, and of an element of dQ while it is summed."""
ALIGNED_ROWS = 4
"""fp32 statistics in 16 bytes, on which TMA begins."""


@dataclass(frozen=True, order=True)
class AttentionBwdConfig:
    """One way to run the kernels on heads of ``head_dim`` elements.

    A unit of work is ``keys`` keys of one key head, 64 a warp group of the one consumer; a loop iteration takes
    ``rows`` queries. Q and dO each have a ring of ``depth`` slots. dSᵀ is the left operand of dSᵀ · Q
    ``ds_in_registers``, or in shared memory. ``dq`` says how dQ is summed: by TMA reduction into an fp32 matrix
    ("reduce"), or by a second kernel that owns query rows ("separate"), which multiplies two products again and gives
    the same bits each time. ``ctas_per_sm`` CTAs are resident together; ``persistent`` ones take units one after
    another, else each unit has a CTA. ``head_group`` key heads run together, so that their queries are in L2 at once.
    ``packed`` sequences of unlike lengths lie one behind the other.
    """

    head_dim: int
    keys: int
    rows: int
    depth: int
    ds_in_registers: bool = True
    dq: QueryGradients = "reduce"
    ctas_per_sm: int = 1
    persistent: bool = True
    head_group: int = 1
    packed: bool = False

    @property
    def producer_registers(self) -> int:
        """Registers of a producer thread."""
        return PRODUCER_REGISTERS

    @property
    def gap_rows(self) -> int:
        """Rows between packed sequences where statistics and the fp32 dQ lie spread: a block that begins at a
        sequence's last row ends before the next one's first, though that is rounded down to 16 bytes."""
        return self.rows + ALIGNED_ROWS if self.packed else 0

    def box(self, length: int) -> tuple[int, ...]:
        """The TMA box of ``length`` rows of a head, in elements."""
        return (1, 1, length, 1, self.head_dim) if self.packed else (1, 1, length, self.head_dim)

    @property
    def consumer_warps(self) -> int:
        return self.keys // MMA_ROWS * WARP_GROUP

    @property
    def total_warps(self) -> int:
        """Warps of a block as the hardware allots them: the consumer's, and a warp group for the producer's one."""
        return self.consumer_warps + WARP_GROUP

    @property
    def max_registers(self) -> int:
        """Registers a thread at launch (``maxnreg``): the SM's 65,536 over all threads, rounded down to 8."""
        return min(MAX_REGISTERS, 65_536 // (WARP * self.total_warps * self.ctas_per_sm) // 8 * 8)

    @property
    def consumer_registers(self) -> int:
        """Registers of a consumer thread: what the producer's warp group leaves, in multiples of 8."""
        left = self.max_registers * self.total_warps - self.producer_registers * WARP_GROUP
        return min(MAX_REGISTERS, left // self.consumer_warps // 8 * 8)

    @property
    def gradient_registers(self) -> int:
        """fp32 registers of a consumer thread that hold its rows of dK and of dV."""
        return 2 * MMA_ROWS * self.head_dim // (WARP_GROUP * WARP)

    @property
    def slope_registers(self) -> int:
        """Registers of a consumer thread that hold tiles while it computes dS: dK, dV, P and dP in fp32, P in 16
        bits."""
        block = MMA_ROWS * self.rows // (WARP_GROUP * WARP)
        return self.gradient_registers + 2 * block + block // 2

    @property
    def reduction_registers(self) -> int:
        """The same while it holds a block of dQ: dK, dV, its part of dQ, and dSᵀ where that is in registers."""
        slopes = MMA_ROWS * self.rows // (WARP_GROUP * WARP) // 2 if self.ds_in_registers else 0
        return self.gradient_registers + self.rows * self.head_dim // (self.consumer_warps * WARP) + slopes

    def held_bytes(self, element_bytes: int) -> int:
        """Bytes of a unit's K, or of its V."""
        return self.keys * self.head_dim * element_bytes

    def slot_bytes(self, element_bytes: int) -> int:
        """Bytes of one block of Q or of dO with what the statistics have for its rows."""
        return self.rows * (self.head_dim * element_bytes + STATISTIC_BYTES)

    @property
    def reduced_bytes(self) -> int:
        """Bytes of a block of dQ in fp32."""
        return self.rows * self.head_dim * STATISTIC_BYTES

    def smem_bytes(self, element_bytes: int) -> int:
        """Shared memory of one block, overhead included (never less than the compiler reports; tested)."""
        own = 2 * self.held_bytes(element_bytes) + 2 * self.depth * self.slot_bytes(element_bytes)
        reduced = self.keys * self.rows * element_bytes + self.reduced_bytes if self.dq == "reduce" else 0
        return own + reduced + SMEM_OVERHEAD_BYTES


def deterministic(config: AttentionBwdConfig) -> AttentionBwdConfig:
    """``config`` or, where it reduces dQ in no fixed order, its like with a kernel of its own for dQ."""
    return replace(config, ds_in_registers=True, dq="separate")


def violations(config: AttentionBwdConfig, dtype: str, device: Device) -> tuple[str, ...]:
    """Why ``config`` cannot run on ``device``; empty when it can."""
    return tuple(_violations(config, dtype, device))


def _violations(config: AttentionBwdConfig, dtype: str, device: Device) -> Iterator[str]:
    c = config
    if dtype not in ELEMENT_BYTES:
        yield f"dtype {dtype}: expected one of {', '.join(ELEMENT_BYTES)}"
        return
    if c.head_dim == 256:
        yield "head_dim 256: dK and dV of 64 keys alone are 256 registers a thread, more than a thread can have"
        return
    for name, value, allowed in (
        ("head_dim", c.head_dim, HEAD_DIMS),
        ("keys", c.keys, (64, 128)),
        ("rows", c.rows, (64, 128)),
        ("depth", c.depth, DEPTHS),
        ("dq", c.dq, QUERY_GRADIENTS),
        ("ctas_per_sm", c.ctas_per_sm, (1, 2)),
    ):
        if value not in allowed:
            yield f"{name} {value}: expected one of {', '.join(map(str, allowed))}"
            return
    if c.head_group < 1:
        yield f"head_group {c.head_group}: expected 1 or more"
        return
    if not device.has_wgmma:
        yield f"device {device.name}: the kernels need wgmma (capability 9.0)"
    if c.dq == "separate" and not c.ds_in_registers:
        yield "ds_in_registers: dS goes through shared memory only where its product with K is reduced"
    needs = [(c.slope_registers, BASE_REGISTERS)]
    if c.dq == "reduce":
        needs.append((c.reduction_registers, REDUCTION_REGISTERS + (PACKED_REGISTERS if c.packed else 0)))
    for tiles, more in needs:
        if tiles + more > c.consumer_registers:
            yield (
                f"{tiles} registers a thread of tiles and {more} more exceed the {c.consumer_registers} a consumer "
                "thread has"
            )
    widest = max(c.rows, c.head_dim)
    if widest // 2 + LAUNCH_REGISTERS > c.max_registers:
        yield (
            f"a wgmma of {widest} columns needs {widest // 2 + LAUNCH_REGISTERS} registers a thread at launch, "
            f"and {c.total_warps * c.ctas_per_sm} warps leave {c.max_registers}"
        )
    share = min(device.smem_bytes_per_block, device.smem_bytes_per_sm // c.ctas_per_sm - SMEM_RESERVED_BYTES)
    if c.smem_bytes(ELEMENT_BYTES[dtype]) > share:
        yield f"{c.smem_bytes(ELEMENT_BYTES[dtype])} bytes of shared memory exceed the {share} that a block has"


def require_valid(config: AttentionBwdConfig, dtype: str, device: Device) -> None:
    """Raise :class:`InvalidConfig` with the first violation, if there is one."""
    found = violations(config, dtype, device)
    if found:
        raise InvalidConfig(f"invalid attention_bwd configuration: {found[0]}", field="config", value=repr(config))


def tuning(config: AttentionBwdConfig) -> TuningConfig:
    """The configuration as Triton's own fields."""
    kwargs: dict[str, int | str | bool] = {
        "HEAD_DIM": config.head_dim,
        "KEYS": config.keys,
        "ROWS": config.rows,
        "DEPTH": config.depth,
        "DS_IN_REGISTERS": config.ds_in_registers,
        "DQ": config.dq,
        "CTAS_PER_SM": config.ctas_per_sm,
        "PERSISTENT": config.persistent,
        "HEAD_GROUP": config.head_group,
        "PRODUCER_REGISTERS": config.producer_registers,
        "CONSUMER_REGISTERS": config.consumer_registers,
    }
    if config.packed:
        kwargs["PACKED"] = True
    return TuningConfig.of(kwargs, num_warps=config.consumer_warps, num_stages=1, maxnreg=config.max_registers)


def config_of(given: TuningConfig) -> AttentionBwdConfig:
    """The inverse of :func:`tuning`; :class:`InvalidConfig` where a field is missing, of the wrong kind, or says other
    than what the launch would use (warps and registers follow from the rest)."""
    values = dict(given.kwargs)

    def whole(name: str) -> int:
        value = values.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise _wrong(name, value, "a whole number from 1 on")
        return value

    def flag(name: str) -> bool:
        value = values.get(name)
        if not isinstance(value, bool):
            raise _wrong(name, value, "true or false")
        return value

    scheme = next((name for name in QUERY_GRADIENTS if name == values.get("DQ")), None)
    if scheme is None:
        raise _wrong("DQ", values.get("DQ"), f"one of {', '.join(QUERY_GRADIENTS)}")
    for name, least in (("KEYS", MMA_ROWS), ("ROWS", MMA_ROWS)):
        if whole(name) % least:
            raise _wrong(name, values[name], f"a multiple of {least}")
    config = AttentionBwdConfig(
        whole("HEAD_DIM"),
        whole("KEYS"),
        whole("ROWS"),
        whole("DEPTH"),
        flag("DS_IN_REGISTERS"),
        scheme,
        whole("CTAS_PER_SM"),
        flag("PERSISTENT"),
        whole("HEAD_GROUP"),
        "PACKED" in values and flag("PACKED"),
    )
    made = tuning(config)
    expected = dict(made.kwargs)
    for name in sorted(expected.keys() | values.keys()):
        if expected.get(name) != values.get(name):
            raise _wrong(name, values.get(name), f"{expected.get(name)!r} beside the rest")
    if given != made:
        raise _wrong("num_warps", given.num_warps, f"{made.num_warps}, num_stages 1 and maxnreg {made.maxnreg}")
    return config


def _wrong(field: str, value: object, expected: str) -> InvalidConfig:
    return InvalidConfig(
        f"attention_bwd configuration: {field} is {value!r}, expected {expected}", field=field, value=value
    )
