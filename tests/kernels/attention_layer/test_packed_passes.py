"""The passes over packed sequences up to the launch, without a GPU: tensors on the CPU say that they lie on an H200,
the real launches check them, and the references stand for their kernels."""

from __future__ import annotations

import random
import sys
from itertools import accumulate
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="launching needs torch")
triton = pytest.importorskip("triton", reason="launching needs triton")

sys.path.insert(0, str(Path(__file__).parents[1]))
from hopper_launches import note_launches  # noqa: E402

from warpplan.kernels import registry  # noqa: E402
from warpplan.kernels.attention_bwd import launch as backward_launch  # noqa: E402
from warpplan.kernels.attention_bwd import space as backward_space  # noqa: E402
from warpplan.kernels.attention_bwd.packed_sequences import launch as packed_backward_launch  # noqa: E402
from warpplan.kernels.attention_fwd import launch, packed_launch, space  # noqa: E402
from warpplan.kernels.attention_fwd.launch import addressable  # noqa: E402
from warpplan.kernels.attention_layer import packed_passes, tl  # noqa: E402
from warpplan.kernels.attention_layer.packed_passes import (  # noqa: E402
    MOST_GUESSED,
    attend_packed,
    attend_packed_backward,
    clear_rows,
    guessed_shape,
)
from warpplan.kernels.compiler.inspection.player.played_program import (  # noqa: E402
    BufferArgument,
    PlayedInputs,
    play,
    ready,
)
from warpplan.kernels.plan_source import configuration, use_source  # noqa: E402
from warpplan.planner.predict.time_model import Rates, terms  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402

SCALE = 0.2
Q_SIZES, K_SIZES = (40, 0, 26), (40, 5, 30)


class SaidToBeOnGpu(torch.Tensor):
    is_cuda = True


def on_cpu(tensor):
    return tensor.as_subclass(torch.Tensor)


def starts(sizes):
    return torch.tensor([0, *accumulate(sizes)], dtype=torch.int32)


LENGTHS = (starts(Q_SIZES), starts(K_SIZES), 40, 40)


@pytest.fixture
def launched(monkeypatch):
    """Yields the list of launches: (configuration, options). Each has passed the real launch's checks."""
    made = []

    def stand_in(module, config_of, compute, results):
        prepare = module.prepare_packed

        def noted(*arguments, **options):
            prepare(*arguments, **options)
            *given, config = arguments[: len(arguments) - results]
            made.append((config_of(config), options))
            masked = {name: options[name] for name in ("causal", "window", "scale")}

            def run():
                found = compute(*map(on_cpu, given[:-2]), *given[-2:], **masked)
                for result, right in zip(arguments[len(given) + 1 :], found, strict=True):
                    on_cpu(result).copy_(right)

            return run

        monkeypatch.setattr(module, "prepare_packed", noted)

    def masks(options):
        return options["causal"], options["window"], options["scale"]

    stand_in(packed_launch, space.config_of, lambda *a, **o: attend_packed(*a, *masks(o)), 2)
    stand_in(packed_backward_launch, backward_space.config_of,
             lambda *a, **o: attend_packed_backward(*a, *masks(o)), 3)  # fmt: skip
    monkeypatch.setattr(packed_passes, "clear_rows", lambda tensor, of: made.append((tuple(tensor.shape), of.tolist())))
    monkeypatch.setattr(packed_passes, "hopper_name", lambda index: H200.name)
    for module in (launch, backward_launch):
        monkeypatch.setattr(module, "device_limits", lambda index: H200)
        monkeypatch.setattr(module, "sm_count", lambda index: H200.sm_count)
    monkeypatch.setattr(packed_launch, "sm_count", lambda index: H200.sm_count)
    return made


def randoms(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape).to(dtype)


def on_gpu(*tensors):
    return [t.as_subclass(SaidToBeOnGpu) for t in tensors]


PROJECTION = randoms(75, 8, 64)
OPERANDS = {
    "contiguous": (randoms(66, 4, 64), randoms(75, 2, 64), randoms(75, 2, 64)),
    "float16": tuple(randoms(n, 2, 128, dtype=torch.float16) for n in (66, 75, 75)),
    "slices of one projection": (PROJECTION[:66, :4], PROJECTION[:, 4:6], PROJECTION[:, 6:]),
    "heads' elements apart": tuple(randoms(n, 64, 2).transpose(1, 2) for n in (66, 75, 75)),
    "off 16 bytes": (randoms(66, 2, 65)[..., 1:], randoms(75, 2, 64), randoms(75, 2, 64)),
    "one key head for all": (randoms(66, 4, 64), *(randoms(75, 1, 64).expand(75, 4, 64) for _ in range(2))),
}


@pytest.mark.parametrize("name", OPERANDS)
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, 7)])
def test_both_passes_of_operands_as_they_lie(name, causal, window, launched):
    """What TMA cannot address is copied; all rows of no sequence are cleared."""
    operands, numbers = OPERANDS[name], (*LENGTHS, causal, window, SCALE)
    found = attend_packed(*on_gpu(*operands), *numbers)
    right = attend_packed(*operands, *numbers)
    do = torch.randn_like(right[0])
    gradients = attend_packed_backward(*on_gpu(do, *operands, *right), *numbers)
    right_gradients = attend_packed_backward(do, *operands, *right, *numbers)
    for mine, wanted in zip((*found, *gradients), (*right, *right_gradients), strict=True):
        assert torch.equal(on_cpu(mine), wanted)
    assert all(addressable(t) for t in (found[0], *gradients))
    (forward, _), out, (backward, options), *cleared = launched
    assert forward.packed
    assert backward.packed
    assert options["deterministic"] is False
    rows, keys = (tuple(t.shape) for t in operands[:2])
    q_starts, k_starts = LENGTHS[0].tolist(), LENGTHS[1].tolist()
    assert [out, *cleared] == [(rows, q_starts), (rows, q_starts), (keys, k_starts), (keys, k_starts)]


@pytest.mark.parametrize("do", [torch.ones((), dtype=torch.bfloat16).expand(66, 4, 64), randoms(66, 64, 4).mT])
def test_what_autograd_hands_over_is_copied_where_tma_cannot_address_it(do, launched):
    operands, numbers = OPERANDS["contiguous"], (*LENGTHS, True, None, SCALE)
    out, lse = attend_packed(*operands, *numbers)
    apart = lse.T.contiguous().T
    found = attend_packed_backward(*on_gpu(do, *operands, out, apart), *numbers)
    for mine, wanted in zip(found, attend_packed_backward(do, *operands, out, lse, *numbers), strict=True):
        assert torch.equal(on_cpu(mine), wanted)


def test_where_the_same_bits_are_asked_for_nothing_is_reduced(launched):
    operands, numbers = OPERANDS["contiguous"], (*LENGTHS, True, None, SCALE)
    result = attend_packed(*operands, *numbers)
    torch.use_deterministic_algorithms(True)
    try:
        attend_packed_backward(*on_gpu(result[0], *operands, *result), *numbers)
    finally:
        torch.use_deterministic_algorithms(False)
    config, options = launched[0]
    assert config.dq == "separate"
    assert options["deterministic"] is True


def test_nearby_lengths_have_one_configuration(launched):
    """Neither pass asks its source again where a step's sequences are of other lengths."""
    asked, operands = [], OPERANDS["contiguous"]
    with use_source(lambda *request: asked.append(request)):
        for sizes, keys in (((32, 31, 3), (32, 11, 32)), ((31, 4, 31), (31, 31, 13))):
            numbers = (starts(sizes), starts(keys), max(sizes), max(keys), True, None, SCALE)
            out, lse = attend_packed(*on_gpu(*operands), *numbers)
            attend_packed_backward(*on_gpu(on_cpu(out), *operands, on_cpu(out), on_cpu(lse)), *numbers)
    shape = (3, 4, 32, 64, "mask=causal", "kv_heads=2", "sizes=32,18,18")
    assert asked == [(name, shape, "bfloat16", H200.name) for name in ("attention_fwd", "attention_bwd")]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (True, 300), (False, 0)])
@pytest.mark.parametrize("d", [64, 128, 256])
def test_every_guess_is_a_shape_that_has_a_plan(d, causal, window, dtype):
    for rows, keys, sequences, longest_q, longest_k in (
        (1, 1, 1, 1, 1), (0, 9, 2, 0, 9), (9, 0, 2, 9, 0), (100, 100, 3, 60, 60), (70, 900, 9, 20, 500),
        (900, 70, 9, 500, 20), (16_384, 16_384, 500, 100, 100), (1 << 20, 1 << 20, 4, 1 << 20, 1 << 20),
        (6000, 6000, 30, 8192, 8192), (1 << 29, 1 << 29, 1 << 12, 1 << 20, 1 << 20),
    ):  # fmt: skip
        for heads, kv_heads in ((8, 8), (32, 4), (128, 8)):
            query = torch.empty(rows, heads, d, device="meta", dtype=torch.bfloat16)
            key = torch.empty(keys, kv_heads, d, device="meta", dtype=torch.bfloat16)
            shape = guessed_shape(query, key, sequences, longest_q, longest_k, causal, window)
            for name in ("attention_fwd", "attention_bwd")[: 2 if d < 256 else 1]:
                kernel = registry.kernel(name)
                assert kernel.parse_shape(kernel.declaration.named(shape), dtype) == shape
                assert configuration(name, shape, dtype, H200.name)
            assert shape[0] <= min(MOST_GUESSED, max(2 * sequences, 1)) + 1


def lists_of_lengths():
    """Lengths of documents, in tens to hundreds of thousands of rows."""
    draw = random.Random(0)
    for count, mean in ((2, 4000), (8, 1000), (32, 500), (200, 150)):
        yield [max(1, int(draw.lognormvariate(0, 1) * mean * 0.6)) for _ in range(count)]
        yield [draw.randint(1, 2 * mean) for _ in range(count)]
        yield [mean] * count
        yield [4 * mean, *[mean // 3] * (count - 1)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention_fwd", "attention_bwd"])
def test_a_guess_costs_little_time(name, profile):
    """By the time model, beside the plan for the lengths themselves, which the host does not know."""
    kernel, lost = registry.kernel(name), []
    for sizes in lists_of_lengths():
        query, key = (torch.empty(sum(sizes), heads, 128, device="meta") for heads in (32, 8))
        guess = guessed_shape(query, key, len(sizes), max(sizes), max(sizes), True, None)
        true = (len(sizes), 32, max(sizes), 128, "mask=causal", "kv_heads=8", f"sizes={','.join(map(str, sizes))}")
        ((config, _),) = kernel.ranked(guess, "bfloat16", H200, profile, limit=1)
        ((best, prediction),) = kernel.ranked(true, "bfloat16", H200, profile, limit=1)
        work = kernel._work((config, best), true, "bfloat16", H200, profile)
        constants = kernel.time_constants(true, "bfloat16", profile, work.structures)
        _, times = terms(work, Rates.of(profile, "bfloat16"), constants)
        assert times[1] == pytest.approx(prediction.time_us)
        lost.append(float(times[0] / times[1]))
    assert geometric_mean(lost) < 1.05


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "element"), [(torch.bfloat16, "bf16"), (torch.float16, "fp16")])
def test_clearing_specialises_as_it_is_compiled(monkeypatch, dtype, element):
    with monkeypatch.context() as patched:
        launches = note_launches(patched, (tl, "clear_rows_kernel"))
        clear_rows(torch.zeros(0, 4, 64, dtype=dtype), starts((0,)))
        clear_rows(torch.zeros(300, 4, 64, dtype=dtype), starts((200, 70)))
    (noted,) = launches
    noted.require_like(tl.clear_rows_source(64, element)[0])
    assert noted.grid == (3, 4)


@pytest.mark.slow
@pytest.mark.parametrize(("begin", "end"), [(0, 300), (0, 140), (9, 260), (130, 131), (0, 0)])
def test_rows_of_no_sequence_are_cleared_and_no_others(begin, end):
    """As compiled for sm_90 and played in numpy, in heads that lie within wider rows."""
    source, options = tl.clear_rows_source(64, "fp16")
    target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
    code = ready(triton.compile(source, target=target, options=options).asm["ttgir"])
    whole = np.full((300, 3, 64), 7.0, np.float16)
    buffers = {
        "tensor": whole.reshape(-1).view(np.uint8),
        "starts": np.array([begin, 50, end], np.int32).view(np.uint8),
    }
    arguments = (BufferArgument("tensor"), BufferArgument("starts"), 2, 300, 3 * 64, 64)
    found = play(code, PlayedInputs(buffers, arguments), (3, 2), 0).buffers["tensor"].view(np.float16)
    wanted = whole.copy()
    wanted[:begin, :2] = wanted[end:, :2] = 0
    assert np.array_equal(found.reshape(whole.shape), wanted)
