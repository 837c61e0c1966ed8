"""Attention on packed sequences as models call it, on a GPU, against torch's attention of each sequence in float32:
results, gradients, the same bits, no wait, whole under compile."""

from __future__ import annotations

from itertools import accumulate

import pytest

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
pytest.importorskip("triton", reason="needs triton")

from torch.nn.functional import scaled_dot_product_attention as torch_attention  # noqa: E402

from warpplan.kernels import packed_attention  # noqa: E402
from warpplan.kernels.attention_fwd.reference import seen_keys  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]
OUTSIDE = 70
"""Rows, and keys, of no sequence, behind the last one; NaN lies there."""
EQUAL, UNLIKE = ((300, 0, 1, 1000, 65),) * 2, ((300, 0, 1, 1000, 65), (300, 5, 700, 1000, 0))
MANY = ([1 + 37 * i % 211 for i in range(150)],) * 2
CASES = (
    # lengths, heads, kv_heads, head size, causal, window
    (EQUAL, 8, 8, 128, True, None),
    (EQUAL, 8, 2, 64, False, None),
    (UNLIKE, 4, 1, 128, True, 100),
    (UNLIKE, 4, 2, 64, False, 70),
    (MANY, 4, 2, 128, True, None),
)


def starts(sizes):
    return torch.tensor([0, *accumulate(sizes)], dtype=torch.int32, device="cuda")


def lengths(case):
    q_sizes, k_sizes = case[0]
    return starts(q_sizes), starts(k_sizes), max(q_sizes), max(k_sizes)


def options_of(case):
    return {"causal": case[4], "window": case[5]}


def operands(case, dtype=torch.bfloat16):
    (q_sizes, k_sizes), heads, kv_heads, d = case[:4]
    forms = ((q_sizes, heads), (k_sizes, kv_heads), (k_sizes, kv_heads))
    made = [torch.randn(sum(sizes) + OUTSIDE, h, d, device="cuda").to(dtype) for sizes, h in forms]
    for tensor in made:
        tensor[-OUTSIDE:] = float("nan")
    return made


def by_torch(query, key, value, case):
    """Torch's attention of each sequence by itself, zeros in the rows of none."""
    q_sizes, k_sizes = case[0]
    parts, q_first, k_first = [], 0, 0
    for q_size, k_size in zip(q_sizes, k_sizes, strict=True):
        keys = slice(k_first, k_first + k_size)
        rows = (query[q_first : q_first + q_size], key[keys], value[keys])
        one = (t.transpose(0, 1).contiguous()[None] for t in rows)
        seen = seen_keys(q_size, k_size, case[4], case[5], "cuda")
        if q_size:
            parts.append(torch_attention(*one, attn_mask=seen, enable_gqa=True)[0].transpose(0, 1))
        q_first, k_first = q_first + q_size, k_first + k_size
    return torch.cat([*parts, torch.zeros_like(query[-OUTSIDE:])])


def with_gradients(function, inputs, *arguments, **options):
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    out = function(*inputs, *arguments, **options)
    torch.manual_seed(0)
    grad = torch.randn(out.shape, device="cuda").to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad)]


def deviation(found, expected):
    """The error of the root of the mean square, relative where that is not tiny."""
    right = expected.double()
    return float((found.double() - right).square().mean().sqrt() / (right.square().mean().sqrt() + 1e-3))


def require_right(found, inputs, case):
    for mine, right in zip(found, with_gradients(by_torch, [t.float() for t in inputs], case), strict=True):
        assert deviation(mine, right) < 2e-2
        assert not mine[-OUTSIDE:].any()


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_results_and_gradients(case, dtype):
    inputs = operands(case, dtype)
    found = with_gradients(packed_attention, inputs, *lengths(case), **options_of(case))
    require_right(found, inputs, case)
    with torch.no_grad():
        assert torch.equal(packed_attention(*inputs, *lengths(case), **options_of(case)), found[0])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_same_bits_where_they_are_asked_for(case):
    inputs = operands(case)
    torch.use_deterministic_algorithms(True)
    try:
        found, again = (with_gradients(packed_attention, inputs, *lengths(case), **options_of(case)) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    for first, second in zip(found, again, strict=True):
        assert torch.equal(first, second)
    require_right(found, inputs, case)


def test_heads_of_256_without_gradients():
    case = (UNLIKE, 4, 2, 256, True, None)
    inputs = operands(case)
    found = packed_attention(*inputs, *lengths(case), causal=True)
    right = by_torch(*(t.float() for t in inputs), case)
    assert deviation(found, right) < 2e-2


def test_slices_of_one_projection_and_what_tma_cannot_read():
    """Operands off 16 bytes, keys that all heads share, a sum's gradient, which is one element for all."""
    case = (EQUAL, 4, 4, 64, True, None)
    rows = sum(case[0][0]) + OUTSIDE
    wide, shared, slices = (torch.randn(rows, *form, device="cuda").bfloat16() for form in ((4, 65), (1, 64), (12, 64)))
    weights = torch.linspace(-1, 1, 64, device="cuda").bfloat16()

    def taken(made):
        key = made[1].expand(rows, 4, 64)
        return (made[0][..., 1:], key, key), made[2].split((4, 4, 4), 1)

    def gradients(function, dtype, *arguments, **options):
        made = [t.detach().to(dtype).requires_grad_() for t in (wide, shared, slices)]
        total = sum((function(*one, *arguments, **options) * weights.to(dtype)).sum() for one in taken(made))
        return torch.autograd.grad(total, made)

    found = gradients(packed_attention, torch.bfloat16, *lengths(case), causal=True)
    for mine, right in zip(found, gradients(by_torch, torch.float32, case), strict=True):
        assert deviation(mine, right) < 2e-2


def test_the_host_never_waits():
    case = CASES[0]
    inputs = [t.requires_grad_() for t in operands(case)]
    grad, given = torch.randn_like(inputs[0]), lengths(case)
    packed_attention(*inputs, *given, causal=True).backward(grad)
    torch.cuda.set_sync_debug_mode("error")
    try:
        packed_attention(*inputs, *given, causal=True).backward(grad)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_captured_passes_read_lengths_at_each_replay():
    """A CUDA graph of both passes is for any lengths within its bounds."""
    case = (([400, 300, 300],) * 2, 4, 2, 64, True, None)
    other = (([100, 500, 200],) * 2, 4, 2, 64, True, None)
    inputs = operands(case)
    for tensor in inputs:
        tensor.nan_to_num_(0.5)
    inputs = [t.requires_grad_() for t in inputs]
    begins = starts(case[0][0])
    grad = torch.randn_like(inputs[0])

    def step():
        out = packed_attention(*inputs, begins, begins, 512, 512, causal=True)
        return [out, *torch.autograd.grad(out, inputs, grad)]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for lengths_now in (case, other):
        begins.copy_(starts(lengths_now[0][0]))
        graph.replay()
        torch.cuda.synchronize()
        used = sum(lengths_now[0][0])
        made = [t.detach().float().requires_grad_() for t in inputs]
        right = by_torch(*(torch.cat([t[:used], t[-OUTSIDE:]]) for t in made), lengths_now)[:used]
        wanted = [right, *torch.autograd.grad(right, made, grad[:used].float())]
        for mine, expected in zip(found, wanted, strict=True):
            assert deviation(mine[:used], expected[:used]) < 2e-2
            assert not mine[used:].any()


@pytest.mark.parametrize("case", CASES[:3], ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_whole(case, dynamic):
    compiled = torch.compile(packed_attention, fullgraph=True, dynamic=dynamic)
    inputs = operands(case)
    require_right(with_gradients(compiled, inputs, *lengths(case), **options_of(case)), inputs, case)
