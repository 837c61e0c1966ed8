"""Launching without a GPU: what is refused, and that a launch specialises exactly as the compile report does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="launching needs torch")
triton = pytest.importorskip("triton", reason="launching needs triton")

sys.path.insert(0, str(Path(__file__).parents[1]))
from hopper_launches import note_launches  # noqa: E402

from warpplan.kernels.gemm import gluon, launch, tl  # noqa: E402
from warpplan.kernels.gemm.compile_gemm import gemm_source  # noqa: E402
from warpplan.kernels.gemm.space import GemmConfig, config_of, tuning  # noqa: E402
from warpplan.kernels.operands import matrices  # noqa: E402
from warpplan.planner.errors import InvalidConfig, InvalidShape, UnknownName  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402
from warpplan.planner.values.tuning import TuningConfig  # noqa: E402

CONFIGS = (
    GemmConfig("single", 128, 128, 64, 8, 3),
    GemmConfig("cooperative", 128, 128, 64, 4, 3, swap=True, split_k=2),
    GemmConfig("cooperative", 192, 128, 64, 4, 4),
    GemmConfig("pingpong", 128, 128, 64, 4, 4, split_k=2),
    GemmConfig("single", 64, 128, 64, 4, 4, stream_k=True),
    GemmConfig("pipelined", 128, 128, 64, 8, 3),
)


@pytest.fixture
def specialised(monkeypatch):
    """Runs ``prepare`` on CPU tensors up to the launch, which is noted, and returns that."""
    launches = note_launches(monkeypatch, (gluon, "gemm_kernel"), (tl, "gemm_kernel"))
    monkeypatch.setattr(launch, "require_operands", lambda a, b: None)
    monkeypatch.setattr(launch, "device_limits", lambda index: H200)
    monkeypatch.setattr(launch, "sm_count", lambda index: 132)
    monkeypatch.setattr(launch, "_split_buffers", lambda *_: (torch.zeros(1), torch.zeros(1, dtype=torch.int32)))
    return lambda *a: (launch.prepare(*a)(), launches[-1])[1]


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.scheme)
@pytest.mark.parametrize(
    ("m", "n", "layout"),
    [(300, 136, "nt"), (300, 133, "nt"), (1, 1, "nt"), (304, 136, "nn"), (304, 136, "tn"), (304, 133, "tt")],
)
def test_a_launch_specialises_as_the_compile_report_does(specialised, monkeypatch, config, m, n, layout):
    a, b, out = lying(m, 256, layout[0] == "n"), lying(n, 256, layout[1] == "t"), lying(m, n, True)
    noted = specialised(a, b, tuning(config), out)
    monkeypatch.undo()
    source, _ = gemm_source(config, "bf16", matrices.tma_stores(out), layout)
    noted.require_like(source)
    assert noted.kernel.metadata.num_warps == config.total_warps
    units = config.tiles((m, n, 256)) * (4 if config.stream_k else config.split_k)
    assert noted.grid == (units,)  # of a stream a CTA for each of few K blocks


class Cuda(torch.Tensor):
    """A CPU tensor that passes for a CUDA one where only its shape and strides are read."""

    is_cuda = True
    t = torch.Tensor.t


def lying(rows, k, by_k, dtype=torch.bfloat16):
    """Zeros [rows, k] with K contiguous, or stored [k, rows]."""
    return torch.zeros(rows, k, dtype=dtype) if by_k else torch.zeros(k, rows, dtype=dtype).t()


def cuda(*shape, dtype=torch.bfloat16, stride=None):
    stride = stride or torch.empty(shape, device="meta").stride()
    return torch.zeros(1 << 16, dtype=dtype).as_strided(shape, stride).as_subclass(Cuda)


def test_operands_on_the_cpu_are_refused():
    a = torch.zeros(4, 8, dtype=torch.bfloat16)
    with pytest.raises(InvalidShape, match=r"A is on cpu: move it to a GPU"):
        launch.gemm(a, a, CONFIGS[0])


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ({"shape": (4, 64)}, {"shape": (4, 72)}, "K, must agree"),
        ({"shape": (4, 64)}, {"shape": (4, 64), "dtype": torch.float16}, "expected the same"),
        ({"shape": (4, 65)}, {"shape": (4, 65)}, "rows that start on 16 bytes"),
        ({"shape": (4, 64), "stride": (1, 4)}, {"shape": (4, 64)}, r"A has strides \(1, 4\) .* stored \[K, M\]"),
        ({"shape": (4, 64)}, {"shape": (4, 64), "stride": (1, 12)}, r"B has .* stored \[K, N\]"),
        ({"shape": (4, 64), "stride": (128, 2)}, {"shape": (4, 64)}, r"one dimension contiguous; .* A\.contiguous\(\)"),
        ({"shape": (4, 64), "stride": (0, 1)}, {"shape": (4, 64)}, r"\[M, K\] with row stride 0, .* A\.contiguous\(\)"),
        ({"shape": (16, 64), "stride": (1, 8)}, {"shape": (4, 64)}, r"\[K, M\] with row stride 8, less than its 16"),
        ({"shape": (4, 64), "stride": (1, 0)}, {"shape": (4, 64)}, r"\[K, M\] with row stride 0"),
        ({"shape": (4, 64), "stride": (1, 1)}, {"shape": (4, 64)}, "rows that start on 16 bytes"),
        (
            {"shape": (4, 68), "stride": (72, 1)},
            {"shape": (8, 68), "stride": (1, 8)},
            "K=68, contiguous in A: .* pad K",
        ),
        ({"shape": (0, 64)}, {"shape": (4, 64)}, "M=0"),
        ({"shape": (1, 4)}, {"shape": (1, 4)}, "K=4, .* pad K to a multiple of 8"),
        ({"shape": (4, 4, 64)}, {"shape": (4, 64)}, "3 dimensions"),
    ],
)
def test_operands_that_tma_cannot_address_are_refused_in_one_line(a, b, message):
    with pytest.raises(InvalidShape, match=message) as caught:
        matrices.require_operands(cuda(*a.pop("shape"), **a), cuda(*b.pop("shape"), **b))
    assert "\n" not in str(caught.value)


def test_unknown_dtype():
    with pytest.raises(UnknownName, match="float32"):
        matrices.require_operands(cuda(4, 64, dtype=torch.float32), cuda(4, 64, dtype=torch.float32))


@pytest.mark.parametrize(
    ("shape", "stride", "by_k"),
    [
        ((4, 64), (64, 1), True),
        ((4, 64), (1, 8), False),
        ((4, 64), (72, 1), True),
        ((1, 64), (64, 1), True),
        ((1, 64), (5, 1), True),
        ((1, 64), (1, 8), False),
        ((1, 64), (1, 1), True),
        ((8, 1), (1, 1), False),
        ((9, 1), (1, 77), False),
        ((8, 1), (8, 1), True),
        ((1, 1), (1, 1), False),
        ((1, 8), (8, 1), True),
    ],
)
def test_how_an_operand_lies_is_read_off_its_strides(shape, stride, by_k):
    """Strides along a dimension of size 1 say nothing: the order that TMA can address, with K whole 16 bytes, is it."""
    operand = cuda(*shape, stride=stride)
    assert matrices.lies_by_k(operand) == by_k
    layout = ("n" if by_k else "t") + ("t" if by_k else "n")
    assert matrices.layout_of(operand, operand) == layout


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (cuda(5, 64), cuda(7, 64)),
        (cuda(5, 64), cuda(7, 64, stride=(1, 8))),
        (cuda(5, 77, stride=(1, 8)), cuda(7, 77, stride=(1, 16))),
        (cuda(5, 64, stride=(1, 8)), cuda(7, 64, stride=(72, 1))),
        (cuda(5, 1), cuda(1, 1)),
        (cuda(1, 8, stride=(3, 1)), cuda(2, 8)),
    ],
)
def test_operands_that_tma_can_address_pass(a, b):
    """K need be no multiple of 16 bytes where no operand lies with K contiguous."""
    matrices.require_operands(a, b)


def test_outputs_that_do_not_fit_are_refused():
    a, b = torch.zeros(4, 64, dtype=torch.bfloat16), torch.zeros(6, 64, dtype=torch.bfloat16)
    with pytest.raises(InvalidShape, match=r"expected torch\.bfloat16"):
        matrices.require_output(a, b, torch.zeros(6, 4, dtype=torch.bfloat16))
    with pytest.raises(InvalidShape, match="column stride"):
        matrices.require_output(a, b, torch.zeros(6, 4, dtype=torch.bfloat16).T)
    with pytest.raises(InvalidShape, match="overlap"):
        matrices.require_output(a, b, torch.zeros(64, dtype=torch.bfloat16).as_strided((4, 6), (2, 1)))


def test_rows_aligned():
    t = torch.zeros(16, 64, dtype=torch.bfloat16)
    assert matrices.rows_aligned(t)
    assert matrices.rows_aligned(t[:, :33])
    assert matrices.rows_aligned(t[3:4, :33])
    assert not matrices.rows_aligned(t[:, 1:])
    assert not matrices.rows_aligned(torch.zeros(16, 33, dtype=torch.bfloat16))
    assert not matrices.rows_aligned(t.T)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.scheme)
def test_a_tuning_configuration_gives_its_gemm_configuration_back(config):
    assert config_of(tuning(config)) == config


def test_a_tuning_configuration_without_its_fields_is_refused():
    with pytest.raises(InvalidConfig, match="SCHEME"):
        config_of(TuningConfig.of({"BLOCK_M": 64}, num_warps=4, num_stages=1))


def test_the_grid_is_what_is_resident_or_all_units():
    config = GemmConfig("single", 64, 64, 64, 4, 2, split_k=2, ctas_per_sm=2)
    assert launch.grid_size(config, (6400, 6400, 640), 132) == 264
    assert launch.grid_size(config, (64, 65, 640), 132) == 4
    stream = GemmConfig("single", 64, 64, 64, 4, 2, stream_k=True, ctas_per_sm=2)
    assert launch.grid_size(stream, (6400, 6400, 640), 132) == launch.grid_size(stream, (64, 1920, 640), 132) == 264
    assert launch.grid_size(stream, (64, 65, 640), 132) == 20
    tail = GemmConfig("cooperative", 192, 128, 64, 4, 4, split_k=3, split_tail=True, persistent=False)
    assert launch.grid_size(tail, (192 * 16, 128 * 12, 640), 132) == 132 + 3 * 60


def test_tma_stores_only_rows_that_end_on_16_bytes():
    t = torch.zeros(16, 64, dtype=torch.bfloat16)
    assert matrices.tma_stores(t[:, :40])
    assert not matrices.tma_stores(t[:, :33])
    assert not matrices.tma_stores(t[:, 1:])
