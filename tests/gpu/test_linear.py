"""The linear layer on a GPU: output and gradients against float64, the same bits twice, whole in a compiled graph."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
pytest.importorskip("triton", reason="needs triton")

from torch.nn.functional import linear as torch_linear  # noqa: E402

from warpplan.kernels.gemm.reference import relative_error  # noqa: E402
from warpplan.kernels.linear_layer import products  # noqa: E402
from warpplan.kernels.linear_layer.autograd import linear  # noqa: E402
from warpplan.kernels.linear_layer.patching import patch  # noqa: E402
from warpplan.kernels.operands.matrices import layout_of  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]

ERRORS = {torch.bfloat16: 3e-3, torch.float16: 5e-4}
"""Of a product of these dtypes' values that is rounded once: 1.7e-3 and 2e-4."""
SHAPES = (
    ((), 64, 64),
    ((1,), 512, 256),
    ((7,), 136, 72),
    ((33, 31), 264, 1096),
    ((2, 3, 128), 1024, 512),
    ((4096,), 1408, 2048),
)
"""(leading dimensions, N, K): one row, odd numbers of rows, sizes that are no multiple of a tile."""


@pytest.fixture
def planned(monkeypatch):
    """Fails where torch's own product is used; yields the layouts of the products."""
    layouts, operand_layout = [], products.operand_layout

    def noted(a, b):
        layouts.append(operand_layout(a, b))
        return layouts[-1]

    monkeypatch.setattr(products, "torch_linear", None)
    monkeypatch.setattr(products, "operand_layout", noted)
    return layouts


def operands(lead, n, k, dtype, bias=True):
    generator = torch.Generator("cuda").manual_seed(n + k)
    shapes = ((*lead, k), (n, k), (n,))[: 3 if bias else 2]
    return [torch.randn(s, device="cuda", generator=generator).to(dtype).requires_grad_() for s in shapes]


def with_gradients(function, inputs, grad):
    inputs = [t.detach().requires_grad_() for t in inputs]
    out = function(*inputs)
    out.backward(grad.to(out.dtype))
    return [out.detach(), *(t.grad for t in inputs)]


def check(function, inputs, dtype, error=None):
    """Output and gradients of ``function`` against float64 products of the same values."""
    grad = torch.randn((*inputs[0].shape[:-1], inputs[1].shape[0]), device="cuda").to(dtype)
    found = with_gradients(function, inputs, grad)
    expected = with_gradients(torch_linear, [t.detach().to(dtype).double() for t in inputs], grad)
    for name, mine, right in zip(("output", "x", "weight", "bias"), found, expected, strict=False):
        assert mine.shape == right.shape
        assert relative_error(mine, right) < (error or ERRORS[dtype]), name
    return found


@pytest.mark.parametrize("dtype", list(ERRORS), ids=str)
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(("lead", "n", "k"), SHAPES, ids=str)
def test_output_and_gradients(lead, n, k, bias, dtype, planned):
    found = check(linear, operands(lead, n, k, dtype, bias), dtype)
    assert all(t.dtype == dtype for t in found)
    assert planned == ["nt", "nn", "tn"]


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_the_same_bits_twice(bias, planned):
    inputs = operands((520,), 1024, 4096, torch.bfloat16, bias)
    grad = torch.randn(520, 1024, device="cuda").bfloat16()
    first = with_gradients(linear, inputs, grad)
    for _ in range(5):
        for again, once in zip(with_gradients(linear, inputs, grad), first, strict=True):
            assert torch.equal(again, once)


def test_a_gradient_of_equal_elements(planned):
    x, weight, bias = operands((4, 64), 256, 128, torch.bfloat16)
    linear(x, weight, bias).sum().backward()
    ones = torch.ones(256, 256, device="cuda", dtype=torch.float64)
    assert relative_error(weight.grad, ones.t() @ x.detach().double().reshape(-1, 128)) < ERRORS[torch.bfloat16]
    assert torch.equal(bias.grad, torch.full_like(bias, 256))


def test_operands_are_read_where_they_lie(planned):
    wide = torch.randn(256, 1024, device="cuda").bfloat16()
    stored = torch.randn(512, 384, device="cuda").bfloat16()
    for x in (wide[:, 256:768], wide[:, ::2].contiguous(), torch.randn(512, 256, device="cuda").bfloat16().t()):
        for weight in (stored.t(), stored.t().contiguous()):
            out = linear(x, weight)
            assert relative_error(out, x.double() @ weight.double().t()) < ERRORS[torch.bfloat16]
            assert planned[-1] == layout_of(x, weight)


def test_gradients_of_gradients(planned):
    x, weight, _ = operands((64,), 128, 256, torch.bfloat16)
    (grad,) = torch.autograd.grad(linear(x, weight).square().sum(), x, create_graph=True)
    grad.float().square().sum().backward()
    wide_x, wide = (t.detach().double().requires_grad_() for t in (x, weight))
    (right,) = torch.autograd.grad(torch_linear(wide_x, wide).square().sum(), wide_x, create_graph=True)
    right.square().sum().backward()
    # Several roundings follow one another.
    assert relative_error(weight.grad, wide.grad) < 5 * ERRORS[torch.bfloat16]


@pytest.mark.parametrize(("n", "k"), [(129, 256), (128, 250)])
def test_sizes_off_alignment_are_torchs(n, k):
    inputs = operands((64,), n, k, torch.bfloat16)
    grad = torch.randn(64, n, device="cuda").bfloat16()
    for mine, torchs in zip(
        with_gradients(linear, inputs, grad), with_gradients(torch_linear, inputs, grad), strict=True
    ):
        assert torch.equal(mine, torchs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_wide_dtypes_are_torchs(dtype):
    x, weight, bias = operands((64,), 128, 256, dtype)
    assert torch.equal(linear(x, weight, bias), torch_linear(x, weight, bias))


def test_rows_between_units_of_16_bytes_are_torchs():
    x = torch.randn(64, 260, device="cuda").bfloat16()[:, 4:]
    weight = torch.randn(128, 256, device="cuda").bfloat16()
    assert torch.equal(linear(x, weight), torch_linear(x, weight))


@pytest.mark.parametrize("dtype", list(ERRORS), ids=str)
def test_autocast(dtype, planned):
    inputs = operands((3, 100), 256, 128, torch.float32)

    def cast(*tensors):
        with torch.autocast("cuda", dtype):
            return linear(*tensors)

    found = check(cast, inputs, dtype)
    assert [t.dtype for t in found] == [dtype, *[torch.float32] * 3]
    assert planned == ["nt", "nn", "tn"]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_compiled_whole(bias, dynamic, planned):
    torch._dynamo.reset()

    def block(x, weight, *rest):
        return torch.nn.functional.silu(linear(x, weight, *rest))

    def right(x, weight, *rest):
        return torch.nn.functional.silu(torch_linear(x, weight, *rest))

    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic)
    for rows in (96, 200):
        inputs = operands((2, rows), 512, 256, torch.bfloat16, bias)
        grad = torch.randn(2, rows, 512, device="cuda").bfloat16()
        wide = with_gradients(right, [t.detach().double() for t in inputs], grad)
        for mine, expected in zip(with_gradients(compiled, inputs, grad), wide, strict=True):
            assert relative_error(mine, expected) < 3 * ERRORS[torch.bfloat16]
    assert set(planned) == {"nt", "nn", "tn"}


def test_captured_in_a_graph(planned):
    x, weight, bias = (t.detach() for t in operands((256,), 512, 256, torch.bfloat16))
    expected = linear(x, weight, bias)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = linear(x, weight, bias)
    out.zero_()
    graph.replay()
    assert torch.equal(out, expected)


def test_a_patched_model_trains_as_before():
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, device="cuda")
    x = torch.randn(4, 128, 256, device="cuda")

    def fresh():
        trained = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, device="cuda")
        trained.load_state_dict(model.state_dict())
        return trained, torch.optim.SGD(trained.parameters(), lr=0.05)

    def train(trained, optimizer):
        found = []
        for _ in range(20):
            with torch.autocast("cuda", torch.bfloat16):
                loss = (trained(x) - x.flip(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(float(loss.detach()))
        return found

    right = train(*fresh())
    trained, optimizer = fresh()
    report = patch(trained)
    assert report.patched == ("linear1", "linear2")
    assert train(trained, optimizer) == pytest.approx(right, rel=0.01)
