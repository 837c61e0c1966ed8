"""fp8 operands without a GPU: what is valid, what compiles, what is planned, and how scales are read."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="compiling needs triton")

from warpplan.kernels.gemm.candidates import structures
from warpplan.kernels.gemm.compile_gemm import compile_gemm
from warpplan.kernels.gemm.kernel import Gemm
from warpplan.kernels.gemm.space import GemmConfig, config_of, tuning, violations
from warpplan.kernels.operands.scales import operand_scales
from warpplan.planner.errors import InvalidShape
from warpplan.planner.values.device import H200
from warpplan.profiler.embedded import embedded

FP8 = "float8_e4m3fn"
PROFILE = embedded(H200.name)
COOPERATIVE = GemmConfig("cooperative", 128, 256, 128, 4, 4, epilogue_split=2)
PROMOTED = GemmConfig("cooperative", 128, 128, 128, 4, 6, promoted=True)
COMPILED = (
    (COOPERATIVE, "tensor"),
    (COOPERATIVE, "row"),
    (GemmConfig("pingpong", 64, 256, 128, 4, 4, epilogue_split=2, swap=True), "row"),
    (GemmConfig("single", 64, 128, 128, 4, 4, split_k=3), "row"),
    (GemmConfig("pingpong", 64, 96, 128, 4, 6, epilogue_split=3), "row"),
    (GemmConfig("cooperative", 128, 160, 128, 4, 5, epilogue_split=5, swap=True), "row"),
    (PROMOTED, "block"),
    (GemmConfig("pingpong", 64, 128, 128, 4, 6, promoted=True), "block"),
    (GemmConfig("single", 128, 128, 128, 8, 5, split_k=2, promoted=True), "block"),
)


@pytest.mark.slow
@pytest.mark.parametrize(("config", "scales"), COMPILED, ids=str)
def test_compiles_clean(config, scales):
    assert not violations(config, FP8, H200)
    report = compile_gemm(config, FP8, scales=scales)
    assert report.clean
    assert report.shared_bytes <= config.smem_bytes(1)
    assert "wgmma.mma_async.sync.aligned.m64n" in report.ptx
    assert ".e4m3.e4m3" in report.ptx


@pytest.mark.parametrize("promoted", [False, True])
def test_the_space_is_valid_and_survives_the_wire(promoted):
    found = structures(FP8, H200, promoted)
    assert len({config.scheme for config in found}) == 3
    for config in found:
        assert violations(config, FP8, H200) == ()
        assert config.promoted is promoted
        assert config_of(tuning(config)) == config


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (GemmConfig("pipelined", 128, 128, 128, 8, 3), "no fp8 operands"),
        (GemmConfig("single", 64, 128, 64, 4, 4), "block_k 64"),
        (GemmConfig("single", 64, 128, 128, 4, 4, staging="ring"), "staging in the ring"),
        (GemmConfig("cooperative", 128, 256, 128, 4, 3, promoted=True), "one scale covers 128 rows"),
        (GemmConfig("single", 64, 64, 128, 4, 3, swap=True, promoted=True), "swapped operands"),
        (GemmConfig("pingpong", 128, 128, 128, 4, 4, promoted=True), "256 accumulator registers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_fp8_cannot_run_is_refused(config, reason):
    assert any(reason in text for text in violations(config, FP8, H200)), violations(config, FP8, H200)


def test_only_fp8_sums_are_promoted():
    assert any("promoted" in text for text in violations(PROMOTED, "bfloat16", H200))


def test_a_shape_says_how_it_is_scaled():
    gemm = Gemm()
    sizes = {"M": 2048, "N": 4096, "K": 7168}
    plain = gemm.parse_shape(sizes, FP8)
    assert plain == (2048, 4096, 7168)
    blocks = gemm.parse_shape({**sizes, "scales": "block"}, FP8)
    assert blocks == (2048, 4096, 7168, "scales=block")
    best = gemm.rank(blocks, FP8, H200, PROFILE, limit=1)[0]
    assert config_of(best.config).promoted
    assert not config_of(gemm.rank(plain, FP8, H200, PROFILE, limit=1)[0].config).promoted
    # Twice the rate of bfloat16 cannot be had, but more than once it is.
    assert best.prediction.time_us < gemm.rank(plain, "bfloat16", H200, PROFILE, limit=1)[0].prediction.time_us


@pytest.mark.parametrize(
    ("sizes", "dtype", "field"),
    [
        ({"scales": "row"}, "bfloat16", "scales"),
        ({"layout": "nn"}, FP8, "layout"),
        ({"scales": "column"}, FP8, "scales"),
        ({"K": 4104}, FP8, "K"),
    ],
)
def test_what_no_fp8_product_is_has_one_clear_line(sizes, dtype, field):
    with pytest.raises(InvalidShape) as caught:
        Gemm().parse_shape({"M": 64, "N": 128, "K": 4096, **sizes}, dtype)
    assert caught.value.field == field


class TestScales:
    torch = pytest.importorskip("torch", reason="scales are torch's")

    def operands(self, m=130, n=260, k=400):
        a, b = self.torch.zeros(m, k), self.torch.zeros(n, k)
        return a.to(self.torch.float8_e4m3fn), b.to(self.torch.float8_e4m3fn)

    def test_schemes_and_strides(self):
        a, b = self.operands()
        one = self.torch.ones(1)
        assert operand_scales(a, b, one, one.reshape(()))[0] == "tensor"
        for scale_b in (self.torch.ones(1, 260), self.torch.ones(260, 1)):
            scheme, of_a, of_b = operand_scales(a, b, self.torch.ones(130, 1), scale_b)
            assert (scheme, of_a.strides, of_b.strides) == ("row", (1, 0), (1, 0))
        by_blocks = self.torch.ones(4, 130).t()
        scheme, of_a, of_b = operand_scales(a, b, by_blocks, self.torch.ones(3, 4))
        assert (scheme, of_a.strides, of_b.strides) == ("block", (1, 130), (4, 1))

    def test_one_block_is_of_the_scheme_that_is_asked_for(self):
        a, b = self.operands(m=1, n=1, k=16)
        one = self.torch.ones(1, 1)
        assert operand_scales(a, b, one, one)[0] == "tensor"
        assert operand_scales(a, b, one, one, blocks=True)[0] == "block"
        a, b = self.operands(m=7, n=100, k=128)
        by_rows = self.torch.ones(7, 1)
        assert operand_scales(a, b, by_rows, one, blocks=True)[0] == "block"
        assert operand_scales(a, b, by_rows, self.torch.ones(1, 100), blocks=True)[0] == "row"

    def test_16_bit_operands_have_none(self):
        a, b = self.torch.zeros(4, 8).bfloat16(), self.torch.zeros(4, 8).bfloat16()
        assert operand_scales(a, b, None, None)[0] == "none"
        with pytest.raises(InvalidShape, match="no scales"):
            operand_scales(a, b, self.torch.ones(1), None)

    @pytest.mark.parametrize(
        ("scale_a", "scale_b"), [((130, 1), (130, 1)), ((130, 4), (3, 3)), ((130,), (260,)), ((1,), (1, 260))]
    )
    def test_shapes_that_are_no_scheme(self, scale_a, scale_b):
        a, b = self.operands()
        with pytest.raises(InvalidShape, match="expected one element each"):
            operand_scales(a, b, self.torch.ones(scale_a), self.torch.ones(scale_b))
