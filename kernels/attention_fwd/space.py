"""The configurations of the attention forward kernel, and the one function that says which of them are valid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from warpplan.kernels.gemm.space import (
    LAUNCH_REGISTERS,
    MAX_REGISTERS,
    RESULT_BYTES,
    SMEM_RESERVED_BYTES,
    WARP,
    WARP_GROUP,
)
from warpplan.planner.errors import InvalidConfig
from warpplan.planner.values.device import Device
from warpplan.planner.values.tuning import TuningConfig

AttentionStaging = Literal["own", "q"]

ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
"""Of Q, K and V; the result of fp8 is bfloat16, else of their dtype."""
SIXTEEN_BIT = ("bfloat16", "float16")
HEAD_DIMS = (64, 128, 256)
SMEM_OVERHEAD_BYTES = 2_048
"""Barriers, the arguments that warp_specialize hands to its workers, alignment; tests compare it with the compiler."""
PRODUCER_REGISTERS = 24
"""Of a producer thread; a multiple of 8, as ``setmaxnreg`` needs it. What it has, the consumers lack."""
SEARCHING_REGISTERS = 32
"""The same of one that looks up packed sequences and copies Q in more than :data:`FEW_COLUMNS` columns: with 24, those
of D 256 and of three consumers of D 128 spilled, and no other."""
FEW_COLUMNS = 256
BASE_REGISTERS = 32
"""Of a consumer thread beside its tiles: addresses, phases, maxima and sums, the mask's temporaries. What leaves less
spills (three consumers of 64 rows, D 64, with Q in registers: 16 left), what leaves as much does not: the tests compile
all of the space."""
ROW_REGISTERS = 8
"""More of them where a consumer has two tiles of wgmma, whose rows have maxima and sums of their own: with none, 128
rows of 64 keys with 8-bit heads of 128 spilled 48 bytes, and nothing else."""
PACKED_REGISTERS = 8
"""More of them where sequences are packed: where its own begins and ends, and which it has looked at. Where none are
left (three consumers of 64 x 128, D 64), it spills."""
SPILLING_HEAD_DIM = 256
"""With which the turns of packed sequences' consumers do not fit their registers (Triton 3.6.0; 24 to 48 of the
producer's were tried)."""
MAX_DEPTH = 8
MMA_ROWS = 64


@dataclass(frozen=True, order=True)
class AttentionConfig:
    """One way to run the kernel on heads of ``head_dim`` elements.

    A unit of work is ``consumers`` · ``rows`` query rows of one head, ``rows`` a consumer of one warp group; a loop
    iteration takes ``columns`` keys. K and V each have a ring of ``depth`` slots. ``lookahead`` issues Q · Kᵀ of the
    next block before the softmax of this one is used, with P · V; ``pingpong`` lets the consumers issue their products
    by turns. Q stays in shared memory, or ``q_in_registers``. The result leaves through bytes of its ``own`` or through
    those of ``q``. ``persistent`` CTAs, one an SM, take units one after another, else each unit has a CTA.
    ``head_group`` heads run together, so that their keys are in L2 at once. ``packed`` sequences of unlike lengths lie
    one behind the other.
    """

    head_dim: int
    consumers: int
    rows: int
    columns: int
    depth: int
    lookahead: bool = True
    pingpong: bool = False
    q_in_registers: bool = False
    staging: AttentionStaging = "own"
    persistent: bool = True
    head_group: int = 1
    packed: bool = False

    @property
    def tile_rows(self) -> int:
        """Query rows of a unit of work."""
        return self.consumers * self.rows

    @property
    def total_warps(self) -> int:
        """Warps of a block as the hardware allots them: the consumers', and a warp group for the producer's one."""
        return (self.consumers + 1) * WARP_GROUP

    @property
    def output_registers(self) -> int:
        """fp32 registers of a consumer thread that hold its rows of O."""
        return self.rows * self.head_dim // (WARP_GROUP * WARP)

    @property
    def score_registers(self) -> int:
        """fp32 registers of a consumer thread that hold a block of scores."""
        return self.rows * self.columns // (WARP_GROUP * WARP)

    def live_registers(self, element_bytes: int) -> int:
        """Registers of a consumer thread that hold tiles where the most are live: O, scores, the weights of the block
        before (lookahead) or of this one while they are made, and Q where it is kept in registers. Weights of 8 bits
        are made while a lookahead's product still reads those of the block before, so that both are there."""
        weights = self.score_registers * element_bytes // 4
        if element_bytes == 1 and self.lookahead:
            weights *= 2
        query = self.output_registers * element_bytes // 4 if self.q_in_registers else 0
        return self.output_registers + self.score_registers + weights + query

    @property
    def producer_registers(self) -> int:
        """Registers of a producer thread."""
        searching = self.packed and self.consumers * self.head_dim > FEW_COLUMNS
        return SEARCHING_REGISTERS if searching else PRODUCER_REGISTERS

    @property
    def base_registers(self) -> int:
        """Registers of a consumer thread beside its tiles."""
        rows = ROW_REGISTERS if self.rows > MMA_ROWS else 0
        return BASE_REGISTERS + rows + (PACKED_REGISTERS if self.packed else 0)

    @property
    def max_registers(self) -> int:
        """Registers a thread at launch (``maxnreg``): the SM's 65,536 over all threads, rounded down to 8."""
        return min(MAX_REGISTERS, 65_536 // (WARP * self.total_warps) // 8 * 8)

    @property
    def consumer_registers(self) -> int:
        """Registers of a consumer thread: what the producer's warp group leaves, in multiples of 8."""
        left = self.max_registers * self.total_warps - self.producer_registers * WARP_GROUP
        return min(MAX_REGISTERS, left // (self.consumers * WARP_GROUP) // 8 * 8)

    def slot_bytes(self, element_bytes: int) -> int:
        """Bytes of one block of K, or of V."""
        return self.columns * self.head_dim * element_bytes

    def tile_bytes(self, element_bytes: int) -> int:
        """Bytes of one consumer's rows of Q, or, of :data:`RESULT_BYTES`, of O."""
        return self.rows * self.head_dim * element_bytes

    def smem_bytes(self, element_bytes: int) -> int:
        """Shared memory of one block, overhead included (never less than the compiler reports; tested)."""
        staging = self.tile_bytes(RESULT_BYTES) if self.staging == "own" else 0
        tiles = self.consumers * (self.tile_bytes(element_bytes) + staging)
        return tiles + 2 * self.depth * self.slot_bytes(element_bytes) + SMEM_OVERHEAD_BYTES


def violations(config: AttentionConfig, dtype: str, device: Device) -> tuple[str, ...]:
    """Why ``config`` cannot run on ``device``; empty when it can."""
    return tuple(_violations(config, dtype, device))


def _violations(config: AttentionConfig, dtype: str, device: Device) -> Iterator[str]:
    c = config
    if dtype not in ELEMENT_BYTES:
        yield f"dtype {dtype}: expected one of {', '.join(ELEMENT_BYTES)}"
        return
    for name, value, allowed in (
        ("head_dim", c.head_dim, HEAD_DIMS),
        ("consumers", c.consumers, (1, 2, 3)),
        ("rows", c.rows, (64, 128)),
        ("columns", c.columns, (64, 128)),
        ("depth", c.depth, tuple(range(2, MAX_DEPTH + 1))),
        ("staging", c.staging, ("own", "q")),
    ):
        if value not in allowed:
            yield f"{name} {value}: expected one of {', '.join(map(str, allowed))}"
            return
    if c.head_group < 1:
        yield f"head_group {c.head_group}: expected 1 or more"
        return
    if not device.has_wgmma:
        yield f"device {device.name}: the kernel needs wgmma (capability 9.0)"
    if dtype not in SIXTEEN_BIT and c.packed:
        yield f"packed sequences with {dtype}: expected one of {', '.join(SIXTEEN_BIT)}"
    if dtype not in SIXTEEN_BIT and c.staging == "q":
        yield f"staging q with {dtype}: a result of 16 bits has twice the bytes of Q, expected own"
    if c.pingpong and not (c.lookahead and c.consumers > 1):
        yield "pingpong: the turns are those of several consumers that issue both products together (lookahead)"
    if c.packed and c.pingpong and c.head_dim == SPILLING_HEAD_DIM:
        yield f"pingpong of packed sequences with heads of {c.head_dim} spills 44 bytes, whatever the producer leaves"
    live = c.live_registers(ELEMENT_BYTES[dtype])
    if live + c.base_registers > c.consumer_registers:
        yield (
            f"{live} registers a thread of tiles and {c.base_registers} more exceed "
            f"the {c.consumer_registers} a consumer thread has"
        )
    widest = max(c.columns, c.head_dim)
    if widest // 2 + LAUNCH_REGISTERS > c.max_registers:
        yield (
            f"a wgmma of {widest} columns needs {widest // 2 + LAUNCH_REGISTERS} registers a thread at launch, "
            f"and {c.total_warps} warps leave {c.max_registers}"
        )
    share = min(device.smem_bytes_per_block, device.smem_bytes_per_sm - SMEM_RESERVED_BYTES)
    if c.smem_bytes(ELEMENT_BYTES[dtype]) > share:
        yield f"{c.smem_bytes(ELEMENT_BYTES[dtype])} bytes of shared memory exceed the {share} that a block has"


def require_valid(config: AttentionConfig, dtype: str, device: Device) -> None:
    """Raise :class:`InvalidConfig` with the first violation, if there is one."""
    found = violations(config, dtype, device)
    if found:
        raise InvalidConfig(f"invalid attention_fwd configuration: {found[0]}", field="config", value=repr(config))


def tuning(config: AttentionConfig) -> TuningConfig:
    """The configuration as Triton's own fields."""
    kwargs: dict[str, int | str | bool] = {
        "HEAD_DIM": config.head_dim,
        "CONSUMERS": config.consumers,
        "ROWS": config.rows,
        "COLUMNS": config.columns,
        "DEPTH": config.depth,
        "LOOKAHEAD": config.lookahead,
        "PINGPONG": config.pingpong,
        "Q_IN_REGISTERS": config.q_in_registers,
        "STAGING_IN_Q": config.staging == "q",
        "PERSISTENT": config.persistent,
        "HEAD_GROUP": config.head_group,
        "PRODUCER_REGISTERS": config.producer_registers,
        "CONSUMER_REGISTERS": config.consumer_registers,
    }
    if config.packed:
        kwargs["PACKED"] = True
    return TuningConfig.of(kwargs, num_warps=WARP_GROUP, num_stages=1, maxnreg=config.max_registers)


def config_of(given: TuningConfig) -> AttentionConfig:
    """The inverse of :func:`tuning`; :class:`InvalidConfig` where a field is missing, of the wrong kind, or says other
    than what the launch would use (registers follow from the rest)."""
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

    config = AttentionConfig(
        whole("HEAD_DIM"),
        whole("CONSUMERS"),
        whole("ROWS"),
        whole("COLUMNS"),
        whole("DEPTH"),
        flag("LOOKAHEAD"),
        flag("PINGPONG"),
        flag("Q_IN_REGISTERS"),
        "q" if flag("STAGING_IN_Q") else "own",
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
        f"attention_fwd configuration: {field} is {value!r}, expected {expected}", field=field, value=value
    )
