"""The configurations of the grouped GEMM, and the one function that says which of them are valid.

A configuration is :class:`~warpplan.kernels.gemm.space.GemmConfig`: the loop of a tile is the loop of a plain product.
What differs is that tiles belong to groups whose ends only the device knows. Every CTA takes tiles from the whole list
(persistent), K is never split, operands are never swapped, and the producer finds the group of each tile, which takes
registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from warpplan.kernels.gemm.space import BASE_REGISTERS, MAX_REGISTERS, WARP_GROUP, GemmConfig
from warpplan.kernels.gemm.space import violations as gemm_violations
from warpplan.planner.errors import InvalidConfig
from warpplan.planner.values.device import Device
from warpplan.planner.values.tuning import TuningConfig

Product = Literal["forward", "dgrad", "wgrad"]
Scales = Literal["row", "block"]

PRODUCTS: tuple[Product, ...] = ("forward", "dgrad", "wgrad")
SCALES: tuple[Scales, ...] = ("row", "block")
SCHEMES: tuple[str, ...] = ("single", "cooperative", "pingpong")
SIXTEEN_BIT = ("bfloat16", "float16")
FP8 = "float8_e4m3fn"

PRODUCER_REGISTERS = 40
"""Of a producer thread: the plain GEMM's 24, and the window of group ends in which it finds a tile's group
(``kernels/device/groups.py``). A multiple of 8, as ``setmaxnreg`` needs it; what it has, the consumers lack."""
K_STEP = 16
"""Rows of K that one wgmma takes, of 16-bit elements. Of a group's last K block wgrad runs the steps that have a row,
of an empty group one step of zeros."""
STEPPED_K = 64
"""The longest K block of wgrad's tiles with two accumulators and several consumers: with 128, 32 to 320 bytes spill."""
MAX_GROUPS = 1_024
"""Groups of one product. More than any mixture of experts has; it bounds what planning for their sizes takes."""
MAX_ROWS = 1 << 30
"""Of all groups: what a ragged descriptor reaches (``kernels/grouped_gemm/gluon.py``)."""

_FIELDS: dict[str, type] = {
    "SCHEME": str,
    "BLOCK_M": int,
    "BLOCK_N": int,
    "BLOCK_K": int,
    "GROUP_M": int,
    "DEPTH": int,
    "EPILOGUE_SPLIT": int,
    "STAGING_IN_RING": bool,
    "CTAS_PER_SM": int,
    "PRODUCER_REGISTERS": int,
    "CONSUMER_REGISTERS": int,
}


def consumer_registers(config: GemmConfig) -> int:
    """Registers of a consumer thread: what the producer's warp group leaves, in multiples of 8."""
    left = config.max_registers * config.total_warps - PRODUCER_REGISTERS * WARP_GROUP
    return min(MAX_REGISTERS, left // (config.consumers * config.consumer_warps) // 8 * 8)


def violations(config: GemmConfig, dtype: str, device: Device, product: str = "forward") -> tuple[str, ...]:
    """Why ``config`` cannot run ``product`` on ``device``; empty when it can."""
    found = gemm_violations(config, dtype, device)
    # A field outside of its list makes what is computed from it meaningless.
    return found if found else tuple(_own_violations(config, dtype, product))


def _own_violations(config: GemmConfig, dtype: str, product: str) -> Iterator[str]:
    c = config
    if product not in PRODUCTS:
        yield f"product {product}: expected one of {', '.join(PRODUCTS)}"
    if c.scheme not in SCHEMES:
        yield f"scheme {c.scheme}: expected one of {', '.join(SCHEMES)}"
        return
    if c.split_k != 1:
        yield f"split_k {c.split_k}: the K of a group is not split"
    if c.cluster != 1:
        yield f"cluster {c.cluster}: the tiles of a group are not shared by CTAs"
    if c.launch_dependents:
        yield "launch_dependents: a grouped product lets no launch begin early"
    if c.swap:
        yield "swap: the operands of a group are not swapped"
    if not c.persistent:
        yield "not persistent: how many tiles there are is known to the device alone"
    if product != "forward" and dtype == FP8:
        yield f"{product} with {dtype}: expected one of {', '.join(SIXTEEN_BIT)}"
    if product == "wgrad" and c.wide and c.consumers > 1 and c.block_k > STEPPED_K:
        yield f"block_k {c.block_k} of block_n {c.block_n} by {c.consumers} consumers: wgrad's steps of K spill"
    if c.wide and c.consumers > 1 and dtype == FP8:
        yield f"block_n {c.block_n} of {c.consumers} consumers with {dtype}: the scales of its columns spill"
    if c.live_registers + BASE_REGISTERS > consumer_registers(c):
        yield (
            f"{c.live_registers} accumulator registers a thread and {BASE_REGISTERS} more exceed "
            f"the {consumer_registers(c)} a consumer thread has"
        )


def require_valid(config: GemmConfig, dtype: str, device: Device, product: str = "forward") -> None:
    """Raise :class:`InvalidConfig` with the first violation, if there is one."""
    found = violations(config, dtype, device, product)
    if found:
        raise InvalidConfig(f"invalid grouped_gemm configuration: {found[0]}", field="config", value=repr(config))


def tuning(config: GemmConfig) -> TuningConfig:
    """The configuration as Triton's own fields."""
    kwargs: dict[str, int | str | bool] = {
        "SCHEME": config.scheme,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "GROUP_M": config.group_m,
        "DEPTH": config.depth,
        "EPILOGUE_SPLIT": config.epilogue_split,
        "STAGING_IN_RING": config.staging == "ring",
        "CTAS_PER_SM": config.ctas_per_sm,
        "PRODUCER_REGISTERS": PRODUCER_REGISTERS,
        "CONSUMER_REGISTERS": consumer_registers(config),
    }
    if config.promoted:
        kwargs["PROMOTED"] = True
    return TuningConfig.of(kwargs, num_warps=config.consumer_warps, num_stages=1, maxnreg=config.max_registers)


def config_of(tuning_config: TuningConfig) -> GemmConfig:
    """The inverse of :func:`tuning`; :class:`InvalidConfig` where a field is missing, of the wrong kind, or says other
    than what the launch would use (registers follow from the rest)."""
    given = dict(tuning_config.kwargs)
    for name, kind in _FIELDS.items():
        value = given.get(name)
        if type(value) is not kind or (kind is int and value < 1):  # type: ignore[operator]
            expected = {str: f"one of {', '.join(SCHEMES)}", int: "a whole number from 1 on", bool: "true or false"}
            raise _wrong(name, value, expected[kind])
    if given["SCHEME"] not in SCHEMES:
        raise _wrong("SCHEME", given["SCHEME"], f"one of {', '.join(SCHEMES)}")
    if tuning_config.num_warps not in (WARP_GROUP, 2 * WARP_GROUP):
        raise _wrong("num_warps", tuning_config.num_warps, "4 or 8")
    config = GemmConfig(
        given["SCHEME"],  # type: ignore[arg-type]
        int(given["BLOCK_M"]),
        int(given["BLOCK_N"]),
        int(given["BLOCK_K"]),
        tuning_config.num_warps,
        int(given["DEPTH"]),
        epilogue_split=int(given["EPILOGUE_SPLIT"]),
        staging="ring" if given["STAGING_IN_RING"] else "own",
        group_m=int(given["GROUP_M"]),
        ctas_per_sm=int(given["CTAS_PER_SM"]),
        promoted=given.get("PROMOTED") is True,
        cluster=tuning_config.num_ctas,
    )
    made = dict(tuning(config).kwargs)
    for name in sorted(made.keys() | given.keys()):
        if made.get(name) != given.get(name):
            raise _wrong(name, given.get(name), f"{made.get(name)!r} beside the rest")
    return config


def _wrong(field: str, value: object, expected: str) -> InvalidConfig:
    return InvalidConfig(
        f"grouped_gemm configuration: {field} is {value!r}, expected {expected}", field=field, value=value
    )
