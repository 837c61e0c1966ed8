"""Launching without a GPU: what is refused, and that a launch specialises exactly as the compile report does."""

from __future__ import annotations

import types

import pytest

torch = pytest.importorskip("torch", reason="launching needs torch")
triton = pytest.importorskip("triton", reason="launching needs triton")

from warpplan.kernels import compile as compiling  # noqa: E402
from warpplan.kernels.gemm import gluon, launch, tl  # noqa: E402
from warpplan.kernels.gemm.compile_gemm import gemm_source  # noqa: E402
from warpplan.kernels.gemm.space import GemmConfig, config_of, tuning  # noqa: E402
from warpplan.planner.errors import InvalidConfig, InvalidShape, UnknownName  # noqa: E402
from warpplan.planner.values.tuning import TuningConfig  # noqa: E402

CONFIGS = (
    GemmConfig("single", 128, 128, 64, 8, 3),
    GemmConfig("cooperative", 128, 128, 64, 4, 3, swap=True, split_k=2),
    GemmConfig("cooperative", 192, 128, 64, 4, 4),
    GemmConfig("pingpong", 128, 128, 64, 4, 4, split_k=2),
    GemmConfig("pipelined", 128, 128, 64, 8, 3),
)


class _Hopper:
    """As much of a CUDA driver as specialising a launch needs."""

    def get_current_target(self):
        return compiling.GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


@pytest.fixture
def specialised(monkeypatch):
    """Runs ``prepare`` on CPU tensors up to the launch, which only compiles; returns (compiled kernel, grid)."""
    from triton.runtime import driver

    seen = []

    class Kernel:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            return lambda *a, **k: seen.append((self.kernel.warmup(*a, grid=grid, **k), grid))

    monkeypatch.setattr(driver, "_active", _Hopper())
    for module in (gluon, tl):
        monkeypatch.setattr(module, "gemm_kernel", Kernel(module.gemm_kernel))
    monkeypatch.setattr(launch, "_require_operands", lambda a, b: None)
    monkeypatch.setattr(launch, "_device", lambda index: launch.H200)
    monkeypatch.setattr(launch, "_sm_count", lambda index: 132)
    monkeypatch.setattr(launch, "_split_buffers", lambda *_: (torch.zeros(1), torch.zeros(1, dtype=torch.int32)))
    return lambda *a: (launch.prepare(*a)(), seen[-1])[1]


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.scheme)
@pytest.mark.parametrize(("m", "n"), [(300, 136), (300, 133), (1, 1)])
def test_a_launch_specialises_as_the_compile_report_does(specialised, monkeypatch, config, m, n):
    a, b, out = (torch.zeros(*shape, dtype=torch.bfloat16) for shape in ((m, 256), (n, 256), (m, n)))
    kernel, grid = specialised(a, b, tuning(config), out)
    monkeypatch.undo()
    source, _ = gemm_source(config, "bf16", launch.tma_stores(out))
    assert kernel.src.signature == source.signature
    assert kernel.src.constants == source.constants
    assert {key: value for key, value in kernel.src.attrs.items() if value} == source.attrs
    assert kernel.metadata.num_warps == config.total_warps
    rows, columns, _ = config.computed((m, n, 256))
    assert grid == (-(-rows // config.block_m) * -(-columns // config.block_n) * config.split_k,)


@pytest.fixture
def cuda(monkeypatch):
    """CPU tensors pass for CUDA ones where only their shapes are read."""
    return lambda *shape, dtype=torch.bfloat16, stride=None: types.SimpleNamespace(
        dim=lambda: len(shape), shape=shape, dtype=dtype, is_cuda=True, device="cuda:0", data_ptr=lambda: 4096,
        element_size=lambda: 2,
        stride=lambda i=slice(None): (stride or (shape[-1], 1))[i],
    )  # fmt: skip


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
        ({"shape": (4, 64), "stride": (1, 4)}, {"shape": (4, 64)}, "adjacent columns"),
        ({"shape": (4, 64), "stride": (0, 1)}, {"shape": (4, 64)}, "contiguous"),
        ({"shape": (0, 64)}, {"shape": (4, 64)}, "M=0"),
        ({"shape": (1, 4)}, {"shape": (1, 4)}, "K=4: .* pad K to a multiple of 8"),
        ({"shape": (4, 4, 64)}, {"shape": (4, 64)}, "3 dimensions"),
    ],
)
def test_operands_that_tma_cannot_address_are_refused_in_one_line(cuda, a, b, message):
    make = lambda shape, **options: cuda(*shape, **options)  # noqa: E731
    with pytest.raises(InvalidShape, match=message) as caught:
        launch._require_operands(make(**a), make(**b))
    assert "\n" not in str(caught.value)


def test_unknown_dtype(cuda):
    with pytest.raises(UnknownName, match="float32"):
        launch._require_operands(cuda(4, 64, dtype=torch.float32), cuda(4, 64, dtype=torch.float32))


def test_outputs_that_do_not_fit_are_refused():
    a, b = torch.zeros(4, 64, dtype=torch.bfloat16), torch.zeros(6, 64, dtype=torch.bfloat16)
    with pytest.raises(InvalidShape, match=r"expected torch\.bfloat16"):
        launch._require_output(a, b, torch.zeros(6, 4, dtype=torch.bfloat16))
    with pytest.raises(InvalidShape, match="column stride"):
        launch._require_output(a, b, torch.zeros(6, 4, dtype=torch.bfloat16).T)
    with pytest.raises(InvalidShape, match="overlap"):
        launch._require_output(a, b, torch.zeros(64, dtype=torch.bfloat16).as_strided((4, 6), (2, 1)))


def test_rows_aligned():
    t = torch.zeros(16, 64, dtype=torch.bfloat16)
    assert launch.rows_aligned(t)
    assert launch.rows_aligned(t[:, :33])
    assert launch.rows_aligned(t[3:4, :33])
    assert not launch.rows_aligned(t[:, 1:])
    assert not launch.rows_aligned(torch.zeros(16, 33, dtype=torch.bfloat16))
    assert not launch.rows_aligned(t.T)


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
    tail = GemmConfig("cooperative", 192, 128, 64, 4, 4, split_k=3, split_tail=True, persistent=False)
    assert launch.grid_size(tail, (192 * 16, 128 * 12, 640), 132) == 132 + 3 * 60


def test_tma_stores_only_rows_that_end_on_16_bytes():
    t = torch.zeros(16, 64, dtype=torch.bfloat16)
    assert launch.tma_stores(t[:, :40])
    assert not launch.tma_stores(t[:, :33])
    assert not launch.tma_stores(t[:, 1:])
