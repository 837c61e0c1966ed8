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
from warpplan.kernels.attention_fwd.fp8.gluon import left_layout  # noqa: E402
from warpplan.kernels.attention_fwd.fp8.tl import compile_transpose  # noqa: E402
from warpplan.kernels.attention_fwd.space import ELEMENT_BYTES, HEAD_DIMS, AttentionConfig  # noqa: E402
from warpplan.kernels.triton_compat import GluonASTSource, gl, gluon  # noqa: E402
from warpplan.planner.errors import UnknownName  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402

WIDE = AttentionConfig(128, 2, 64, 128, 2, pingpong=True)
SPACE = [config for head_dim in HEAD_DIMS for config in structures(head_dim, "bfloat16", H200)]

EIGHT_BIT = [config for head_dim in HEAD_DIMS for config in structures(head_dim, "float8_e4m3fn", H200)]
PACKED = [config for head_dim in HEAD_DIMS for config in structures(head_dim, "bfloat16", H200, packed=True)]


def compiled_clean(config: AttentionConfig, dtype: str, causal: bool, window: bool) -> None:
    report = compile_attention_fwd(config, dtype, causal=causal, window=window)
    assert report.spill_bytes == 0
    assert not report.wgmma_serialized
    assert report.warps == config.total_warps
    assert report.shared_bytes <= config.smem_bytes(ELEMENT_BYTES[dtype])


@pytest.mark.usefixtures("known_compiles")
def test_the_widest_blocks_compile_clean():
    compiled_clean(WIDE, "bfloat16", True, True)
    compiled_clean(replace(WIDE, q_in_registers=True, pingpong=False), "float16", True, False)
    compiled_clean(replace(WIDE, packed=True), "bfloat16", True, True)
    compiled_clean(replace(WIDE, depth=4), "float8_e4m3fn", True, True)


@pytest.mark.usefixtures("known_compiles")
@pytest.mark.slow
@pytest.mark.parametrize("config", SPACE, ids=repr)
def test_the_whole_space_compiles_clean(config):
    """With the mask that has the most to compute."""
    compiled_clean(config, "bfloat16", True, True)


@pytest.mark.usefixtures("known_compiles")
@pytest.mark.slow
@pytest.mark.parametrize("config", PACKED, ids=repr)
def test_the_whole_space_of_packed_sequences_compiles_clean(config):
    compiled_clean(config, "bfloat16", True, True)


@pytest.mark.usefixtures("known_compiles")
@pytest.mark.slow
@pytest.mark.parametrize("config", EIGHT_BIT, ids=repr)
def test_the_whole_space_of_8_bits_compiles_clean(config):
    compiled_clean(config, "float8_e4m3fn", True, True)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_the_pass_that_transposes_v_reads_and_writes_16_bytes_a_thread(head_dim):
    report = compile_transpose(head_dim)
    assert report.spill_bytes == 0
    assert "ld.global.v4.b32" in report.ptx
    assert "st.global.v4.b32" in report.ptx


@pytest.mark.usefixtures("known_compiles")
@pytest.mark.slow
@pytest.mark.parametrize("config", SPACE[::5], ids=repr)
def test_other_masks_and_float16_compile_clean(config):
    compiled_clean(config, "float16", True, False)
    compiled_clean(config, "bfloat16", False, False)


def opcodes(config: AttentionConfig, element: str, folder: Path) -> str:
    """The machine code without a mask."""
    source, options = attention_fwd_source(config, element, False, False)
    cubin = folder / "attention.cubin"
    cubin.write_bytes(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["cubin"])
    disassembler = Path(triton.__path__[0]) / "backends" / "nvidia" / "bin" / "nvdisasm"
    return subprocess.run([disassembler, "-c", cubin], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("lookahead", [True, False])
def test_8_bit_weights_go_from_product_to_product_without_a_shuffle(tmp_path, lookahead):
    """As many lanes are exchanged as in 16 bits, for the maxima and the sums; no bytes are permuted."""
    config = replace(WIDE, pingpong=False, lookahead=lookahead)
    wide, narrow = (opcodes(config, element, tmp_path) for element in ("bf16", "fp8e4nv"))
    assert "QGMMA" in narrow
    assert narrow.count("SHFL") == wide.count("SHFL") > 0
    assert "PRMT" not in narrow


@gluon.constexpr_function
def begins_with_four_columns(layout):
    return layout.reg_bases[:2] == [[0, 1], [0, 2]]


@gluon.jit
def require_adjacent(WIDTH: gl.constexpr, KEYS: gl.constexpr, BITS: gl.constexpr):
    LAYOUT: gl.constexpr = gl.to_linear_layout(left_layout(WIDTH, 4, BITS), [64, KEYS])
    gl.static_assert(begins_with_four_columns(LAYOUT))


@pytest.mark.parametrize(("width", "keys"), [(64, 64), (128, 128), (256, 64)])
def test_a_register_of_an_8_bit_operand_has_four_adjacent_columns(width, keys):
    """Which is what the inline assembly that unpacks the weights takes for granted, and the player with it."""

    def compiled(bits: int) -> object:
        types = dict.fromkeys(("WIDTH", "KEYS", "BITS"), "constexpr")
        source = GluonASTSource(require_adjacent, types, {(0,): width, (1,): keys, (2,): bits})
        return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})

    compiled(8)
    with pytest.raises(triton.CompilationError):
        compiled(16)


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
    listed = opcodes(config, "bf16", tmp_path)
    waits = re.split(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x([01])", listed)
    under = [text.count("MUFU.EX2") for wait, text in zip(waits[1::2], waits[2::2], strict=True) if wait == "1"]
    exponentials = config.rows * config.columns // 128
    assert len(under) == config.consumers
    # A few more rescale the sums.
    assert all(exponentials <= count <= exponentials + 4 for count in under)


@pytest.mark.slow
@pytest.mark.parametrize("config", [replace(WIDE, depth=4), AttentionConfig(64, 3, 64, 128, 4)], ids=repr)
def test_8_bit_weights_are_rounded_while_the_product_before_runs(tmp_path, config):
    """In 16 bits ptxas does that after the wait."""
    waits = re.split(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x([01])", opcodes(config, "fp8e4nv", tmp_path))
    under = [text for wait, text in zip(waits[1::2], waits[2::2], strict=True) if wait == "1"]
    pairs = config.rows * config.columns // 128 // 2
    assert len(under) == config.consumers
    assert all(text.count("F2FP.SATFINITE.E4M3") == pairs for text in under)
    assert all(2 * pairs <= text.count("MUFU.EX2") <= 2 * pairs + 4 for text in under)
