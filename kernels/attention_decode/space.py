"""The configurations of the decoding attention kernel, and the one function that says which of them are valid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from warpplan.kernels.attention_fwd.space import MMA_ROWS, PRODUCER_REGISTERS, AttentionConfig
from warpplan.kernels.attention_fwd.space import violations as attention_violations
from warpplan.kernels.gemm.space import WARP_GROUP
from warpplan.planner.errors import InvalidConfig
from warpplan.planner.values.device import Device
from warpplan.planner.values.tuning import TuningConfig

MAX_ROWS = MMA_ROWS
"""Queries times the heads that share a key head: one tile of wgmma."""
MAX_QUERIES = 16
MAX_SPLITS = 128
"""Parts of a sequence's keys; the combining kernel reads so many results a row at most."""


@dataclass(frozen=True, order=True)
class DecodeConfig:
    """One way to run the kernel on heads of ``head_dim`` elements.

    A block has all rows of one key head of one sequence, and one of ``splits`` parts of its keys; an iteration takes
    ``columns`` keys. K and V each have a ring of ``depth`` slots. ``lookahead`` issues Q · Kᵀ of the next block before
    the softmax of this one is used, with P · V. With more splits than one a second kernel combines their results.
    """

    head_dim: int
    columns: int
    depth: int
    lookahead: bool = True
    splits: int = 1

    @property
    def attention(self) -> AttentionConfig:
        """The block of ``attention_fwd`` whose loop over keys this is."""
        return AttentionConfig(
            self.head_dim, 1, MMA_ROWS, self.columns, self.depth, lookahead=self.lookahead, staging="q",
            persistent=False,
        )  # fmt: skip


def violations(config: DecodeConfig, dtype: str, device: Device) -> tuple[str, ...]:
    """Why ``config`` cannot run on ``device``; empty when it can."""
    return tuple(_violations(config, dtype, device))


def _violations(config: DecodeConfig, dtype: str, device: Device) -> Iterator[str]:
    yield from attention_violations(config.attention, dtype, device)
    if not 1 <= config.splits <= MAX_SPLITS:
        yield f"splits {config.splits}: expected 1 to {MAX_SPLITS}"


def require_valid(config: DecodeConfig, dtype: str, device: Device) -> None:
    """Raise :class:`InvalidConfig` with the first violation, if there is one."""
    found = violations(config, dtype, device)
    if found:
        raise InvalidConfig(f"invalid attention_decode configuration: {found[0]}", field="config", value=repr(config))


def tuning(config: DecodeConfig) -> TuningConfig:
    """The configuration as Triton's own fields."""
    block = config.attention
    kwargs: dict[str, int | str | bool] = {
        "HEAD_DIM": config.head_dim,
        "COLUMNS": config.columns,
        "DEPTH": config.depth,
        "LOOKAHEAD": config.lookahead,
        "SPLITS": config.splits,
        "PRODUCER_REGISTERS": PRODUCER_REGISTERS,
        "CONSUMER_REGISTERS": block.consumer_registers,
    }
    return TuningConfig.of(kwargs, num_warps=WARP_GROUP, num_stages=1, maxnreg=block.max_registers)


def config_of(given: TuningConfig) -> DecodeConfig:
    """The inverse of :func:`tuning`; :class:`InvalidConfig` where a field is missing, of the wrong kind, or says other
    than what the launch would use (registers follow from the rest)."""
    values = dict(given.kwargs)
    sizes = []
    for name in ("HEAD_DIM", "COLUMNS", "DEPTH", "SPLITS"):
        value = values.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise _wrong(name, value, "a whole number from 1 on")
        sizes.append(value)
    lookahead = values.get("LOOKAHEAD")
    if not isinstance(lookahead, bool):
        raise _wrong("LOOKAHEAD", lookahead, "true or false")
    head_dim, columns, depth, splits = sizes
    config = DecodeConfig(head_dim, columns, depth, lookahead, splits)
    made = tuning(config)
    expected = dict(made.kwargs)
    for name in sorted(expected.keys() | values.keys()):
        if expected.get(name) != values.get(name):
            raise _wrong(name, values.get(name), f"{expected.get(name)!r} beside the rest")
    if given != made:
        raise _wrong("num_warps", given.num_warps, f"{made.num_warps}, num_stages 1 and maxnreg {made.maxnreg}")
    return config


def _wrong(field: str, value: object, expected: str) -> InvalidConfig:
    return InvalidConfig(
        f"attention_decode configuration: {field} is {value!r}, expected {expected}", field=field, value=value
    )
