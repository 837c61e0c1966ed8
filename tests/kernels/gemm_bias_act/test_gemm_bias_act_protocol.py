"""The fused kernel's own source on the machine of barriers and copies: bias, activation and residual of every plan."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.special import expit, ndtr

KERNELS = Path(__file__).parents[3] / "kernels"
MACHINE = Path(__file__).parents[1] / "gemm" / "gluon_machine.py"

_spec = importlib.util.spec_from_file_location("gluon_machine", MACHINE)
machine = importlib.util.module_from_spec(_spec)
sys.modules["gluon_machine"] = machine
_spec.loader.exec_module(machine)

REFERENCES = {
    "none": lambda x: x,
    "relu": lambda x: np.where(x < 0, 0, x),
    "gelu": lambda x: x * ndtr(x),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * expit(x),
    "swiglu": lambda x: x[:, 0::2] * expit(x[:, 0::2]) * x[:, 1::2],
}


@pytest.fixture(scope="module")
def kernel():
    return machine.load_kernel(KERNELS / "gemm_bias_act" / "gluon.py")


@pytest.fixture(scope="module")
def activate():
    return machine.load_kernel(KERNELS / "device" / "activations.py").activate


def run(
    kernel, a, b, bias, residual, activation, *, programs, seed, split_k=1, whole_tiles=0, stream_k=False, **constants
):
    """C and the margin around it, NaN where nothing was written."""
    m, n = len(a), len(b)
    columns = n // 2 if activation == "swiglu" else n
    constants = {
        "CONSUMERS": 1 if constants["SCHEME"] == "single" else 2, "SPLIT": machine.split_of(split_k, stream_k),
        "A_MAJOR": "k", "B_MAJOR": "k", "LAUNCH_DEPENDENTS": False,
        "ACTIVATION": activation, "BIAS": "none" if bias is None else "any",
        "RESIDUAL": "none" if residual is None else "any", "PRODUCER_REGISTERS": 24, "CONSUMER_REGISTERS": 240,
        **constants,
    }  # fmt: skip
    left, right = (b, a) if constants["SWAP"] else (a, b)
    named = (constants[name] for name in machine.NAMES)
    plan = kernel.block(*named, constants["SPLIT"], "k", "k", launch_dependents=constants["LAUNCH_DEPENDENTS"])
    block = kernel.fused_block(plan, activation, constants["BIAS"], constants["RESIDUAL"])
    c = np.full((m, columns + 3), machine.POISON)
    out = machine.Descriptor(c[:, :columns], block.tile) if constants["TMA_STORE"] else machine.Pointer(c.reshape(-1))
    tiles = -(-len(left) // block.block_m) * -(-len(right) // block.block_n)
    places = programs if stream_k else (tiles - whole_tiles) * (split_k - 1)
    sums = np.full(places * block.block_m * block.block_n, machine.POISON)
    counters = np.zeros((tiles - whole_tiles) * block.sharers, dtype=np.int64)
    arguments = (
        machine.Descriptor(left, (block.rows, 4)), *machine.by_width(right, block), out,
        machine.Pointer(sums), machine.Pointer(counters),
        None if bias is None else machine.Pointer(bias),
        None if residual is None else machine.Pointer(residual.reshape(-1)),
        len(left), len(right), a.shape[1], 2, split_k, whole_tiles, columns + 3,
        0 if residual is None else residual.shape[1],
    )  # fmt: skip
    machine.run_ctas(kernel.gemm_bias_act_kernel, arguments, constants, programs, seed)
    return c[:, :columns], c[:, columns:]


@given(
    scheme=st.sampled_from(("single", "cooperative", "pingpong")),
    activation=st.sampled_from(sorted(REFERENCES)),
    biased=st.booleans(),
    added=st.booleans(),
    m=st.integers(1, 13),
    n=st.integers(1, 13),
    programs=st.integers(1, 3),
    chunks=st.sampled_from((1, 2)),
    in_ring=st.booleans(),
    swap=st.booleans(),
    tma_store=st.booleans(),
    split=st.integers(1, 3),
    whole=st.integers(0, 6),
    stream=st.booleans(),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_plan_and_any_schedule(
    kernel, scheme, activation, biased, added, m, n, programs, chunks, in_ring, swap, tma_store, split, whole,
    stream, seed,
):  # fmt: skip
    halves = activation == "swiglu"
    swap = swap and not halves
    n = n + n % 2 if halves else n
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-2, 3, (m, 12)).astype(float), rng.integers(-2, 3, (n, 12)).astype(float) / 4
    bias = rng.normal(size=n) if biased else None
    residual = rng.normal(size=(m, n // 2 if halves else n)) if added else None
    lines, columns = (n, m) if swap else (m, n)
    tiles = -(-lines // 4) * -(-columns // 8)
    if stream:
        split, programs = 1, min(programs, 3 * tiles)
        whole = min(whole, max(tiles // programs - 1, 0)) * programs
    c, margin = run(
        kernel, a, b, bias, residual, activation, programs=programs, seed=seed, split_k=split,
        whole_tiles=min(whole, tiles), stream_k=stream, SCHEME=scheme, BLOCK_M=4, BLOCK_N=8, BLOCK_K=4, DEPTH=3,
        EPILOGUE_SPLIT=chunks,
        STAGING_IN_RING=in_ring and (4 * 8 // chunks <= 8 * 4 if scheme != "cooperative" else chunks == 2),
        SWAP=swap, TMA_STORE=tma_store,
    )  # fmt: skip
    product = a @ b.T + (0 if bias is None else bias)
    expected = REFERENCES[activation](product) + (0 if residual is None else residual)
    np.testing.assert_allclose(c, expected, rtol=2e-4, atol=1e-4)
    assert np.isnan(margin).all(), "wrote outside of C"


@pytest.mark.parametrize("activation", sorted(REFERENCES.keys() - {"none", "swiglu"}))
@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_activations_are_within_their_stated_error(activate, activation, precision):
    """Half a unit in the last place of fp16 is 2.4e-4, of bfloat16 2e-3."""
    x = np.linspace(-12, 60, 1_000_001).astype(precision)
    with np.errstate(over="ignore"):
        found = activate(machine.Tensor(x), activation).data.astype(np.float64)
    expected = REFERENCES[activation](x.astype(np.float64))
    large = np.abs(expected) > 3e-10
    if activation == "gelu_tanh":
        # The reference itself cancels where 1 + tanh is small.
        large &= x > -3.5
    np.testing.assert_allclose(found[large], expected[large], rtol=2e-4)
    np.testing.assert_allclose(
        found[~large], expected[~large], rtol=0, atol=1e-6 if activation == "gelu_tanh" else 1e-13
    )


@pytest.mark.parametrize("activation", sorted(REFERENCES.keys() - {"swiglu"}))
def test_what_is_not_finite(activate, activation):
    x = machine.Tensor(np.array([np.nan, np.inf, 1e30, -1e30, -np.inf], dtype=np.float32))
    with np.errstate(over="ignore", invalid="ignore"):
        nan, infinity, large, small, negative = activate(x, activation).data
    assert np.isnan(nan)
    assert infinity == np.inf
    assert large == np.float32(1e30)
    assert small == np.float32(-1e30) if activation == "none" else abs(small) < 1e-20
    # As torch has it: −∞ times what is left of it, zero.
    assert np.array_equal(negative, {"none": -np.inf, "relu": 0.0}.get(activation, np.nan), equal_nan=True)
