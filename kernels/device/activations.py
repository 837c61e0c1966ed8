"""Activation functions of fp32 tiles in registers, as a fused epilogue applies them before its one rounding.

Each is within 2e-4 of itself, half a unit in the last place of fp16 and a twentieth of bfloat16's, wherever the
result is above 3e-10; below, within 1e-13. NaN stays NaN. Exponentials and reciprocals are the hardware's own
(``ex2.approx``, ``rcp.approx``), of which an SM has a quarter as many lanes as of multiply-adds, so few count.
"""

from __future__ import annotations

from warpplan.kernels.triton_compat import gl, gluon

LOG2_E = gl.constexpr(1.4426950408889634)
GELU_TANH_LINEAR = gl.constexpr(-2.3022081981444424)
"""-2 √(2/π) log2(e)."""
GELU_TANH_CUBIC = gl.constexpr(-0.10294323970027493)
"""The same times 0.044715."""


@gluon.jit
def activate(x, FUNCTION: gl.constexpr):
    """``FUNCTION`` of ``x``: "none", "relu", "gelu" (by erf), "gelu_tanh" or "silu"; "swiglu" has half the columns,
    those of :func:`swiglu`."""
    if FUNCTION == "none":
        return x
    elif FUNCTION == "relu":
        # Not a maximum: that would make NaN zero.
        return gl.where(x < 0.0, 0.0, x)
    elif FUNCTION == "gelu":
        return gelu(x)
    elif FUNCTION == "gelu_tanh":
        return x * reciprocal(1.0 + gl.exp2(x * (GELU_TANH_LINEAR + GELU_TANH_CUBIC * (x * x))))
    elif FUNCTION == "silu":
        return silu(x)
    else:
        return swiglu(x)


@gluon.jit
def gelu(x):
    """x Φ(x), where Φ(x) is 1 − Φ(−x) of positive x, and log2 Φ(−t) a polynomial: minimax on [0, 6.5], within 1.1e-4
    (iteratively reweighted least squares on log_ndtr), and falling on to −141 at t = 15, beyond which it is cut. Of
    that the hardware's power of two is zero, and the product at −∞ is NaN, as torch's."""
    t = gl.minimum(gl.abs(x), 15.0)
    p = 2.0085735741304234e-05 * t - 0.0005615049158222973
    p = p * t + 0.00688061723485589
    p = p * t - 0.05027258023619652
    p = p * t - 0.4624538719654083
    p = p * t - 1.1496214866638184
    p = p * t - 1.0001063346862793
    tail = gl.exp2(p)
    return x * gl.where(x < 0.0, tail, 1.0 - tail)


@gluon.jit
def silu(x):
    """x / (1 + exp(−x))."""
    return x * reciprocal(1.0 + gl.exp2(-LOG2_E * x))


@gluon.jit
def swiglu(x):
    """silu of the even columns times the odd ones: half the columns. Pairs of columns lie in one thread."""
    gate, up = x.reshape([x.shape[0], x.shape[1] // 2, 2]).split()
    return silu(gate) * up


@gluon.jit
def reciprocal(x):
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)
