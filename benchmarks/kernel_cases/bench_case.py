"""What every kernel's module of this folder gives the harness, and what they share: random operands, cold sets."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kernel_cases.bench_rows import BenchRow

Launch = Callable[[], object]
COLD_BYTES = 192 * 2**20
"""Three times the L2 of an H200: what the operand sets hold together, so that none is found in L2 again."""
MAX_SETS = 64
ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
OUTPUT_BYTES = 2
"""Of an element of the result, which is bfloat16 for fp8 operands too."""
CHECK_SIZES = (400, 784, 1040)
"""M, N and K of a check: no whole tiles, several tiles of the largest, rows of whole 16 bytes."""


@dataclass(frozen=True)
class Work:
    """What a row asks for at least: ``flops``, and ``moved_bytes`` with each operand and the result moved once."""

    flops: float
    moved_bytes: float


class BenchCase(Protocol):
    """A kernel's module. Operands are whatever ``operands`` makes; only the same module looks into them."""

    def work(self, row: BenchRow) -> Work: ...

    def check_row(self, row: BenchRow) -> BenchRow:
        """A small row for which Triton compiles the same code."""
        ...

    def operands(self, row: BenchRow) -> Any:
        """Fresh random operands on the GPU, and a result that is poisoned with NaN."""
        ...

    def ours(self, row: BenchRow, config: Any, operands: Any) -> Launch:
        """A launch of our kernel with ``config``, a ``TuningConfig``."""
        ...

    def relative_error(self, row: BenchRow, config: Any, operands: Any) -> float:
        """‖C − ref‖ / ‖ref‖ of one launch into a poisoned result; infinite where a NaN is left."""
        ...

    def peers(self, row: BenchRow) -> Mapping[str, Callable[[Any], Launch]]:
        """The others that compute the same, by name; each makes a launch of some operands. The first is the one that
        the search reads again and again to see the card drift."""
        ...

    def uncaptured(self, row: BenchRow) -> Mapping[str, Callable[[Any], Launch]]:
        """Peers that wait for the GPU, so that no CUDA graph can hold them."""
        ...


def case_of(table: str) -> BenchCase:
    """The case behind a table. Imports torch only once it is measured."""
    modules = {
        "grouped_gemm": "grouped_case", "grouped_gemm_fp8": "grouped_case", "gemm_fp8": "dense_case",
        "gemm_layouts": "dense_case", "gemm_bias_act": "fused_case", "linear": "linear_case",
        "attention_fwd": "attention_case", "attention_fp8": "attention_case", "attention_packed": "packed_case",
        "attention_bwd": "attention_bwd_case", "attention_bwd_packed": "attention_bwd_case",
        "attention_decode": "decode_case", "sdpa": "sdpa_case", "gemm_many": "dense_case",
    }  # fmt: skip
    case: BenchCase = importlib.import_module(f"kernel_cases.{modules[table]}").CASE
    return case


def set_count(work: Work) -> int:
    """Operand sets to rotate through, so that a launch finds nothing of its own in L2."""
    return min(MAX_SETS, max(1, -(-COLD_BYTES // int(work.moved_bytes))))


def like(size: int, small: int) -> int:
    """A size near ``small``, a multiple of 16, that is ``size`` modulo 8: rows of 16-bit elements that are no whole 16
    bytes are stored by other code."""
    return small + size % 8


def norm_ratio(result: Any, reference: Any) -> float:
    """‖result − reference‖ / ‖reference‖ in fp32; infinite where the result holds a NaN."""
    error = ((result.float() - reference).norm() / reference.norm()).item()
    return float(error) if error == error else float("inf")


def exact_fp32() -> None:
    """References multiply in fp32, not in TF32."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
