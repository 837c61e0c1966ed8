"""Attention as models call it, on a GPU, against torch's own in float32: results, gradients, whole under compile."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
pytest.importorskip("triton", reason="needs triton")

from torch.nn.functional import scaled_dot_product_attention as torch_attention  # noqa: E402

from warpplan.kernels import attention  # noqa: E402
from warpplan.kernels.attention_layer.autograd import why_torch  # noqa: E402

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
)


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


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_results_and_gradients(case, dtype):
    inputs, options = operands(case, dtype), {"is_causal": case[6], "enable_gqa": case[1] != case[2]}
    assert why_torch(*inputs, **options) == ""
    found = with_gradients(attention, inputs, **options)
    expected = with_gradients(torch_attention, [t.float() for t in inputs], **options)
    for mine, right in zip(found, expected, strict=True):
        assert deviation(mine, right) < 2e-2
    assert found[0].stride() == torch.empty_like(inputs[0]).stride()
    assert torch.equal(attention(*inputs, **options), found[0])


def test_compiled_whole():
    compiled = torch.compile(attention, fullgraph=True)
    inputs = operands(CASES[0])
    found, expected = (with_gradients(f, inputs, is_causal=True) for f in (compiled, attention))
    for mine, eager in zip(found, expected, strict=True):
        assert relative_error(mine, eager) < 1e-2


def test_an_operand_that_tma_cannot_read_is_copied():
    wide = torch.randn(2, 4, 300, 65, device="cuda").bfloat16()
    q, k, v = (wide[..., 1:] for _ in range(3))
    assert relative_error(attention(q, k, v), torch_attention(q.float(), k.float(), v.float())) < 1e-2


def test_a_step_of_decoding_from_a_longer_cache():
    cache = torch.randn(2, 3, 8, 4096, 128, device="cuda").bfloat16()
    q = torch.randn(3, 32, 1, 128, device="cuda").bfloat16()
    for keys in (1, 100, 3001):
        k, v = cache[0, :, :, :keys], cache[1, :, :, :keys]
        found = attention(q, k, v, enable_gqa=True)
        assert relative_error(found, torch_attention(q.float(), k.float(), v.float(), enable_gqa=True)) < 1e-2
