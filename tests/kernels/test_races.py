"""What an explanation compares is, of every kernel, what its ranking predicts with."""

from dataclasses import replace

import numpy as np
import pytest

from warpplan.kernels import registry
from warpplan.planner.predict.alternatives import MEASURED_COLUMNS, flips
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.device import H200

ASKED = {
    "gemm": {"M": 300, "N": 4096, "K": 4096},
    "gemm fp8": {"M": 4096, "N": 4096, "K": 4096, "scales": "block"},
    "gemm_bias_act": {"M": 4096, "N": 4096, "K": 4096, "activation": "gelu", "bias": "yes"},
    "grouped_gemm": {"M": 8192, "N": 4096, "K": 4096, "G": 8},
    "attention_fwd": {"B": 4, "H": 16, "L": 4096, "D": 128},
    "attention_fwd fp8": {"B": 4, "H": 16, "L": 4096, "D": 128},
    "attention_bwd": {"B": 4, "H": 16, "L": 4096, "D": 128},
    "attention_decode": {"B": 4, "H": 32, "kv_heads": 8, "N": 8192, "D": 128},
}


@pytest.fixture(params=ASKED)
def asked(request):
    name = request.param
    kernel = registry.kernel(name.removesuffix(" fp8"))
    dtype = "float8_e4m3fn" if name.endswith("fp8") else "bfloat16"
    return kernel, kernel.parse_shape(ASKED[name], dtype), dtype


def test_a_loop_under_the_profiles_costs_is_the_rows_own(asked, profile):
    kernel, shape, dtype = asked
    race = kernel.race(shape, dtype, H200, profile)
    for row in range(len(race.names)):
        columns = race.loop(row, profile.costs)
        assert set(columns) == set(MEASURED_COLUMNS)
        assert columns == {name: pytest.approx(getattr(race.work, name)[row]) for name in columns}


def test_slower_loads_change_what_a_loop_takes(asked, profile):
    kernel, shape, dtype = asked
    race = kernel.race(shape, dtype, H200, profile)

    def slow(entry):
        if entry.kind != "tma_load" or entry.cost.latency is None:
            return entry
        latency = replace(entry.cost.latency, p50=3 * entry.cost.latency.p50, p90=3 * entry.cost.latency.p90)
        return replace(entry, cost=replace(entry.cost, latency=latency))

    costs = CostTable(tuple(map(slow, profile.costs.entries)))
    slower, before = race.loop(0, costs), race.loop(0, profile.costs)
    assert slower["prologue_cycles"] > before["prologue_cycles"]
    work = replace(race.work, **{name: np.array([slower[name]] * len(race.names)) for name in slower})
    assert race.times(work, profile)[0] > race.times(race.work, profile)[0]


def test_measured_numbers_that_would_change_a_choice_are_looked_for(asked, profile):
    kernel, shape, dtype = asked
    found = flips(kernel.race(shape, dtype, H200, profile), progress=lambda examined, _: examined < 2)
    assert found.examined == 2
    assert found.numbers > 2
