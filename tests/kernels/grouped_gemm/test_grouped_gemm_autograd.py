"""Gradients, and the custom operators under torch's own checks, on a CPU: the operators' reference products."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="autograd is torch's")
pytest.importorskip("triton", reason="the operators launch Triton kernels")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from warpplan.kernels.grouped_gemm.autograd import OPERATORS, addressed, grouped_gemm, planned, rounded_rows  # noqa: E402
from warpplan.kernels.grouped_gemm.launch import addressable  # noqa: E402
from warpplan.kernels.grouped_gemm.space import config_of  # noqa: E402
from warpplan.planner.errors import InvalidShape, UnknownName  # noqa: E402

ENDS = torch.tensor([4, 4, 17], dtype=torch.int32)


def operands():
    torch.manual_seed(0)
    return (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((20, 8), (3, 6, 8)))


def test_gradients():
    a, b = operands()
    assert torch.autograd.gradcheck(lambda a, b: grouped_gemm(a, b, ENDS), (a, b))


def test_only_the_gradients_that_are_needed():
    a, b = operands()
    grouped_gemm(a.detach(), b, ENDS).sum().backward()
    assert a.grad is None
    assert b.grad.shape == b.shape


def test_gradients_of_gradients():
    a, b = operands()
    assert torch.autograd.gradgradcheck(lambda a, b: grouped_gemm(a, b, ENDS), (a, b))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([4, 13], "sizes has 2 numbers for 3 groups"),
        ([0, 0, 0], "sizes has zeros alone"),
        ([-1, 2, 3], "sizes='-1,2,3' is unknown"),
        ("balance", "sizes='balance' is unknown: expected balanced, skewed, few"),
        (ENDS, "sizes is a Tensor"),
        (3, "sizes is a int: give a name, or a list"),
    ],
)
def test_sizes_of_other_groups_are_refused(sizes, message):
    a, b = operands()
    with pytest.raises(InvalidShape, match=message):
        grouped_gemm(a, b, ENDS, sizes=sizes)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.float8_e4m3fn], ids=str)
def test_a_cpu_takes_no_other_dtypes(dtype):
    a, b = (t.detach().to(dtype) for t in operands())
    with pytest.raises(UnknownName, match=r"unknown dtype '.*': expected one of bfloat16, float16, float32, float64"):
        grouped_gemm(a, b, ENDS)


def test_meta_tensors_have_the_form_of_the_result():
    a, b = (t.to("meta") for t in operands())
    assert grouped_gemm(a, b, ENDS.to("meta")).shape == (20, 6)
    with pytest.raises(InvalidShape, match="B has 3 groups and ends 2"):
        grouped_gemm(a, b, ENDS[:2].to("meta"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda a, b: (a, b, ENDS[:2]), "B has 3 groups and ends 2"),
        (lambda a, b: (a, b, torch.tensor([4, 13, 17, 17], dtype=torch.int32)), "B has 3 groups and ends 4"),
        (lambda a, b: (a, b, ENDS.long()), "ends is torch.int64"),
        (lambda a, b: (a, b, ENDS[0]), "ends is torch.int32 ()"),
        (lambda a, b: (a, b, ENDS.tolist()), "ends is a list: expected a tensor"),
        (lambda a, b: (a, b, ENDS.to("meta")), "ends is torch.int32 .* on meta: expected torch.int32 .* on cpu"),
        (lambda a, b: (a.float(), b, ENDS), "expected the same"),
        (lambda a, b: (a[:, :2], b, ENDS), "K"),
    ],
)
def test_a_cpu_takes_no_operands_that_a_gpu_refuses(changed, message):
    with pytest.raises(InvalidShape, match=message):
        grouped_gemm(*changed(*operands()))


@pytest.mark.slow
def test_one_graph_under_torch_compile():
    a, b = operands()
    loss = torch.compile(lambda a, b: grouped_gemm(a, b, ENDS).sin().sum(), fullgraph=True, backend="aot_eager")
    loss(a, b).backward()
    compiled = a.grad.clone(), b.grad.clone()
    a.grad = b.grad = None
    grouped_gemm(a, b, ENDS).sin().sum().backward()
    torch.testing.assert_close((a.grad, b.grad), compiled)


def test_a_graph_says_what_is_wrong_with_operands():
    a, b = operands()
    compiled = torch.compile(grouped_gemm, fullgraph=True, backend="eager")
    with pytest.raises(RuntimeError, match="B has 3 groups and ends 2: expected as many"):
        compiled(a, b, ENDS[:2])


@pytest.mark.slow
@pytest.mark.parametrize("product", OPERATORS)
def test_the_operators_are_sound(product):
    """Schema, fake shapes and autograd registration, by torch's own checker."""
    a, b = operands()
    left, right = {"forward": (a, b), "dgrad": (torch.randn(20, 6), b), "wgrad": (torch.randn(20, 6), a)}[product]
    torch.library.opcheck(OPERATORS[product], (left.detach().float(), right.detach().float(), ENDS, "balanced"))


def test_flops_of_all_three_products_are_counted():
    from torch.utils.flop_counter import FlopCounterMode

    a, b = operands()
    with FlopCounterMode(display=False) as counter:
        grouped_gemm(a, b, ENDS).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * a.shape[0] * b.shape[1] * b.shape[2]


def test_operands_that_tma_cannot_address_are_copied():
    kept = torch.zeros(64 * 64 + 1, dtype=torch.bfloat16)
    lying = (kept[:-1].view(64, 64), kept[1:].view(64, 64), kept[:-1].view(64, 64).t(), kept[:64].expand(64, 64))
    assert [addressed(tensor) is tensor for tensor in lying] == [True, False, False, False]
    assert all(addressable(addressed(tensor)) for tensor in lying)


@given(rows=st.integers(1, 2**30))
def test_plans_are_made_for_few_numbers_of_rows(rows):
    rounded = rounded_rows(rows)
    assert rows <= rounded <= rows * 17 / 16
    assert rounded_rows(rounded) == rounded


@pytest.mark.parametrize("product", OPERATORS)
@pytest.mark.parametrize("sizes", ["balanced", "skewed", "few"])
def test_every_product_has_a_plan(monkeypatch, product, sizes):
    monkeypatch.setattr("warpplan.kernels.grouped_gemm.autograd._device_name", lambda index: "NVIDIA H200")
    a, b, dc = (torch.empty(*s, dtype=torch.bfloat16) for s in ((3000, 2048), (8, 1408, 2048), (3000, 1408)))
    left, right = {"forward": (a, b), "dgrad": (dc, b), "wgrad": (dc, a)}[product]
    assert config_of(planned(product, left, right, torch.zeros(8, dtype=torch.int32), sizes)).persistent
