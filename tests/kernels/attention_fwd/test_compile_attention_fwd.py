"""Compiling without a GPU: no spills, no serialised multiplies, no more shared memory than the space allows for."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="needs triton")

from triton.backends.compiler import GPUTarget  # noqa: E402

from warpplan.kernels.attention_fwd.candidates import structures  # noqa: E402
from warpplan.kernels.attention_fwd.compile_attention_fwd import attention_fwd_source, compile_attention_fwd  # noqa: E402
from warpplan.kernels.attention_fwd.space import HEAD_DIMS, AttentionConfig  # noqa: E402
from warpplan.planner.errors import UnknownName  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402

WIDE = AttentionConfig(128, 2, 64, 128, 2, pingpong=True)
SPACE = [config for head_dim in HEAD_DIMS for config in structures(head_dim, "bfloat16", H200)]

PACKED = [config for head_dim in HEAD_DIMS for config in structures(head_dim, "bfloat16", H200, packed=True)]


def compiled_clean(config: AttentionConfig, dtype: str, causal: bool, window: bool) -> None:
    report = compile_attention_fwd(config, dtype, causal=causal, window=window)
    assert report.spill_bytes == 0
    assert not report.wgmma_serialized
    assert report.warps == config.total_warps
    assert report.shared_bytes <= config.smem_bytes(2)


def test_the_widest_blocks_compile_clean():
    compiled_clean(WIDE, "bfloat16", True, True)
    compiled_clean(replace(WIDE, q_in_registers=True, pingpong=False), "float16", True, False)
    compiled_clean(replace(WIDE, packed=True), "bfloat16", True, True)


@pytest.mark.slow
@pytest.mark.parametrize("config", SPACE, ids=repr)
def test_the_whole_space_compiles_clean(config):
    """With the mask that has the most to compute."""
    compiled_clean(config, "bfloat16", True, True)


@pytest.mark.slow
@pytest.mark.parametrize("config", PACKED, ids=repr)
def test_the_whole_space_of_packed_sequences_compiles_clean(config):
    compiled_clean(config, "bfloat16", True, True)


@pytest.mark.slow
@pytest.mark.parametrize("config", SPACE[::5], ids=repr)
def test_other_masks_and_float16_compile_clean(config):
    compiled_clean(config, "float16", True, False)
    compiled_clean(config, "bfloat16", False, False)


def test_unknown_names():
    with pytest.raises(UnknownName, match="float64"):
        compile_attention_fwd(WIDE, "float64")


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        WIDE,
        replace(WIDE, pingpong=False, q_in_registers=True),
        AttentionConfig(64, 3, 64, 128, 4),
        AttentionConfig(64, 2, 128, 64, 4),
        AttentionConfig(256, 2, 64, 64, 2, staging="q"),
    ],
    ids=repr,
)
def test_the_softmax_runs_while_the_product_before_does(tmp_path, config):
    """In the machine code of a lookahead's loop, all exponentials stand between the wait for the scores and the wait
    for P · V."""
    source, options = attention_fwd_source(config, "bf16", False, False)
    cubin = tmp_path / "attention.cubin"
    cubin.write_bytes(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["cubin"])
    disassembler = Path(triton.__path__[0]) / "backends" / "nvidia" / "bin" / "nvdisasm"
    listed = subprocess.run([disassembler, "-c", cubin], capture_output=True, text=True, check=True).stdout
    waits = re.split(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x([01])", listed)
    under = [text.count("MUFU.EX2") for wait, text in zip(waits[1::2], waits[2::2], strict=True) if wait == "1"]
    exponentials = config.rows * config.columns // 128
    assert len(under) == config.consumers
    # A few more rescale the sums.
    assert all(exponentials <= count <= exponentials + 4 for count in under)
