"""The configurations of the GEMM kernel, and the one function that says which of them are valid.

C[M, N] = A[M, K] · B[N, K]ᵀ. Rows and columns below are those of the *computed* matrix: C itself, or Cᵀ where
``swap`` is set (its rows are then N, its columns M), so that few tokens fill the narrow side of a 64-row wgmma.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from warpplan.planner.errors import InvalidConfig
from warpplan.planner.values.device import Device
from warpplan.planner.values.tuning import TuningConfig

Scheme = Literal["pipelined", "single", "cooperative", "pingpong"]
Staging = Literal["own", "ring"]
Shape = tuple[int, int, int]

SCHEMES: tuple[Scheme, ...] = ("pipelined", "single", "cooperative", "pingpong")
ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
"""Of the operands."""
RESULT_BYTES = 2
"""Of an element of C: bfloat16 where the operands are fp8, else their own type."""
SCALES = ("tensor", "row", "block")
"""How fp8 operands are scaled: a number each, a number a row, a number a block (1 x 128 of A, 128 x 128 of B)."""
SCALE_BLOCK = 128
"""Elements of K, and rows of B, that share a block's scale."""
LAYOUTS = ("nt", "nn", "tn", "tt")
"""How A and B are stored: "n" as the product reads, A [M, K] and B [K, N], "t" transposed. The first is the default."""

ROW_ALIGNMENT_BYTES = 16
"""TMA needs rows that start on 16 bytes (CUDA driver API, cuTensorMapEncodeTiled)."""

SMEM_OVERHEAD_BYTES = 2_048
"""Barriers, the arguments that warp_specialize hands to its workers, alignment; tests compare it with the compiler."""
SMEM_RESERVED_BYTES = 1_024
"""What the driver keeps of each block's share (CUDA C++ Programming Guide, "Shared Memory", capability 9.0)."""
BASE_REGISTERS = 40
"""Addresses, phases and the epilogue's temporaries beside the accumulator: the largest that ptxas reports of the
pipelined kernels is 32, the specialised ones compile without a spill with 40 (``benchmarks/fit_registers.py``)."""
LAUNCH_REGISTERS = 26
"""What ptxas wants *at launch* beside the accumulator of one wgmma, whatever ``setmaxnreg`` grants later (its error
C7602; ``benchmarks/fit_registers.py``)."""
PRODUCER_REGISTERS = 24
STREAM_PRODUCER_REGISTERS = 32
"""Of a stream's producer where several consumers have 64 sums a thread at most, and can spare 8 registers: with 24,
128x128 tiles of 7 slots spill 8 bytes. With more sums the consumers spill instead (ptxas of Triton 3.6.0)."""
MAX_REGISTERS = 240
WIDE_COLUMNS = (96, 160, 192)
"""Columns of the tiles with two accumulators: 64 and 32, 128 and 32, 128 and 64."""
CHUNK_COLUMNS = 64
"""Chunks of a wide tile's epilogue with fewer columns are narrow: they exchange partial sums slowly, and in streams
they spill (ptxas of Triton 3.7 to 3.9)."""
SPLIT_REGISTERS = 128
"""The most accumulator registers of a thread that adds up partial sums: with 192 it spills (ptxas of Triton 3.6.0)."""
MAX_DEPTH = 8
PIPELINED_DEPTH = 5
"""A software pipeline's prologue loads all of its slots before the first multiply; no block among the fastest of a
training shape gained by more than these (benchmarks/results/robust_depth_h200.json)."""
WARP = 32
WARP_GROUP = 4
MMA_ROWS = 64


@dataclass(frozen=True, order=True)
class GemmConfig:
    """One way to run the kernel.

    ``scheme``: "pipelined" one partition, Triton's own software pipeline (``tl.py``); "single" one consumer and one
    producer; "cooperative" two or three consumers that share the tile's rows (three take 192 rows, 64 each); "pingpong"
    two consumers with a tile each, one multiplying while the other stores. ``consumer_warps`` is per consumer.
    ``depth`` counts ring slots, each one A and one B tile: both are acquired and released by the same operation, so
    rings of unlike depth would only idle. The epilogue leaves in ``epilogue_split`` column chunks through bytes of its
    ``own`` or of a ``ring`` slot. ``split_k`` CTAs share one tile's K and reduce in fixed order: every tile, or with
    ``split_tail`` only those of the last wave, which would leave SMs idle. ``stream_k``: the K blocks of the tiles that
    full waves leave over, and of the last full wave, are cut into one range a CTA
    (:mod:`warpplan.kernels.device.stream_k`). ``ctas_per_sm`` blocks are resident together. ``promoted``: each K block
    of fp8 operands leaves the tensor cores and is summed in fp32 registers, as block scales need. ``cluster`` CTAs on
    neighbouring SMs share a tile: each has a part of its rows, and B's tiles are copied once for all of them (TMA
    multicast). ``launch_dependents``: the launch that follows in the stream may begin when the last copies of this one
    are under way (:mod:`warpplan.kernels.device.early_launch`).
    """

    scheme: Scheme
    block_m: int
    block_n: int
    block_k: int
    consumer_warps: int
    depth: int
    epilogue_split: int = 1
    staging: Staging = "own"
    swap: bool = False
    group_m: int = 8
    split_k: int = 1
    persistent: bool = True
    ctas_per_sm: int = 1
    split_tail: bool = False
    promoted: bool = False
    stream_k: bool = False
    cluster: int = 1
    launch_dependents: bool = False

    @property
    def cta_rows(self) -> int:
        """Tile rows of one CTA."""
        return self.block_m // self.cluster

    @property
    def split(self) -> Literal["none", "equal", "stream"]:
        """How K is split: not, into equal ranges of a tile's, or into a range a CTA of all tiles'."""
        if self.stream_k:
            return "stream"
        return "equal" if self.split_k > 1 else "none"

    @property
    def specialized(self) -> bool:
        return self.scheme != "pipelined"

    @property
    def consumers(self) -> int:
        if self.scheme == "cooperative":
            return 3 if self.cta_rows == 3 * MMA_ROWS else 2
        return 2 if self.scheme == "pingpong" else 1

    @property
    def consumer_rows(self) -> int:
        """Tile rows of one consumer of one CTA."""
        return self.cta_rows // self.consumers if self.scheme == "cooperative" else self.cta_rows

    @property
    def total_warps(self) -> int:
        """Warps of a block as the hardware allots them: the consumers', and a warp group for the producer's one."""
        return self.consumers * self.consumer_warps + (WARP_GROUP if self.specialized else 0)

    @property
    def accumulator_registers(self) -> int:
        """fp32 accumulator registers of each consumer thread."""
        return self.consumer_rows * self.block_n // (self.consumer_warps * WARP)

    @property
    def wide(self) -> bool:
        """Whether the columns are two accumulators'."""
        return self.block_n in WIDE_COLUMNS

    @property
    def mma_columns(self) -> int:
        """Columns of the widest wgmma of a K step: a tensor's sides are powers of two."""
        return 1 << (self.block_n.bit_length() - 1)

    @property
    def wide_chunks(self) -> int:
        """Column chunks of a wide tile's epilogue, each as wide as its narrower accumulator."""
        return self.block_n // (self.block_n - self.mma_columns)

    @property
    def has_narrow_chunks(self) -> bool:
        return self.wide and self.block_n // self.wide_chunks < CHUNK_COLUMNS

    @property
    def mma_kind(self) -> str:
        """The probe of a K step of 64 rows: of one wgmma, or of two."""
        return "wgmma_pair" if self.wide else "wgmma"

    @property
    def live_registers(self) -> int:
        """Registers of a consumer thread that hold sums: a promoted product has its own beside the accumulator."""
        return self.accumulator_registers * (2 if self.promoted else 1)

    @property
    def max_registers(self) -> int:
        """Registers a thread at launch (``maxnreg``): the SM's 65,536 over all resident threads, rounded down to 8."""
        return min(MAX_REGISTERS, 65_536 // (WARP * self.total_warps * self.ctas_per_sm) // 8 * 8)

    @property
    def producer_registers(self) -> int:
        """Registers of a producer thread."""
        spare = self.consumers > 1 and self.live_registers <= 64
        return STREAM_PRODUCER_REGISTERS if self.stream_k and spare else PRODUCER_REGISTERS

    @property
    def consumer_registers(self) -> int:
        """Registers of a consumer thread: what the producer's warp group leaves."""
        if not self.specialized:
            return min(255, self.max_registers)
        left = self.max_registers * self.total_warps - self.producer_registers * WARP_GROUP
        return min(MAX_REGISTERS, left // (self.consumers * self.consumer_warps) // 8 * 8)

    @property
    def loop_key(self) -> tuple[str, int, int, int, int, bool, int]:
        """What the loop body's schedule depends on."""
        return (self.scheme, self.block_m, self.block_n, self.block_k, self.consumer_warps, self.promoted, self.cluster)

    def slot_bytes(self, element_bytes: int) -> int:
        """Shared memory of one CTA's slot."""
        return (self.cta_rows + self.block_n) * self.block_k * element_bytes

    def loaded_bytes(self, element_bytes: int) -> float:
        """What a slot of one CTA takes from L2: of the tile that all CTAs of a cluster hold, each reads its share."""
        return (self.cta_rows + self.block_n / self.cluster) * self.block_k * element_bytes

    @property
    def staging_bytes(self) -> int:
        """Bytes of one consumer's epilogue chunk."""
        return self.consumer_rows * self.block_n * RESULT_BYTES // self.epilogue_split

    def slot_staging_bytes(self, element_bytes: int) -> int:
        """Bytes of a ring slot that one consumer alone still reads when its main loop ends."""
        if self.scheme == "cooperative":
            return self.consumer_rows * self.block_k * element_bytes
        return max(self.cta_rows, self.block_n) * self.block_k * element_bytes

    def smem_bytes(self, element_bytes: int) -> int:
        """Shared memory of one block, overhead included (never less than the compiler reports; tested)."""
        ring = self.depth * self.slot_bytes(element_bytes)
        if not self.specialized:
            # The compiler gives the epilogue the ring's bytes: they are dead by then.
            return max(ring, self.cta_rows * self.block_n * RESULT_BYTES) + SMEM_OVERHEAD_BYTES
        own = self.consumers * self.staging_bytes if self.staging == "own" else 0
        return ring + own + SMEM_OVERHEAD_BYTES

    def computed(self, shape: Shape) -> Shape:
        """(rows, columns, K) of the matrix that is computed: C's, or Cᵀ's where the operands are swapped."""
        m, n, k = shape
        return (n, m, k) if self.swap else shape

    def tiles(self, shape: Shape) -> int:
        rows, columns, _ = self.computed(shape)
        return -(-rows // self.block_m) * -(-columns // self.block_n)

    def resident(self, sm_count: int) -> int:
        """Tiles that ``sm_count`` SMs work on at once."""
        return sm_count * self.ctas_per_sm // self.cluster

    def whole_tiles(self, shape: Shape, sm_count: int) -> int:
        """Tiles whose K is not split: none where every tile is, the full waves' where only the tail is. A stream takes
        a full wave beside the tail, so that a CTA has more than a tile of it and a tile two CTAs at most."""
        tiles, resident = self.tiles(shape), self.resident(sm_count)
        if self.stream_k:
            return max(tiles // resident - 1, 0) * resident
        if self.split_k == 1:
            return tiles
        return tiles // resident * resident if self.split_tail else 0

    def units(self, shape: Shape, sm_count: int) -> int:
        """Units of work: whole tiles, and ``split_k`` ranges of K of each other tile, or a range a CTA of all the
        others, of one K block at least."""
        whole = self.whole_tiles(shape, sm_count)
        if self.stream_k:
            k_blocks = -(-shape[2] // self.block_k)
            return whole + min(self.resident(sm_count), (self.tiles(shape) - whole) * k_blocks)
        return whole + (self.tiles(shape) - whole) * self.split_k


def violations(config: GemmConfig, dtype: str, device: Device, shape: Shape | None = None) -> tuple[str, ...]:
    """Why ``config`` cannot run on ``device`` (for ``shape``, where given); empty when it can."""
    found = list(_block_violations(config, dtype, device))
    if shape is not None and config.split_k > 1:
        k_blocks = -(-shape[2] // config.block_k)
        each = -(-k_blocks // config.split_k)
        if -(-k_blocks // each) != config.split_k:
            found.append(f"split_k {config.split_k} leaves splits of K={shape[2]} empty: at most {k_blocks} of {each}")
    return tuple(found)


def _block_violations(config: GemmConfig, dtype: str, device: Device) -> Iterator[str]:
    c = config
    if dtype not in ELEMENT_BYTES:
        yield f"dtype {dtype}: expected one of {', '.join(ELEMENT_BYTES)}"
        return
    element = ELEMENT_BYTES[dtype]
    if c.scheme not in SCHEMES:
        yield f"scheme {c.scheme}: expected one of {', '.join(SCHEMES)}"
        return
    for name, value, allowed in (
        ("cluster", c.cluster, (1, 2)),
        ("block_m", c.block_m, tuple(rows * c.cluster for rows in (64, 128, 192, 256))),
        ("block_n", c.block_n, tuple(sorted((16, 32, 64, 128, 256, *WIDE_COLUMNS)))),
        ("block_k", c.block_k, (64, 128, 256)),
        ("consumer_warps", c.consumer_warps, (4, 8)),
        ("epilogue_split", c.epilogue_split, (c.wide_chunks,) if c.wide else (1, 2, 4)),
        ("ctas_per_sm", c.ctas_per_sm, (1, 2)),
        ("staging", c.staging, ("own", "ring")),
    ):
        if value not in allowed:
            yield f"{name} {value}: expected one of {', '.join(map(str, allowed))}"
            return
    for name, number in (("depth", c.depth), ("group_m", c.group_m), ("split_k", c.split_k)):
        if number < 1:
            yield f"{name} {number}: expected 1 or more"
            return
    if not device.has_wgmma:
        yield f"device {device.name}: the kernel needs wgmma (capability 9.0)"
    yield from _fp8_violations(c, element)
    if c.consumers > 1 and c.consumer_warps != WARP_GROUP:
        yield f"{c.scheme} with {c.consumer_warps} warps a consumer: each of several consumers is one warp group"
    yield from _cluster_violations(c)
    yield from _wide_violations(c)
    if c.cta_rows == 3 * MMA_ROWS and c.scheme != "cooperative":
        yield f"block_m {c.block_m} with {c.scheme}: 192 rows are three cooperative consumers'"
    if c.split_tail and c.split_k == 1:
        yield "split_tail without split_k: nothing is split"
    if c.consumer_rows < 16 * c.consumer_warps:
        yield f"{c.consumer_rows} rows for {c.consumer_warps} warps: wgmma gives each warp 16 rows"
    if c.specialized and c.depth < 2:
        yield f"depth {c.depth}: one multiply stays in flight, so the ring needs 2 slots or more"
    if not c.specialized and (c.split != "none" or c.swap):
        yield "the pipelined scheme has no split-K, no stream-K and no swapped operands"
    if c.stream_k and c.split_k > 1:
        yield f"stream_k with split_k {c.split_k}: K is split in one of the two ways"
    if c.launch_dependents and not c.specialized:
        yield f"launch_dependents with {c.scheme}: it has no producer to say that its copies are under way"
    if c.stream_k and not c.persistent:
        yield "stream_k without persistent: each CTA has one range, and all of a launch's must be resident"
    if c.live_registers + BASE_REGISTERS > c.consumer_registers:
        yield (
            f"{c.live_registers} accumulator registers a thread and {BASE_REGISTERS} more exceed "
            f"the {c.consumer_registers} a consumer thread has"
        )
    columns = c.mma_columns
    if columns // 2 + LAUNCH_REGISTERS > c.max_registers:
        yield (
            f"a wgmma of {columns} columns needs {columns // 2 + LAUNCH_REGISTERS} registers a thread at launch, "
            f"and {c.total_warps * c.ctas_per_sm} warps an SM leave {c.max_registers}"
        )
    if c.specialized and c.block_n // c.epilogue_split < 16:
        yield f"epilogue_split {c.epilogue_split}: chunks of {c.block_n // c.epilogue_split} columns, 16 at least"
    if c.specialized and c.staging == "ring" and c.staging_bytes > c.slot_staging_bytes(element):
        yield (
            f"an epilogue chunk of {c.staging_bytes} bytes exceeds the {c.slot_staging_bytes(element)} bytes "
            "of the ring slot that its consumer holds alone"
        )
    share = min(device.smem_bytes_per_block, device.smem_bytes_per_sm // c.ctas_per_sm - SMEM_RESERVED_BYTES)
    if c.smem_bytes(element) > share:
        yield f"{c.smem_bytes(element)} bytes of shared memory exceed the {share} that a block has"


def _cluster_violations(c: GemmConfig) -> Iterator[str]:
    if c.cluster == 1:
        return
    if not c.specialized:
        yield f"cluster {c.cluster} with {c.scheme}: only a producer of its own copies for several CTAs"
    if c.split != "none":
        yield f"cluster {c.cluster} with a split of K: partial sums are a CTA's"
    if c.ctas_per_sm > 1:
        yield f"cluster {c.cluster} with {c.ctas_per_sm} CTAs an SM: a cluster's CTAs have an SM each"
    if c.staging == "ring":
        yield f"cluster {c.cluster} with staging in the ring: a slot's tiles are not one CTA's to write"


def _wide_violations(c: GemmConfig) -> Iterator[str]:
    if not c.wide:
        return
    if not c.specialized or c.promoted or c.cluster > 1:
        yield f"block_n {c.block_n} of pipelined or promoted products or of clusters: its columns are two accumulators'"
    if c.staging != "own":
        yield f"block_n {c.block_n} with staging {c.staging}: no measured loop needs the bytes"
    if c.stream_k and c.has_narrow_chunks:
        yield f"stream_k of {c.block_n} columns: partial sums of chunks of {c.block_n // c.wide_chunks} columns spill"
    if c.split != "none" and c.accumulator_registers > SPLIT_REGISTERS:
        yield (
            f"a split of K with {c.accumulator_registers} accumulator registers a thread: {SPLIT_REGISTERS} leave room "
            "for another range's partial sums"
        )


def _fp8_violations(c: GemmConfig, element: int) -> Iterator[str]:
    if element != 1:
        if c.promoted:
            yield "promoted sums are those of fp8 operands"
        return
    if not c.specialized:
        yield "the pipelined scheme has no fp8 operands"
    if c.block_k < SCALE_BLOCK:
        yield f"block_k {c.block_k}: fp8 operands fill the 128 bytes of a swizzled row with {SCALE_BLOCK}"
    if c.staging == "ring":
        yield "staging in the ring: a result of 16 bits does not lie where fp8 operands lay"
    if c.promoted and (c.block_k != SCALE_BLOCK or c.block_n > SCALE_BLOCK or c.swap):
        yield (
            f"promoted sums of blocks {c.block_n} x {c.block_k}{' of swapped operands' if c.swap else ''}: one scale "
            f"covers {SCALE_BLOCK} rows of B and {SCALE_BLOCK} of K"
        )


def require_valid(config: GemmConfig, dtype: str, device: Device, shape: Shape | None = None) -> None:
    """Raise :class:`InvalidConfig` with the first violation, if there is one."""
    found = violations(config, dtype, device, shape)
    if found:
        raise InvalidConfig(f"invalid gemm configuration: {found[0]}", field="config", value=repr(config))


def tuning(config: GemmConfig) -> TuningConfig:
    """The configuration as Triton's own fields; ``num_stages`` is the ring's depth in the pipelined scheme."""
    kwargs: dict[str, int | str | bool] = {
        "SCHEME": config.scheme,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "GROUP_M": config.group_m,
        "PERSISTENT": config.persistent,
    }
    if not config.specialized:
        return TuningConfig.of(kwargs, num_warps=config.consumer_warps, num_stages=config.depth)
    kwargs |= {
        "DEPTH": config.depth,
        "EPILOGUE_SPLIT": config.epilogue_split,
        "STAGING_IN_RING": config.staging == "ring",
        "SWAP": config.swap,
        "SPLIT_K": config.split_k,
        "SPLIT_TAIL": config.split_tail,
        "CTAS_PER_SM": config.ctas_per_sm,
        "PRODUCER_REGISTERS": config.producer_registers,
        "CONSUMER_REGISTERS": config.consumer_registers,
    }
    if config.promoted:
        kwargs["PROMOTED"] = True
    if config.stream_k:
        kwargs["STREAM_K"] = True
    if config.launch_dependents:
        kwargs["LAUNCH_DEPENDENTS"] = True
    return TuningConfig.of(
        kwargs, num_warps=config.consumer_warps, num_stages=1, num_ctas=config.cluster, maxnreg=config.max_registers
    )


ABSENT = (("LAUNCH_DEPENDENTS", False),)
"""Fields that say what their absence says."""


def config_of(tuning_config: TuningConfig) -> GemmConfig:
    """The inverse of :func:`tuning`; :class:`InvalidConfig` where a field is missing, of the wrong kind, or says other
    than what the launch would use (registers and stages follow from the rest)."""
    config = _read(tuning_config)
    expected = dict(tuning(config).kwargs)
    given = {name: value for name, value in tuning_config.kwargs if (name, value) not in ABSENT}
    for name in sorted(expected.keys() | given.keys()):
        if expected.get(name) != given.get(name):
            raise InvalidConfig(
                f"gemm configuration: {name} is {given.get(name)!r}, but the rest makes it {expected.get(name)!r}",
                field=name,
                value=given.get(name),
                limit=expected.get(name),
            )
    return config


def _read(tuning_config: TuningConfig) -> GemmConfig:
    kwargs = dict(tuning_config.kwargs)
    if tuning_config.num_warps not in (WARP_GROUP, 2 * WARP_GROUP):
        raise InvalidConfig(
            f"gemm configuration: num_warps is {tuning_config.num_warps}, expected 4 or 8",
            field="num_warps",
            value=tuning_config.num_warps,
        )

    def whole(name: str) -> int:
        value = kwargs.get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidConfig(
                f"gemm configuration: {name} is {value!r}, a whole number is needed", field=name, value=value
            )
        return value

    def positive(name: str) -> int:
        if (number := whole(name)) < 1:
            raise InvalidConfig(f"gemm configuration: {name} is {number}, expected 1 or more", field=name, value=number)
        return number

    scheme = kwargs.get("SCHEME")
    if scheme not in SCHEMES:
        raise InvalidConfig(
            f"gemm configuration: SCHEME is {scheme!r}, expected one of {', '.join(SCHEMES)}",
            field="SCHEME",
            value=scheme,
        )
    base = GemmConfig(
        scheme,
        whole("BLOCK_M"),
        whole("BLOCK_N"),
        whole("BLOCK_K"),
        tuning_config.num_warps,
        tuning_config.num_stages,
        group_m=whole("GROUP_M"),
        persistent=bool(kwargs.get("PERSISTENT", True)),
        cluster=tuning_config.num_ctas,
    )
    if scheme == "pipelined":
        return base
    return replace(
        base,
        depth=whole("DEPTH"),
        epilogue_split=whole("EPILOGUE_SPLIT"),
        staging="ring" if kwargs.get("STAGING_IN_RING") else "own",
        swap=bool(kwargs.get("SWAP", False)),
        split_k=whole("SPLIT_K"),
        ctas_per_sm=positive("CTAS_PER_SM"),
        split_tail=bool(kwargs.get("SPLIT_TAIL", False)),
        promoted=bool(kwargs.get("PROMOTED", False)),
        stream_k=bool(kwargs.get("STREAM_K", False)),
        launch_dependents=bool(kwargs.get("LAUNCH_DEPENDENTS", False)),
    )
