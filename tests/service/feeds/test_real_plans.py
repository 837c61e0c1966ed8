"""What the planner offers to an ordinary `tl` consumer: for real shapes it is hit, compiles for sm_90 and fits."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from warpplan.planner.values.device import H200
from warpplan.profiler.embedded import embedded
from warpplan.service.feeds import ExportRow, export_triton, verify_triton
from warpplan.service.workflow.bundled_shapes import LAYERS, TOKENS

pytest.importorskip("triton", reason="needs triton (no GPU) to compile and to compute its cache keys")

CONSUMER = Path(__file__).with_name("consumer_kernel.py")


def compile_matmul(settings: dict[str, int], num_warps: int, num_stages: int) -> Any:
    """The consumer for sm_90, specialised as Triton does for aligned bfloat16 rows."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    spec = importlib.util.spec_from_file_location("job_kernels", CONSUMER)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = module.matmul.fn
    constants = {**settings, "stride_ak": 1, "stride_bn": 1, "stride_cn": 1}
    signature = {name: "*bf16" if name.endswith("_ptr") else "i32" for name in function.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(function.arg_names) if name not in constants}
    source = ASTSource(function, signature | dict.fromkeys(constants, "constexpr"), constants, aligned)
    return triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"num_warps": num_warps, "num_stages": num_stages}
    )


@pytest.mark.slow
def test_bundled_plans_are_hit_compile_and_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = embedded(H200.name)
    shapes = sorted({(tokens, layer.n, layer.k) for layer in LAYERS for tokens in TOKENS})
    rows = [ExportRow(shape, "bfloat16", H200.name, profile) for shape in shapes]
    report = export_triton(f"{CONSUMER}:matmul", rows, tmp_path / "cache")
    assert verify_triton(f"{CONSUMER}:matmul", rows, tmp_path / "cache").all_hit
    # Only the tile order differs between many of them, and it changes neither registers nor memory.
    distinct = {
        (tuple(sorted({**dict(e.config.kwargs), "GROUP_SIZE_M": 8}.items())), e.config.num_warps, e.config.num_stages)
        for e in report.entries
    }
    assert len(distinct) > 1, "one configuration for a single token and for 8192 of them?"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "compiled"))
    for kwargs, num_warps, num_stages in distinct:
        compiled = compile_matmul(dict(kwargs), num_warps, num_stages)  # type: ignore[arg-type]
        assert compiled.metadata.shared <= H200.smem_bytes_per_block, kwargs
        assert "wgmma" in compiled.asm["ptx"], kwargs
