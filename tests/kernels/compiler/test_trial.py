"""What a trial compares, and the copies that it compares on; on the CPU, where torch is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("triton", reason="needs triton")

from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

from warpplan.kernels.compiler.exceptions import CannotPlan  # noqa: E402
from warpplan.kernels.compiler.launching import arguments as arguments_module  # noqa: E402
from warpplan.kernels.compiler.launching.arguments import Copies, Storages, describe  # noqa: E402
from warpplan.kernels.compiler.launching.trial import Bench, compare, diverse  # noqa: E402
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy  # noqa: E402


def copies(described: dict[str, Any]) -> Copies:
    return Copies(json.loads(json.dumps(described)), device="cpu")


def test_arguments_are_made_again(tmp_path: Path) -> None:
    base = torch.randn(64, 32).bfloat16()
    offsets = torch.tensor([0, 5, 9], dtype=torch.int32)
    view = base[8:40, ::2]
    values = {
        "a": TensorDescriptor.from_tensor(base, [16, 32]),
        "view": view,
        "offsets": offsets,
        "n": 3,
        "scale": 0.5,
        "none": None,
        "pair": (offsets, 7),
        "BLOCK": object(),
    }
    first, second = (copies(describe(values, {"BLOCK"}, Storages(tmp_path))) for _ in range(2))
    a, made, sent, *rest, pair, block = first.values
    assert (rest, block) == ([3, 0.5, None], None)
    assert (a.shape, a.strides, a.block_shape, a.padding) == ([64, 32], [32, 1], [16, 32], "zero")
    assert (made.shape, made.stride(), made.dtype) == (view.shape, view.stride(), view.dtype)
    assert torch.equal(made, a.base[8:40, ::2]), "one memory"
    made.fill_(0)
    assert not a.base[8:40, ::2].any()
    assert torch.equal(sent, offsets)
    assert pair[0].data_ptr() == sent.data_ptr()
    assert pair[1] == 7
    assert torch.equal(second.values[2], offsets)
    assert second.values[1].any(), "memory of its own"
    assert a.base.data_ptr() % 16 == base.data_ptr() % 16
    assert not torch.equal(a.base, base), "drawn anew"


@pytest.mark.parametrize("dtype", ["float16", "float64", "float8_e4m3fn", "int8", "bool", "int64"])
def test_same_values_for_both_kernels(tmp_path: Path, dtype: str) -> None:
    tensor = torch.ones(1000).to(getattr(torch, dtype))
    described = describe({"x": tensor}, set(), Storages(tmp_path))
    a, b = copies(described), copies(described)
    compare(a, b, "first")
    assert a.values[0].dtype == tensor.dtype
    if not tensor.is_floating_point():
        assert torch.equal(a.values[0], tensor)


def test_what_cannot_be_copied_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments_module, "MOST_INTEGER_BYTES", 64)
    for value, said in (
        (object(), "'x' of type object"),
        (torch.zeros(3, dtype=torch.complex64), "complex64"),
        (torch.zeros(100, dtype=torch.int32), "400 bytes of torch.int32 are too many"),
        (torch.eye(3).to_sparse(), "type Tensor"),
    ):
        with pytest.raises(CannotPlan, match=said):
            describe({"x": value}, set(), Storages(tmp_path))
    described = describe({"x": torch.zeros(100, dtype=torch.int8)}, set(), Storages(tmp_path))
    assert copies(described).values[0].any(), "8-bit data in bulk is data"


def pair(tmp_path: Path, *tensors: Any) -> tuple[Copies, Copies]:
    described = describe({f"x{i}": t for i, t in enumerate(tensors)}, set(), Storages(tmp_path))
    return copies(described), copies(described)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["bfloat16", "float16", "float32"]), st.integers(0, 2**31), st.floats(1e-3, 1e3))
def test_roundings_pass_and_garbage_does_not(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, seed: int, scale: float
) -> None:
    right, got = pair(tmp_path_factory.mktemp("x"), torch.zeros(64, 64, dtype=getattr(torch, dtype)))
    result = torch.randn(64, 64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
    eps = torch.finfo(getattr(torch, dtype)).eps
    right.values[0].copy_(result)
    got.values[0].copy_(result * (1 + eps))
    compare(right, got, "first")
    got.values[0][17, 3] += 0.25 * scale
    with pytest.raises(CannotPlan, match="1 of 4096 numbers differ"):
        compare(right, got, "first")


def test_a_tile_never_written_is_seen(tmp_path: Path) -> None:
    right, got = pair(tmp_path, torch.zeros(64, 64))
    result = torch.randn(64, 64)
    right.values[0].copy_(result)
    got.values[0][:48].copy_(result[:48])
    with pytest.raises(CannotPlan, match="of 4096 numbers differ"):
        compare(right, got, "second")


def test_writes_out_of_bounds_are_seen(tmp_path: Path) -> None:
    right, got = pair(tmp_path, torch.zeros(8))
    beyond = got.values[0].as_strided((1,), (1,), got.values[0].storage_offset() + 8)
    beyond.fill_(1.0)
    with pytest.raises(CannotPlan, match="out of bounds"):
        compare(right, got, "first")


def test_other_integers_are_seen(tmp_path: Path) -> None:
    right, got = pair(tmp_path, torch.zeros(8, dtype=torch.int64))
    got.values[0][3] = 1
    with pytest.raises(CannotPlan, match="other integers"):
        compare(right, got, "first")


def test_results_that_show_nothing_prove_nothing(tmp_path: Path) -> None:
    right, got = pair(tmp_path, torch.zeros(8))
    right.values[0].fill_(float("nan"))
    got.values[0].fill_(float("nan"))
    with pytest.raises(CannotPlan, match="cannot be compared"):
        compare(right, got, "first")


def test_the_same_infinities_are_right(tmp_path: Path) -> None:
    right, got = pair(tmp_path, torch.zeros(8))
    for side in (right, got):
        side.values[0].copy_(torch.arange(8.0))
        side.values[0][0] = -float("inf")
    got.values[0][5] += 1e-6
    compare(right, got, "first")
    got.values[0][0] = float("inf")
    with pytest.raises(CannotPlan, match="1 of 8"):
        compare(right, got, "first")


def test_unlike_schemes_come_first() -> None:
    ranked = [
        HopperStrategy(1, (6,)),
        HopperStrategy(1, (5,)),
        HopperStrategy(2, (4,)),
        HopperStrategy(1, (4,)),
        HopperStrategy(2, (3,)),
        HopperStrategy(1, (3,), 8),
    ]
    assert [ranked.index(scheme) for scheme in diverse(ranked)] == [0, 2, 5, 1, 4, 3]


class BenchOnCpu(Bench):
    """Runs "kernels" that are Python functions of (x, y)."""

    def __init__(self, tmp_path: Path, unplanned: Any) -> None:
        tensors = {"x": torch.zeros(64, 64), "y": torch.zeros(64, 64), "count": torch.zeros(4, dtype=torch.int32)}
        self._arguments = describe(tensors, set(), Storages(tmp_path))
        self._unplanned = unplanned

    def _copies(self, seed: int = 0) -> Copies:
        return copies(self._arguments)

    def _launch(self, kernel: Any, copies: Copies, *, wait: bool = True) -> None:
        kernel(*copies.values)


def accumulate(x: Any, y: Any, count: Any) -> None:
    y += 2 * x
    count += 1


def test_an_equal_kernel_passes_twice(tmp_path: Path) -> None:
    BenchOnCpu(tmp_path, accumulate).check(lambda x, y, count: (y.add_(x + x), count.add_(1)))


@pytest.mark.parametrize(
    ("planned", "said"),
    [
        (lambda x, y, count: None, "first planned launch computes"),
        (lambda x, y, count: (y.add_(2 * x), count.add_(2)), "first planned launch computes other integers"),
        (lambda x, y, count: (y.add_(2 * x * (count[0] == 0)), count.add_(1)), "second planned launch computes"),
        (lambda x, y, count: (y[:63].add_(2 * x[:63]), count.add_(1)), "of 4096 numbers"),
        (lambda x, y, count: (y.add_(2 * x), x.add_(1), count.add_(1)), "4096 of 4096 numbers"),
    ],
    ids=["nothing", "counts twice", "stale", "last row left out", "writes its input"],
)
def test_wrong_kernels_are_seen(tmp_path: Path, planned: Any, said: str) -> None:
    with pytest.raises(CannotPlan, match=said):
        BenchOnCpu(tmp_path, accumulate).check(planned)


def test_integers_are_those_of_the_launch_although_they_are_written_later(tmp_path: Path) -> None:
    offsets, later = torch.tensor([0, 5, 9], dtype=torch.int32), []
    described = describe({"offsets": offsets}, set(), Storages(tmp_path, later))
    offsets.fill_(7)  # what the launch, or the next one, does to them
    for write in later:
        write()
    (made,) = copies(described).values
    assert made.tolist() == [0, 5, 9]
