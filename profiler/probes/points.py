"""What is measured: the points of every probe family, as data. Importing it needs neither torch nor triton."""

from __future__ import annotations

from dataclasses import dataclass

from warpplan.planner.values.costs import Parameter, Parameters

DTYPES = ("bfloat16", "float16")
BOX_BYTES = (4096, 8192, 16384, 32768)
COLUMNS = (16, 32, 64, 128, 256)
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
KNOTS = (16, 64, 256)
"""Columns at which the costs of a wgmma bend, of all ``COLUMNS`` (data/nvidia_h200.json): a lookup draws the straight
lines between them. All five columns take half as long again to measure and give the same lookups within 2 %."""
PAIRS = (96, 160, 192)
"""Columns that two accumulators have, of powers of two: a GEMM's tiles of other widths."""
WIDENED = ("widen_fp8_float16", "widen_fp8_bfloat16", "widen_int8_float16", "widen_int8_bfloat16")
"""Conversions of 8-bit operands to the 16-bit floats that are multiplied."""
WIDENED_COLUMNS = (32, 64, 128)
"""Sixteen elements a thread and more: they are used sixteen at a time."""
LOAD_BYTES = (512, 2048, 8192)
"""Of tiles that are loaded into registers: one word a thread of four warps, one instruction of 16 bytes, and four."""
ROWS = 64
"""Rows of one warp group's tile: 16 for each of its four warps, as wgmma has it."""


@dataclass(frozen=True)
class Point:
    """One thing to measure: a cost kind with its parameters, or a ceiling without any."""

    kind: str
    parameters: Parameters = ()

    @classmethod
    def of(cls, kind: str, **parameters: Parameter) -> Point:
        return cls(kind, tuple(sorted(parameters.items())))

    @property
    def label(self) -> str:
        inner = ", ".join(f"{name}={value}" for name, value in self.parameters)
        return f"{self.kind}({inner})" if inner else self.kind

    def text(self, name: str) -> str:
        return str(dict(self.parameters)[name])

    def number(self, name: str) -> int:
        return int(dict(self.parameters)[name])


def _tma() -> tuple[Point, ...]:
    loads = [Point.of("tma_load", bytes=b, source=s) for s in ("l2", "dram") for b in BOX_BYTES]
    return (*loads, *(Point.of(kind, bytes=b) for kind in ("tma_store", "tma_reduce") for b in BOX_BYTES))


def _wgmma() -> tuple[Point, ...]:
    one = [Point.of("wgmma", n=n, dtype=d, a=a) for d in DTYPES for a in ("shared", "register") for n in COLUMNS]
    fp8 = [Point.of("wgmma", n=n, dtype="float8_e4m3fn", a=a) for a in ("shared", "register") for n in COLUMNS]
    transposed = [
        Point.of("wgmma_transposed", n=n, dtype=d, operands=o) for d in DTYPES for o in ("a", "b", "ab") for n in KNOTS
    ]
    two = [Point.of("wgmma_two_groups", n=n, dtype="bfloat16", a="shared") for n in COLUMNS]
    pair = [Point.of("wgmma_pair", n=n, dtype=d, a="shared") for d in (*DTYPES, "float8_e4m3fn") for n in PAIRS]
    return (*one, *fp8, *transposed, *two, *pair)


def _tiles(*kinds: str) -> tuple[Point, ...]:
    return tuple(Point.of(kind, elements=ROWS * n) for kind in kinds for n in COLUMNS)


def _registers() -> tuple[Point, ...]:
    return (
        *_tiles("elementwise", "exp2", "row_max", "row_sum", "convert", "convert_fp8", "pack_fp8"),
        # 256 columns spill: promotion holds two tiles in registers, the error function has many intermediate values.
        *(Point.of("promote", elements=ROWS * n) for n in COLUMNS if n < 256),
        *(Point.of("activation", function=f, elements=ROWS * n) for f in ACTIVATIONS for n in (16, 64, 128)),
    )


def _mma() -> tuple[Point, ...]:
    products = (Point.of("mma", n=n, dtype=d) for d in DTYPES for n in COLUMNS)
    return (*products, *(Point.of("ldmatrix", bytes=b) for b in BOX_BYTES))


FAMILIES: dict[str, tuple[Point, ...]] = {
    "tma": _tma(),
    "wgmma": _wgmma(),
    "mma": _mma(),
    "handoff": tuple(Point.of("handoff", scope=s) for s in ("warp_to_group", "group_to_warp", "group_to_group")),
    "fix_up": tuple(Point.of("fix_up", elements=e) for e in (ROWS * 16, ROWS * 128, ROWS * 256, 2 * ROWS * 256)),
    "cluster": (
        *(Point.of("tma_multicast", bytes=b, source=s) for s in ("l2", "dram") for b in BOX_BYTES),
        Point.of("handoff", scope="cluster"),
    ),
    "shared": (
        *(Point.of(kind, bytes=b) for kind in ("shared_load", "shared_store") for b in BOX_BYTES),
        *_tiles("epilogue_store", "ragged_store"),
    ),
    "registers": _registers(),
    "widening": tuple(Point.of(kind, elements=ROWS * n) for kind in WIDENED for n in WIDENED_COLUMNS),
    "loads": tuple(Point.of("global_load", bytes=b, source=s) for s in ("l2", "dram") for b in LOAD_BYTES),
    "gather": tuple(Point.of("gather_load", bytes=b, source=s) for s in ("l2", "dram") for b in BOX_BYTES[1:]),
    "ceilings": tuple(
        Point.of(name)
        for name in (
            "clock_hz_idle",
            "launch_us",
            "copy_bytes_per_s",
            "value_pass_bytes_per_s",
            "read_bytes_per_s",
            "l2_bytes_per_s",
            *(f"tensor_issue_flops_{d}" for d in DTYPES),
            *(f"tensor_flops_{d}" for d in (*DTYPES, "float8_e4m3fn")),
            "clock_hz_tensor",
        )
    ),
}
"""Family name → its points, in the order in which they are measured; cool ones first, power-hungry ones last."""
SINCE = {"cluster": (3, 9)}
"""The first release of Triton, (major, minor), that a family's probes run on, where not every one does."""


def runs_on(family: str, triton: str) -> bool:
    """Whether the probes of ``family`` run on Triton ``triton``, a version such as "3.6.0"."""
    major, minor = (int(part) for part in triton.split(".")[:2])
    return (major, minor) >= SINCE.get(family, (0, 0))
