"""What the configurations of a row of the kernels' tables ask of the device, as each kernel's own planning has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench_target import TARGET
from kernel_cases.bench_rows import BenchRow

from warpplan.planner.predict.time_model import DeviceWork
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig

WorkOf = Callable[[BenchRow, Sequence[TuningConfig], Profile], DeviceWork]


def device_work(row: BenchRow, configs: Sequence[TuningConfig], profile: Profile) -> DeviceWork:
    """What each of ``configs`` asks of the device for ``row``, as the kernel's own planning has it."""
    return WORK[row.kernel](row, configs, profile)


def _gemm_work(row: BenchRow, configs: Sequence[TuningConfig], profile: Profile) -> DeviceWork:
    from warpplan.kernels.gemm.candidates import tabulate
    from warpplan.kernels.gemm.space import config_of
    from warpplan.kernels.gemm.work import solve_table, work

    table = tabulate([config_of(config) for config in configs], [0] * len(configs), TARGET)
    layout = {"layout": row.option("layout")} if "layout" in dict(row.options) else {}
    return work(solve_table(row.dtype, TARGET, profile.costs, table), row.dtype, TARGET, row.sizes, **layout)[0]


def _grouped_work(row: BenchRow, configs: Sequence[TuningConfig], profile: Profile) -> DeviceWork:
    from warpplan.kernels.gemm.candidates import tabulate
    from warpplan.kernels.gemm.work import solve_table
    from warpplan.kernels.grouped_gemm.kernel import grouped_shape
    from warpplan.kernels.grouped_gemm.space import config_of
    from warpplan.kernels.grouped_gemm.work import work

    table = tabulate([config_of(config) for config in configs], [0] * len(configs), TARGET)
    solved = solve_table(row.dtype, TARGET, profile.costs, table)
    found: DeviceWork = work(solved, row.dtype, TARGET, grouped_shape(row.shape))[0]
    return found


def _fused_work(row: BenchRow, configs: Sequence[TuningConfig], profile: Profile) -> DeviceWork:
    from warpplan.kernels.gemm.candidates import tabulate
    from warpplan.kernels.gemm.space import config_of
    from warpplan.kernels.gemm_bias_act.kernel import GemmBiasAct

    kernel = GemmBiasAct()
    table = tabulate([config_of(config) for config in configs], [0] * len(configs), TARGET)
    solved = kernel.solve(table, row.shape, row.dtype, TARGET, profile.costs)
    found: DeviceWork = kernel.work(solved, row.shape, row.dtype, TARGET)[0]
    return found


def _attention_work(row: BenchRow, configs: Sequence[TuningConfig], profile: Profile) -> DeviceWork:
    from warpplan.kernels.attention_fwd.kernel import attention_shape
    from warpplan.kernels.attention_fwd.space import config_of
    from warpplan.kernels.attention_fwd.work import work

    asked = attention_shape(row.shape)
    found: DeviceWork = work([config_of(config) for config in configs], asked, row.dtype, TARGET, profile)
    return found


def _decode_work(row: BenchRow, configs: Sequence[TuningConfig], profile: Profile) -> DeviceWork:
    from warpplan.kernels.attention_decode.kernel import decode_shape
    from warpplan.kernels.attention_decode.space import config_of
    from warpplan.kernels.attention_decode.work import work

    found: DeviceWork = work(
        [config_of(config) for config in configs], decode_shape(row.shape), row.dtype, TARGET, profile
    )
    return found


def _backward_work(row: BenchRow, configs: Sequence[TuningConfig], profile: Profile) -> DeviceWork:
    from warpplan.kernels.attention_bwd.kernel import AttentionBwd

    _, (found,) = AttentionBwd().device_works(configs, [row.shape], row.dtype, TARGET, profile)
    return found


WORK: dict[str, WorkOf] = {
    "gemm": _gemm_work, "grouped_gemm": _grouped_work, "gemm_bias_act": _fused_work, "attention_fwd": _attention_work,
    "attention_decode": _decode_work,
    "attention_bwd": _backward_work,
}  # fmt: skip
