"""Attention as models call it, on a GPU, against torch's own in float32: results, gradients, whole under compile."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
pytest.importorskip("triton", reason="needs triton")

from torch.nn.functional import scaled_dot_product_attention as torch_attention  # noqa: E402

from warpplan.kernels import attention  # noqa: E402
from warpplan.kernels.attention_layer import autograd  # noqa: E402
from warpplan.kernels.attention_layer.autograd import why_torch, why_torch_backward  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]
CASES = (
    # batch, heads, kv_heads, queries, keys, head size, causal
    (2, 8, 8, 500, 500, 128, True),
    (2, 8, 2, 500, 500, 128, False),
    (1, 4, 4, 300, 900, 64, True),
    (1, 4, 4, 300, 900, 64, False),
    (2, 4, 1, 257, 257, 256, True),
    (3, 32, 8, 1, 5000, 128, False),
    (1, 8, 8, 1, 70, 64, True),
    (2, 16, 1, 1000, 1000, 64, True),
    (1, 8, 2, 33, 2000, 128, False),
)
PLANNED = (CASES[0], CASES[1], CASES[2], CASES[8])
"""Those whose gradients are planned, of both head sizes."""


def operands(case, dtype=torch.bfloat16):
    batch, heads, kv_heads, queries, keys, d, _ = case
    forms = ((batch, queries, heads, d), (batch, keys, kv_heads, d), (batch, keys, kv_heads, d))
    return [torch.randn(form, device="cuda").to(dtype).transpose(1, 2).requires_grad_() for form in forms]


def with_gradients(function, inputs, **options):
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    out = function(*inputs, **options)
    torch.manual_seed(0)
    out.backward(torch.randn(out.shape, device="cuda").to(out.dtype))
    return [out.detach(), *(t.grad for t in inputs)]


def relative_error(found, expected):
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def deviation(found, expected):
    """The error of the root of the mean square, relative where that is not tiny: of a row that sees one key alone, the
    gradients of query and key are zero."""
    right = expected.double()
    return float((found.double() - right).square().mean().sqrt() / (right.square().mean().sqrt() + 1e-3))


@pytest.fixture
def planned_backward(monkeypatch):
    """Yields the list of planned backward calls: (query's form, deterministic)."""
    made, attend_backward = [], autograd.attend_backward

    def noted(do, query, *others):
        made.append((tuple(query.shape), torch.are_deterministic_algorithms_enabled()))
        return attend_backward(do, query, *others)

    monkeypatch.setattr(autograd, "attend_backward", noted)
    return made


def options_of(case):
    return {"is_causal": case[6], "enable_gqa": case[1] != case[2]}


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_results_and_gradients(case, dtype, planned_backward):
    inputs, options = operands(case, dtype), options_of(case)
    assert why_torch(*inputs, **options) == ""
    assert why_torch_backward(*inputs, **options) == ("heads of 256" if case[5] == 256 else "")
    found = with_gradients(attention, inputs, **options)
    expected = with_gradients(torch_attention, [t.float() for t in inputs], **options)
    for mine, right in zip(found, expected, strict=True):
        assert deviation(mine, right) < 2e-2
    assert found[0].stride() == torch.empty_like(inputs[0]).stride()
    assert [t.stride() for t in found[1:]] == [torch.empty_like(t).stride() for t in inputs]
    assert len(planned_backward) == (case[5] != 256)
    assert torch.equal(attention(*inputs, **options), found[0])


@pytest.mark.parametrize("case", PLANNED, ids=str)
def test_the_same_bits_where_they_are_asked_for(case, planned_backward):
    inputs, options = operands(case), options_of(case)
    torch.use_deterministic_algorithms(True)
    try:
        found, again = (with_gradients(attention, inputs, **options) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert [deterministic for _, deterministic in planned_backward] == [True, True]
    for first, second in zip(found, again, strict=True):
        assert torch.equal(first, second)
    expected = with_gradients(torch_attention, [t.float() for t in inputs], **options)
    for mine, right in zip(found, expected, strict=True):
        assert deviation(mine, right) < 2e-2


@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True)])
def test_one_gradient_alone(needs, planned_backward):
    inputs, options = operands(CASES[1]), options_of(CASES[1])
    expected = with_gradients(torch_attention, [t.float() for t in inputs], **options)
    inputs = [t.detach().requires_grad_(need) for t, need in zip(inputs, needs, strict=True)]
    out = attention(*inputs, **options)
    torch.manual_seed(0)
    out.backward(torch.randn(out.shape, device="cuda").to(out.dtype))
    assert [t.grad is not None for t in inputs] == list(needs)
    for tensor, right in zip(inputs, expected[1:], strict=True):
        assert tensor.grad is None or deviation(tensor.grad, right) < 2e-2
    assert len(planned_backward) == 1


def test_the_host_never_waits():
    inputs, options = operands(CASES[0]), options_of(CASES[0])
    grad = torch.randn_like(inputs[0])
    attention(*inputs, **options).backward(grad)
    torch.cuda.set_sync_debug_mode("error")
    try:
        attention(*inputs, **options).backward(grad)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("case", [*PLANNED, CASES[4]], ids=str)
def test_compiled_whole(case):
    compiled = torch.compile(attention, fullgraph=True)
    inputs, options = operands(case), options_of(case)
    found, expected = (with_gradients(f, inputs, **options) for f in (compiled, attention))
    for mine, eager in zip(found, expected, strict=True):
        assert relative_error(mine, eager) < 1e-2


def test_an_operand_that_tma_cannot_read_is_copied():
    wide = torch.randn(2, 4, 300, 65, device="cuda").bfloat16()
    q, k, v = (wide[..., 1:] for _ in range(3))
    assert relative_error(attention(q, k, v), torch_attention(q.float(), k.float(), v.float())) < 1e-2


def aligned_torch_attention(*operands):
    """torch's own kernels refuse what is not aligned."""
    return torch_attention(*(t.contiguous() for t in operands))


def test_gradients_of_what_tma_cannot_read(planned_backward):
    """Operands off 16 bytes, keys that all heads share, a sum's gradient, which is one element for all."""
    wide, shared = (torch.randn(form, device="cuda").bfloat16() for form in ((2, 4, 300, 65), (2, 1, 300, 64)))
    weights = torch.linspace(-1, 1, 64, device="cuda").bfloat16()

    def gradients(function, dtype, factor):
        made = [t.detach().to(dtype).requires_grad_() for t in (wide, shared)]
        key = made[1].expand(2, 4, 300, 64)
        return torch.autograd.grad((function(made[0][..., 1:], key, key) * factor.to(dtype)).sum(), made)

    # One weight for all: the sum of each row's weights is 1, so that query and key have no part in the gradients.
    for factor in (weights, weights[:1]):
        found = gradients(attention, torch.bfloat16, factor)
        expected = gradients(aligned_torch_attention, torch.float32, factor)
        for mine, right in zip(found, expected, strict=True):
            assert deviation(mine, right) < 2e-2
    assert len(planned_backward) == 2


def test_a_step_of_decoding_from_a_longer_cache():
    cache = torch.randn(2, 3, 8, 4096, 128, device="cuda").bfloat16()
    q = torch.randn(3, 32, 1, 128, device="cuda").bfloat16()
    for keys in (1, 100, 3001):
        k, v = cache[0, :, :, :keys], cache[1, :, :, :keys]
        found = attention(q, k, v, enable_gqa=True)
        assert relative_error(found, torch_attention(q.float(), k.float(), v.float(), enable_gqa=True)) < 1e-2
