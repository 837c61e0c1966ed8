"""Attention's passes up to the launch, without a GPU: tensors on the CPU say that they lie on an H200, the real launch
checks them, and the reference stands for its kernels."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="launching needs torch")
pytest.importorskip("triton", reason="launching needs triton")

from warpplan.kernels import registry  # noqa: E402
from warpplan.kernels.attention_bwd import launch  # noqa: E402
from warpplan.kernels.attention_bwd.reference import gradients  # noqa: E402
from warpplan.kernels.attention_bwd.space import config_of  # noqa: E402
from warpplan.kernels.attention_fwd.launch import addressable  # noqa: E402
from warpplan.kernels.attention_layer import planned_passes  # noqa: E402
from warpplan.kernels.attention_layer.planned_passes import (  # noqa: E402
    attend,
    attend_backward,
    decodes,
    decoding_shape,
    gradients_shape,
    planned_shape,
)
from warpplan.kernels.plan_source import configuration, use_source  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402

SCALE = 0.2


class OnGpu(torch.Tensor):
    is_cuda = True


@pytest.fixture
def launched(monkeypatch):
    """Yields the list of launches: (configuration, options). Each has passed the real launch's checks."""
    made, prepare = [], launch.prepare

    def noted(do, q, k, v, o, lse, config, *results, **options):
        prepare(do, q, k, v, o, lse, config, *results, **options)
        made.append((config_of(config), options))
        masked = {name: options[name] for name in ("causal", "scale")}

        def run():
            for result, right in zip(results, gradients(do, q, k, v, o, **masked), strict=True):
                result.copy_(right)

        return run

    monkeypatch.setattr(planned_passes, "hopper_name", lambda index: H200.name)
    monkeypatch.setattr(launch, "device_limits", lambda index: H200)
    monkeypatch.setattr(launch, "sm_count", lambda index: H200.sm_count)
    monkeypatch.setattr(launch, "prepare", noted)
    return made


def randoms(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape).to(dtype)


def saved(query, key, value, causal=False):
    """(query, key, value, out, lse) of a forward pass, which is the reference's."""
    return (query, key, value, *attend(query, key, value, causal, SCALE))


def backward(do, tensors, causal=False):
    """What the backward pass gives, compared with the right gradients."""
    found = attend_backward(*(t.as_subclass(OnGpu) for t in (do, *tensors)), causal, SCALE)
    query, key, value, out, _ = tensors
    right = gradients(do, query, key, value, out, causal=causal, scale=SCALE)
    for mine, wanted in zip(found, right, strict=True):
        assert torch.equal(mine.as_subclass(torch.Tensor), wanted.to(query.dtype))
    return found


PACKED = randoms(2, 33, 3, 4, 64)
QUERY, KEYS = randoms(2, 4, 33, 64), randoms(2, 2, 50, 64)
OPERANDS = {
    "contiguous": (QUERY, KEYS, randoms(2, 2, 50, 64)),
    "float16": tuple(randoms(2, 4, 33, 64, dtype=torch.float16) for _ in range(3)),
    "heads of 128": tuple(randoms(1, 2, 40, 128) for _ in range(3)),
    "slices of a packed projection": tuple(PACKED[:, :, i].transpose(1, 2) for i in range(3)),
    "heads' elements apart": tuple(randoms(2, 4, 64, 33).transpose(2, 3) for _ in range(3)),
    "off 16 bytes": (QUERY, randoms(2, 4, 50, 65)[..., 1:], randoms(2, 4, 50, 64)),
    "one key head for all": (QUERY, KEYS[:, :1].expand(2, 4, 50, 64), KEYS[:, 1:].expand(2, 4, 50, 64)),
    "one query": (QUERY[:, :, :1], KEYS, KEYS),
}


@pytest.mark.parametrize("name", OPERANDS)
def test_gradients_of_operands_as_they_lie(name, launched):
    """What TMA cannot address is copied, and the gradients lie as the operands do where those fill their memory."""
    tensors = saved(*OPERANDS[name])
    found = backward(torch.randn_like(tensors[3]), tensors)
    assert len(launched) == 1
    assert all(addressable(t) for t in found)
    for operand, gradient in zip(tensors, found, strict=False):
        if operand.is_contiguous() or operand.transpose(1, 2).is_contiguous():
            assert gradient.stride() == operand.stride()


@pytest.mark.parametrize(
    "do", [torch.ones((), dtype=torch.bfloat16).expand(2, 4, 33, 64), randoms(2, 33, 64, 4).permute(0, 3, 1, 2)]
)
def test_a_gradient_that_tma_cannot_address_is_copied(do, launched):
    assert not addressable(do)
    backward(do, saved(*OPERANDS["contiguous"]))
    assert len(launched) == 1


def test_a_log_sum_exp_that_was_kept_in_another_order_is_copied(launched):
    *tensors, lse = saved(*OPERANDS["contiguous"])
    apart = lse.transpose(1, 2).contiguous().transpose(1, 2)
    assert not apart.is_contiguous()
    backward(torch.randn_like(tensors[0]), (*tensors, apart))


@pytest.mark.parametrize("causal", [False, True])
def test_where_the_same_bits_are_asked_for_nothing_is_reduced(causal, launched):
    tensors = saved(*(t[:, :, :33] for t in OPERANDS["contiguous"]), causal)
    torch.use_deterministic_algorithms(True)
    try:
        backward(torch.randn_like(QUERY), tensors, causal)
    finally:
        torch.use_deterministic_algorithms(False)
    ((config, options),) = launched
    assert config.dq == "separate"
    assert options == {"causal": causal, "scale": SCALE, "deterministic": True}


def test_a_source_is_asked_once_for_a_shape(launched):
    asked = []
    tensors = saved(*OPERANDS["contiguous"])
    with use_source(lambda *request: asked.append(request)):
        for _ in range(3):
            backward(torch.randn_like(QUERY), tensors)
    assert asked == [("attention_bwd", (2, 4, 33, 64, "kv_heads=2", "kv_length=50"), "bfloat16", H200.name)]
    assert len(launched) == 3


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [64, 128])
def test_every_length_has_a_plan(d, causal, deterministic):
    for length in (1, 7, 64, 65, 500, 8192):
        for k_length in (1, 64, 500, 8192):
            query, key = (torch.empty(2, heads, n, d, device="meta") for heads, n in ((8, length), (2, k_length)))
            shape = gradients_shape(query, key, causal, deterministic)
            found = config_of(configuration("attention_bwd", shape, "bfloat16", H200.name))
            assert found.head_dim == d
            assert not (deterministic and found.dq == "reduce")


@pytest.mark.parametrize(
    ("k_length", "kv_heads", "planned"), [(1000, 4, 1024), (65, 2, 68), (1 << 20, 1, 1 << 20), (1, 4, 1)]
)
def test_one_query_is_decoded(k_length, kv_heads, planned):
    """Planned for a number of keys that is not another at each step."""
    query, key = torch.empty(2, 4, 1, 64, device="meta"), torch.empty(2, kv_heads, k_length, 64, device="meta")
    assert decodes(query, key, key)
    assert not decodes(torch.empty(2, 4, 2, 64, device="meta"), key, key)
    assert not decodes(torch.empty(2, 128 * kv_heads, 1, 64, device="meta"), key, key)
    shape = decoding_shape(query, key)
    kernel = registry.kernel("attention_decode")
    assert kernel.parse_shape(kernel.declaration.named(shape), "bfloat16") == shape
    assert shape[2] == planned


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("k_length", "kv_heads"), [(33, 4), (50, 2)])
def test_shapes_are_those_that_the_kernels_declare(k_length, kv_heads, causal):
    query, key = torch.empty(2, 4, 33, 64), torch.empty(2, kv_heads, k_length, 64)
    shapes = {
        "attention_fwd": planned_shape(query, key, causal),
        "attention_bwd": gradients_shape(query, key, causal, False),
    }
    for name, shape in (*shapes.items(), ("attention_bwd", gradients_shape(query, key, causal, True))):
        kernel = registry.kernel(name)
        assert kernel.parse_shape(kernel.declaration.named(shape), "bfloat16") == shape
        assert (kernel.declaration.chosen(shape)["mask"] == "causal") == causal
