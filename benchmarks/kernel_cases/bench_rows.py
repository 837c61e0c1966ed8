"""The shapes of the kernels' tables, fixed before the first run: constants are fitted on "train" rows alone.

A row's operands come from :func:`seed_of`; the sizes of ragged groups come from ``random.Random`` with the seeds that
stand here, so that every machine measures the same rows.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

Sizes = tuple[int, ...]
TABLES = (
    "grouped_gemm", "grouped_gemm_fp8", "gemm_fp8", "gemm_bias_act", "gemm_layouts", "linear", "attention_fwd",
    "attention_fp8", "attention_packed", "attention_decode", "sdpa", "attention_bwd", "attention_bwd_packed",
)  # fmt: skip
"""The tables, each in a pair of results files of its own."""
SPLITS = ("train", "heldout")
OPTIONS = {
    "grouped_gemm": {"product": "forward", "sizes": "balanced", "scales": "row"},
    "gemm": {"layout": "nt", "scales": "tensor"},
    "gemm_bias_act": {"layout": "nt", "activation": "none", "bias": "no", "residual": "no"},
    "linear": {"bias": "no"},
    "attention_fwd": {"mask": "full", "kv_heads": "same", "kv_length": "same", "window": "all", "sizes": "padded"},
    "attention_decode": {"kv_heads": "same", "queries": "1"},
    "sdpa": {"mask": "full", "kv_heads": "same"},
    "attention_bwd": {
        "mask": "full",
        "kv_heads": "same",
        "kv_length": "same",
        "window": "all",
        "sizes": "padded",
        "deterministic": "no",
    },
}
"""Each kernel's options in declared order, with their defaults."""


@dataclass(frozen=True)
class BenchRow:
    """One shape of a table. ``options`` are (name, value) pairs in declared order, those not at their defaults."""

    table: str
    kernel: str
    sizes: Sizes
    dtype: str
    split: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def shape(self) -> tuple[int | str, ...]:
        """The canonical shape: sizes, then ``name=value`` of each option that is not at its default."""
        return (*self.sizes, *(f"{name}={value}" for name, value in self.options))

    @property
    def key(self) -> tuple[str, ...]:
        """What tells rows apart in a file."""
        return (self.table, " ".join(map(str, self.shape)), self.dtype)

    def option(self, name: str) -> str:
        """The option's value, the default where the row has none. Raises ``KeyError`` for an unknown option."""
        return dict(self.options).get(name, OPTIONS[self.kernel][name])

    def replaced(self, *, dtype: str | None = None, **options: str) -> BenchRow:
        """The row with other options or another dtype, in the same table."""
        chosen = {**dict(self.options), **options}
        return make_row(self.table, self.kernel, self.sizes, dtype or self.dtype, self.split, **chosen)


def make_row(table: str, kernel: str, sizes: Sizes, dtype: str, split: str, /, **options: str) -> BenchRow:
    """A row whose options are in declared order and only those that differ from the default."""
    defaults = OPTIONS[kernel]
    if unknown := set(options) - set(defaults):
        raise KeyError(f"{kernel} has no option {sorted(unknown)[0]!r}: {', '.join(defaults)}")
    chosen = tuple((name, options[name]) for name in defaults if options.get(name, defaults[name]) != defaults[name])
    return BenchRow(table, kernel, sizes, dtype, split, chosen)


def seed_of(row: BenchRow) -> int:
    """The seed of a row's random operands."""
    return zlib.crc32("|".join(row.key).encode())


# Grouped products: (groups, rows of each, N, K), all groups of equal size.
BALANCED_HELDOUT: tuple[Sizes, ...] = (
    (4, 8192, 4096, 7168),
    (4, 8192, 7168, 2048),
    (8, 4096, 4096, 7168),
    (8, 4096, 7168, 2048),
    (64, 256, 2048, 1408),
    (64, 256, 1408, 2048),
    (64, 512, 2816, 2048),
    (256, 128, 2048, 7168),
    (256, 128, 7168, 2048),
    (32, 64, 2048, 7168),
    (8, 256, 4096, 4096),
)
BALANCED_TRAIN: tuple[Sizes, ...] = (
    (4, 4096, 4096, 4096),
    (8, 2048, 6144, 4096),
    (8, 1024, 4096, 14336),
    (16, 512, 2048, 2048),
    (16, 2048, 5120, 1536),
    (64, 128, 2816, 2048),
    (64, 1024, 2048, 1408),
    (128, 256, 1536, 4096),
    (128, 64, 4096, 1536),
    (256, 64, 4096, 2048),
)


def zipf_sizes(groups: int, rows: int, seed: int, exponent: float = 1.0) -> Sizes:
    """Rows shared out with weights 1 / rank ** ``exponent`` in a shuffled order of the groups."""
    weights = [1.0 / (rank + 1) ** exponent for rank in range(groups)]
    random.Random(seed).shuffle(weights)
    return _shared_out(weights, rows)


def routed_sizes(groups: int, rows: int, seed: int) -> Sizes:
    """Each row goes to a group of its own choice, all groups alike: a balanced router's noise."""
    chooser, counts = random.Random(seed), [0] * groups
    for _ in range(rows):
        counts[int(chooser.random() * groups)] += 1
    return tuple(counts)


def empty_sizes(groups: int, rows: int, seed: int) -> Sizes:
    """Half of the groups have no rows, the others unequal shares."""
    chooser = random.Random(seed)
    weights = [0.5 + chooser.random() if index < groups // 2 else 0.0 for index in range(groups)]
    chooser.shuffle(weights)
    return _shared_out(weights, rows)


def one_huge_group(groups: int, rows: int, share: float) -> Sizes:
    """The third group has ``share`` of the rows, the others the rest in equal parts."""
    return _shared_out([share if index == 2 else (1 - share) / (groups - 1) for index in range(groups)], rows)


def prime_sizes(groups: int, near: int, seed: int) -> Sizes:
    """Primes from ``near`` / 2 to 3 · ``near`` / 2."""
    primes = [p for p in range(near // 2, 3 * near // 2) if all(p % d for d in range(2, int(p**0.5) + 1))]
    chooser = random.Random(seed)
    return tuple(primes[int(chooser.random() * len(primes))] for _ in range(groups))


def _shared_out(weights: list[float], rows: int) -> Sizes:
    """``rows`` in proportion to ``weights``, what rounding leaves to the largest."""
    counts = [int(rows * weight / sum(weights)) for weight in weights]
    counts[weights.index(max(weights))] += rows - sum(counts)
    return tuple(counts)


# Grouped products with groups of unlike sizes: (sizes, N, K).
RAGGED_HELDOUT: tuple[tuple[Sizes, int, int], ...] = (
    (zipf_sizes(64, 32768, seed=101), 2816, 2048),
    (routed_sizes(64, 24576, seed=102), 1408, 2048),
    (routed_sizes(256, 640, seed=103), 2048, 7168),  # two or three rows a group
    (empty_sizes(32, 16384, seed=104), 4096, 2048),
    (prime_sizes(16, 600, seed=105), 4096, 4096),
    (one_huge_group(8, 16384, 0.9), 4096, 4096),
)
RAGGED_TRAIN: tuple[tuple[Sizes, int, int], ...] = (
    (zipf_sizes(32, 16384, seed=201, exponent=0.8), 4096, 1536),
    (routed_sizes(128, 16384, seed=202), 1536, 2048),
    (routed_sizes(64, 256, seed=203), 4096, 4096),
    (empty_sizes(64, 12288, seed=204), 2048, 2048),
    (prime_sizes(24, 400, seed=205), 2048, 4096),
)
PRODUCTS = ("forward", "dgrad", "wgrad")

# Dense products: (M, N, K).
FP8_HELDOUT: tuple[tuple[Sizes, str], ...] = (
    ((4096, 4096, 4096), "tensor"),
    ((8192, 8192, 8192), "tensor"),
    ((8192, 14336, 4096), "tensor"),
    ((2048, 2048, 2048), "tensor"),
    ((1000, 3008, 1040), "tensor"),
    ((4096, 4096, 4096), "row"),
    ((8192, 14336, 4096), "row"),
    ((16384, 4096, 7168), "row"),
    ((512, 8192, 4096), "row"),
    ((128, 7168, 2048), "row"),
)
FP8_TRAIN: tuple[tuple[Sizes, str], ...] = (
    ((1024, 1024, 1024), "tensor"),
    ((3072, 3072, 3072), "tensor"),
    ((16384, 1024, 4096), "tensor"),
    ((1024, 4096, 14336), "tensor"),
    ((1504, 2048, 1040), "tensor"),
    ((336, 8192, 4096), "tensor"),
    ((512, 768, 16384), "tensor"),
    ((5008, 5008, 2512), "tensor"),
    ((6144, 6144, 6144), "row"),
    ((4096, 14336, 4096), "row"),
    ((2048, 12288, 4096), "row"),
    ((256, 4096, 7168), "row"),
    ((128, 8192, 8192), "row"),
)
FUSED_SHAPES: tuple[Sizes, ...] = ((4096, 4096, 4096), (8192, 14336, 4096), (2048, 11008, 4096))
FUSED_OTHERS: tuple[tuple[Sizes, dict[str, str]], ...] = (
    ((4096, 28672, 4096), {"activation": "swiglu"}),
    ((2048, 22016, 4096), {"activation": "swiglu"}),
    ((8192, 4096, 14336), {"residual": "yes"}),
    ((1000, 3008, 1032), {"activation": "gelu", "bias": "yes"}),
)
FUSED_TRAIN: tuple[tuple[Sizes, dict[str, str]], ...] = (
    ((3072, 3072, 3072), {"activation": "relu", "bias": "yes"}),
    ((8192, 5120, 5120), {"activation": "relu", "bias": "yes"}),
    ((2048, 8192, 2048), {"activation": "gelu", "bias": "yes"}),
    ((8192, 3072, 768), {"activation": "gelu", "bias": "yes"}),
    ((4096, 11008, 4096), {"activation": "silu", "bias": "yes"}),
    ((1024, 4096, 4096), {"activation": "silu", "bias": "yes"}),
    ((4096, 8192, 2048), {"activation": "swiglu"}),
    ((8192, 18944, 3584), {"activation": "swiglu"}),
    ((2048, 4096, 14336), {"residual": "yes"}),
    ((1504, 2048, 1032), {"activation": "gelu", "bias": "yes"}),
    ((208, 8192, 4096), {"activation": "silu", "bias": "yes"}),
    ((600, 4096, 8192), {"activation": "gelu", "bias": "yes"}),
    ((5000, 5000, 1032), {"residual": "yes"}),
)
LAYOUT_HELDOUT: tuple[Sizes, ...] = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (8192, 4096, 14336),
    (4096, 14336, 8192),
    (2048, 2048, 2048),
    (3000, 5000, 2056),
)
LAYOUT_TRAIN: tuple[Sizes, ...] = (
    (1024, 1024, 1024),
    (3072, 3072, 3072),
    (4096, 11008, 4096),
    (4096, 4096, 11008),
    (768, 3072, 8192),
    (1504, 2048, 1032),
    (208, 8192, 4096),
    (600, 4096, 8192),
    (512, 768, 16384),
    (5000, 5000, 2504),
)

LINEAR_SHAPES: tuple[tuple[Sizes, str], ...] = (
    ((8192, 6144, 4096), "no"),  # Llama 3 8B: queries, keys and values
    ((8192, 4096, 4096), "no"),  # its output
    ((8192, 28672, 4096), "no"),  # its gate and up
    ((8192, 4096, 14336), "no"),  # its down
    ((4096, 10240, 8192), "no"),  # Llama 3 70B: queries, keys and values
    ((4096, 8192, 28672), "no"),  # its down
    ((8192, 4608, 3584), "yes"),  # Qwen 2.5 7B: queries, keys and values
    ((8192, 3584, 18944), "no"),  # its down
    ((8192, 2048, 2048), "no"),  # DeepSeek MoE 16B: output
    ((16384, 3072, 768), "yes"),  # GPT-2: up
    ((16384, 768, 3072), "yes"),  # GPT-2: down
    ((4096, 4096, 1024), "yes"),  # BERT large: up
)
"""(tokens, features out, features in) of public models' layers, and whether they have a bias."""


# Attention: (batch, heads, length, head size), options.
CAUSAL = {"mask": "causal"}
ATTENTION_HELDOUT: tuple[tuple[Sizes, dict[str, str]], ...] = (
    ((4, 16, 4096, 128), {}),
    ((4, 16, 4096, 128), CAUSAL),
    ((1, 16, 16384, 128), {}),
    ((1, 16, 16384, 128), CAUSAL),
    ((4, 16, 4096, 64), {}),
    ((4, 16, 4096, 64), CAUSAL),
    ((8, 16, 1024, 128), CAUSAL),
    ((2, 16, 4096, 256), {}),
    ((2, 16, 4096, 256), CAUSAL),
    ((4, 32, 4096, 128), {**CAUSAL, "kv_heads": "8"}),  # Llama 3 8B
    ((1, 32, 16384, 128), {**CAUSAL, "kv_heads": "8", "window": "4095"}),  # Mistral 7B
)
ATTENTION_TRAIN: tuple[tuple[Sizes, dict[str, str]], ...] = (
    ((2, 16, 8192, 128), {}),
    ((2, 16, 8192, 128), CAUSAL),
    ((8, 16, 2048, 128), {}),
    ((8, 16, 2048, 128), CAUSAL),
    ((16, 16, 512, 128), CAUSAL),
    ((2, 32, 2048, 64), {}),
    ((2, 32, 2048, 64), CAUSAL),
    ((1, 24, 8192, 64), CAUSAL),
    ((4, 8, 2048, 256), {}),
    ((4, 8, 2048, 256), CAUSAL),
    ((2, 64, 2048, 128), {**CAUSAL, "kv_heads": "8"}),  # Llama 3 70B
    ((1, 16, 8192, 128), {**CAUSAL, "window": "1023"}),
    ((3, 16, 3000, 128), CAUSAL),
    ((1, 16, 1111, 128), {}),
)
ATTENTION_BWD_HELDOUT: tuple[tuple[Sizes, dict[str, str]], ...] = (
    ((4, 16, 4096, 128), {}),
    ((4, 16, 4096, 128), CAUSAL),
    ((1, 16, 16384, 128), {}),
    ((1, 16, 16384, 128), CAUSAL),
    ((4, 16, 4096, 64), {}),
    ((4, 16, 4096, 64), CAUSAL),
    ((8, 16, 1024, 128), CAUSAL),
)
ATTENTION_BWD_TRAIN: tuple[tuple[Sizes, dict[str, str]], ...] = (
    *((sizes, options) for sizes, options in ATTENTION_TRAIN if sizes[3] < 256),
    ((4, 12, 1024, 64), {}),
    ((1, 8, 16384, 64), CAUSAL),
    ((2, 16, 4096, 128), {"deterministic": "yes"}),
    ((2, 16, 4096, 64), {**CAUSAL, "deterministic": "yes"}),
)


# Packed sequences: heads, head size, lengths of the sequences, options.
def documents(tokens: int, mean: int, seed: int) -> Sizes:
    """Lengths of documents packed into ``tokens``, drawn from an exponential distribution, the last one cut off."""
    chooser, found = random.Random(seed), list[int]()
    while (left := tokens - sum(found)) > 0:
        found.append(min(left, 1 + int(-mean * math.log(1.0 - chooser.random()))))
    return tuple(found)


PACKED_HELDOUT: tuple[tuple[int, int, Sizes, dict[str, str]], ...] = (
    (16, 128, (4096,) * 4, CAUSAL),
    (32, 128, documents(16384, 1500, seed=71), {**CAUSAL, "kv_heads": "8"}),  # Llama 3 8B
    (32, 128, documents(32768, 4000, seed=72), {**CAUSAL, "kv_heads": "8"}),
    (16, 64, documents(32768, 700, seed=73), {}),  # an encoder
    (64, 128, (8192, *(512,) * 16), {**CAUSAL, "kv_heads": "8"}),  # Llama 3 70B, one long request and many short ones
    (16, 256, documents(16384, 2000, seed=74), CAUSAL),
    (32, 128, documents(16384, 3000, seed=75), {**CAUSAL, "kv_heads": "8", "window": "1023"}),
)
PACKED_TRAIN: tuple[tuple[int, int, Sizes, dict[str, str]], ...] = (
    (16, 128, (2048,) * 8, CAUSAL),
    (16, 128, documents(16384, 2000, seed=81), CAUSAL),
    (32, 128, documents(8192, 500, seed=82), {**CAUSAL, "kv_heads": "8"}),
    (24, 64, documents(16384, 1000, seed=83), {}),
    (32, 64, documents(32768, 3000, seed=84), CAUSAL),
    (8, 256, documents(16384, 1200, seed=85), {}),
    (16, 128, (1, 3, 9000, 500, 500, 500), CAUSAL),
)

# Decoding: (sequences, heads, keys, head size), options.
GQA = {"kv_heads": "8"}
DECODE_HELDOUT: tuple[tuple[Sizes, dict[str, str]], ...] = (
    ((16, 32, 8192, 128), GQA),  # Llama 3 8B
    ((64, 32, 4096, 128), GQA),
    ((1, 32, 131072, 128), GQA),
    ((4, 64, 32768, 128), GQA),  # Llama 3 70B
    ((32, 32, 4096, 128), {}),  # Llama 2 7B, heads of their own
    ((128, 64, 2048, 64), GQA),
    ((8, 16, 16384, 256), GQA),
    ((16, 32, 8192, 128), {**GQA, "queries": "4"}),  # four tokens guessed ahead
)
DECODE_TRAIN: tuple[tuple[Sizes, dict[str, str]], ...] = (
    ((8, 32, 16384, 128), GQA),
    ((32, 64, 8192, 128), GQA),
    ((1, 64, 65536, 128), GQA),
    ((2, 32, 10000, 128), GQA),
    ((100, 32, 1500, 128), GQA),
    ((24, 40, 3000, 128), {}),
    ((16, 32, 8192, 64), {}),
    ((4, 8, 20000, 256), {"kv_heads": "4"}),
    ((8, 32, 8192, 128), {**GQA, "queries": "8"}),
)

# torch's attention, forward and backward.
SDPA_SHAPES: tuple[tuple[Sizes, dict[str, str]], ...] = (
    ((4, 16, 4096, 128), CAUSAL),
    ((4, 16, 4096, 128), {}),
    ((4, 32, 4096, 128), {**CAUSAL, "kv_heads": "8"}),
    ((8, 16, 1024, 128), CAUSAL),
    ((4, 16, 4096, 64), CAUSAL),
)


def grouped_rows(table: str, dtype: str, products: tuple[str, ...], split: str) -> Iterator[BenchRow]:
    """Every grouped shape of the split, product by product."""
    balanced, ragged = (
        (BALANCED_HELDOUT, RAGGED_HELDOUT) if split == "heldout" else (BALANCED_TRAIN, RAGGED_TRAIN)
    )  # fmt: skip
    for product in products:
        for groups, each, n, k in balanced:
            sizes = (groups * each, n, k, groups)
            yield make_row(table, "grouped_gemm", sizes, dtype, split, product=product)
        for counts, n, k in ragged:
            listed = ",".join(map(str, counts))
            sizes = (sum(counts), n, k, len(counts))
            yield make_row(table, "grouped_gemm", sizes, dtype, split, product=product, sizes=listed)


def _fused_rows(split: str) -> Iterator[BenchRow]:
    heldout = [
        (shape, {"activation": activation, "bias": "yes"})
        for activation in ("relu", "gelu", "silu")
        for shape in FUSED_SHAPES
    ]
    for shape, options in [*heldout, *FUSED_OTHERS] if split == "heldout" else FUSED_TRAIN:
        yield make_row("gemm_bias_act", "gemm_bias_act", shape, "bfloat16", split, **options)


def _packed_gradient_rows(split: str) -> Iterator[BenchRow]:
    """The forward's packed shapes whose heads the backward pass has."""
    for row in _packed_rows(PACKED_HELDOUT if split == "heldout" else PACKED_TRAIN, split):
        if row.sizes[3] < 256:
            yield make_row("attention_bwd_packed", "attention_bwd", row.sizes, row.dtype, split, **dict(row.options))


def _packed_rows(asked: Iterable[tuple[int, int, Sizes, dict[str, str]]], split: str) -> Iterator[BenchRow]:
    for heads, head_dim, lengths, options in asked:
        sizes = (len(lengths), heads, max(lengths), head_dim)
        listed = ",".join(map(str, lengths))
        yield make_row("attention_packed", "attention_fwd", sizes, "bfloat16", split, **options, sizes=listed)


def rows(table: str, split: str) -> tuple[BenchRow, ...]:
    """The rows of a table's split, in the order in which they are measured. :class:`KeyError` for an unknown table."""
    heldout = split == "heldout"
    match table:
        case "grouped_gemm":
            return tuple(grouped_rows(table, "bfloat16", PRODUCTS, split))
        case "grouped_gemm_fp8":
            return tuple(grouped_rows(table, "float8_e4m3fn", ("forward",), split))
        case "gemm_fp8":
            listed = FP8_HELDOUT if heldout else FP8_TRAIN
            return tuple(make_row(table, "gemm", s, "float8_e4m3fn", split, scales=scales) for s, scales in listed)
        case "gemm_bias_act":
            return tuple(_fused_rows(split))
        case "gemm_layouts":
            shapes = LAYOUT_HELDOUT if heldout else LAYOUT_TRAIN
            return tuple(make_row(table, "gemm", s, "bfloat16", split, layout=o) for o in ("nn", "tn") for s in shapes)
        case "linear":
            listed = LINEAR_SHAPES if heldout else ()
            return tuple(make_row(table, "linear", s, "bfloat16", split, bias=bias) for s, bias in listed)
        case "attention_fwd":
            asked = ATTENTION_HELDOUT if heldout else ATTENTION_TRAIN
            return tuple(make_row(table, "attention_fwd", s, "bfloat16", split, **options) for s, options in asked)
        case "attention_fp8":
            asked = ATTENTION_HELDOUT if heldout else ATTENTION_TRAIN
            return tuple(make_row(table, "attention_fwd", s, "float8_e4m3fn", split, **options) for s, options in asked)
        case "attention_packed":
            return tuple(_packed_rows(PACKED_HELDOUT if heldout else PACKED_TRAIN, split))
        case "attention_bwd_packed":
            return tuple(_packed_gradient_rows(split))
        case "attention_decode":
            decoded = DECODE_HELDOUT if heldout else DECODE_TRAIN
            return tuple(make_row(table, table, s, "bfloat16", split, **options) for s, options in decoded)
        case "sdpa":
            shapes = SDPA_SHAPES if heldout else ()
            return tuple(make_row(table, "sdpa", s, "bfloat16", split, **options) for s, options in shapes)
        case "attention_bwd":
            asked = ATTENTION_BWD_HELDOUT if heldout else ATTENTION_BWD_TRAIN
            return tuple(make_row(table, "attention_bwd", s, "bfloat16", split, **options) for s, options in asked)
    raise KeyError(f"no table {table!r}: {', '.join(TABLES)}")
