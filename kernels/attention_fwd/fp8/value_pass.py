"""How long the pass before attention forward in fp8 takes that lays V out for the kernel: it reads and writes each
element of V once, and is a launch of its own."""

from __future__ import annotations

from warpplan.kernels.attention_fwd.attention_shape import AttentionShape
from warpplan.planner.errors import MissingCosts
from warpplan.planner.values.profile import Profile

KEY_STEP = 16
"""The keys of the transposed V are a multiple: what TMA needs of a row in bytes, and how many are ordered together."""
VALUE_PASS = "value_pass_bytes_per_s"
"""The ceiling of the pass, bytes read and written (``profiler.probes.ceilings`` measures it). A profile from before
this kernel lacks it; there the pass is taken to run as a copy does, for it moves as many bytes in lines as whole."""
COPY = "copy_bytes_per_s"


def value_pass_bytes(shape: AttentionShape) -> float:
    """Of V as it comes and as it is left, each moved once."""
    keys = shape.k_length + -(-shape.k_length // KEY_STEP) * KEY_STEP
    return float(shape.batch * shape.kv_heads * keys * shape.head_dim)


def value_pass_cycles(shape: AttentionShape, profile: Profile) -> float:
    """SM cycles from the pass's beginning to the kernel's. Raises :class:`MissingCosts` naming the ceilings that the
    profile lacks."""
    have = dict(profile.ceilings)
    rate = VALUE_PASS if VALUE_PASS in have else COPY
    missing = [f"ceiling {name}" for name in ("clock_hz_idle", "launch_us", rate) if name not in have]
    if missing:
        raise MissingCosts(missing)
    seconds = have["launch_us"].p50 * 1e-6 + value_pass_bytes(shape) / have[rate].p50
    return seconds * have["clock_hz_idle"].p50
