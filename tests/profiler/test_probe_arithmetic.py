"""What probes make of cycle counts, with an invented GPU in place of a launch: known costs in, the same costs out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the probes' modules hold Gluon source")

from warpplan.profiler.probes import arithmetic, gather, loads, mma, tiles, tma, wgmma, widening
from warpplan.profiler.probes.harness.cases import Case
from warpplan.profiler.probes.harness.sampling import REPETITIONS, ceiling, quantiles, slope
from warpplan.profiler.probes.points import ACTIVATIONS, FAMILIES, WIDENED_COLUMNS, Point

CLOCK, LOOP = 11.0, 40.0


class FakeLive:
    def __init__(self, case: Case) -> None:
        self.case = case


@pytest.fixture
def invented(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every launch takes the cycles that these formulas say; samples are constant."""

    def sample(live: FakeLive, columns: int = 1, *, inner: int = 0, **_: Any) -> np.ndarray:
        constants: dict[str, Any] = dict(live.case.constants)
        kernel = live.case.kernel.__name__
        if columns in (2, 3):
            return np.tile([CLOCK, *([CLOCK + 50.0] if columns == 3 else []), CLOCK + 700.0], (8, 1))
        if kernel in ("load_rate", "store_rate"):
            cycles = inner * constants.get("GROUP", 1) * 128.0
        elif kernel == "mma":
            cycles = LOOP + inner * constants["CHAIN"] * 33.0 + (25.0 if inner else 0.0)
        elif kernel == "widening":
            each = 4.0 if constants["FROM"] == widening.KEPT else 4.0 + 48.0
            cycles = LOOP + inner * constants["UNROLL"] * each + (25.0 if inner else 0.0)
        elif kernel == "gather_rate":
            cycles = 900.0 + inner * 128.0
        elif kernel == "chain":
            groups = live.case.num_warps // 4
            cycles = 300.0 + inner * constants["CHAIN"] * wgmma.PER_GROUP * groups * 64.0
        else:
            renew, op = 20.0, {"exp2": 100.0, "row_max": 30.0, "row_sum": 35.0, "convert": 15.0, "convert_fp8": 18.0}
            op |= {"epilogue_fenced": 90.0, "epilogue_store": 70.0, "promote": 25.0, "pack_fp8": 16.0}
            op |= dict.fromkeys(ACTIVATIONS, 80.0 + op["convert"])
            operation = "promote" if kernel == "promotion" else constants.get("OPERATION", kernel)
            each = op["exp2"] if operation == "exp2" else renew + op.get(operation, 0.0)
            each = 55.0 if kernel in ("shared_load", "shared_store", "ldmatrix", "ragged_store") else each
            repeats = constants.get("UNROLL", tiles.STORES if operation in ("epilogue_store", "shared_store") else 1)
            cycles = LOOP + inner * repeats * each + (25.0 if inner else 0.0)
        return np.full((8, 1), cycles)

    monkeypatch.setattr(Case, "live", lambda case: FakeLive(case))
    for module in (tma, wgmma, arithmetic, gather, loads):
        monkeypatch.setattr(module, "sample", sample)
    for module in (tma, gather, loads):
        monkeypatch.setattr(module, "flush_l2", lambda: None)


def _costs(module: Any, kind: str, **parameters: Any) -> dict[str, float | None]:
    (record,) = module.measure(Point.of(kind, **parameters))
    assert record["parameters"] == parameters
    return {part: q and q["p50"] for part, q in record["cost"].items()}


@pytest.mark.usefixtures("invented")
@pytest.mark.parametrize(
    ("kind", "parameters"),
    [("tma_load", {"bytes": 4096, "source": "l2"}), ("tma_load", {"bytes": 32768, "source": "dram"}),
     ("tma_store", {"bytes": 8192}), ("gather_load", {"bytes": 8192, "source": "dram"}),
     ("global_load", {"bytes": 512, "source": "dram"})],
)  # fmt: skip
def test_copies(kind: str, parameters: dict[str, Any]) -> None:
    module = {"gather_load": gather, "global_load": loads}.get(kind, tma)
    assert _costs(module, kind, **parameters) == {
        "latency": 700.0,
        "occupancy": None if module is loads else 128.0,
        "issue": None if module is loads else 50.0,
    }


@pytest.mark.usefixtures("invented")
def test_wgmma_latency_is_of_one_instruction_and_occupancy_has_no_start_up() -> None:
    found = _costs(wgmma, "wgmma", n=128, dtype="bfloat16", a="shared")
    assert found == {"latency": 700.0 - 3 * 64.0, "occupancy": 64.0, "issue": 12.5}
    assert _costs(wgmma, "wgmma_two_groups", n=128, dtype="bfloat16", a="shared")["occupancy"] == 64.0


@pytest.mark.usefixtures("invented")
@pytest.mark.parametrize("elements", [1024, 16384])
def test_the_renewing_multiply_is_taken_off(elements: int) -> None:
    assert _costs(arithmetic, "row_max", elements=elements)["occupancy"] == pytest.approx(30.0)
    assert _costs(arithmetic, "exp2", elements=elements)["occupancy"] == pytest.approx(100.0)
    assert _costs(arithmetic, "elementwise", elements=elements) == pytest.approx(
        {"latency": 45.0, "occupancy": 20.0, "issue": 20.0}
    )


@pytest.mark.usefixtures("invented")
def test_renewal_and_rounding_are_taken_off_an_activation_and_nothing_off_a_promotion() -> None:
    silu = _costs(arithmetic, "activation", function="silu", elements=4096)
    assert silu["occupancy"] == pytest.approx(80.0)
    assert _costs(arithmetic, "promote", elements=4096)["occupancy"] == pytest.approx(20.0 + 25.0)


@pytest.mark.usefixtures("invented")
def test_a_step_of_mma_has_no_start_up_and_its_operands_read_counts_whole() -> None:
    assert _costs(mma, "mma", n=64, dtype="float16") == {"latency": None, "occupancy": 33.0, "issue": 33.0}
    assert _costs(mma, "ldmatrix", bytes=8192) == {"latency": 80.0, "occupancy": 55.0, "issue": 55.0}


@pytest.mark.usefixtures("invented")
def test_the_fold_is_taken_off_a_conversion() -> None:
    found = _costs(widening, "widen_fp8_float16", elements=4096)
    assert (found["occupancy"], found["issue"]) == (48.0, 48.0)
    assert found["latency"] == 48.0


@pytest.mark.usefixtures("invented")
def test_the_epilogues_fence_counts_in_latency_and_issue_alone() -> None:
    assert _costs(tiles, "epilogue_store", elements=8192) == pytest.approx(
        {"latency": 90.0, "occupancy": 70.0, "issue": 90.0}
    )


@pytest.mark.usefixtures("invented")
def test_shared_memory() -> None:
    assert _costs(tiles, "shared_load", bytes=8192) == {"latency": 80.0, "occupancy": 55.0, "issue": 55.0}
    assert _costs(tiles, "shared_store", bytes=8192) == {"latency": None, "occupancy": 55.0, "issue": 55.0}
    assert _costs(tiles, "ragged_store", elements=8192) == {"latency": 80.0, "occupancy": 55.0, "issue": 55.0}


@pytest.mark.usefixtures("invented")
@pytest.mark.parametrize(
    ("module", "family"),
    [
        (tma, "tma"),
        (wgmma, "wgmma"),
        (mma, "mma"),
        (tiles, "shared"),
        (arithmetic, "registers"),
        (widening, "widening"),
        (loads, "loads"),
        (gather, "gather"),
    ],
)
def test_every_point_gives_its_entry(module: Any, family: str) -> None:
    for point in FAMILIES[family]:
        (record,) = module.measure(point)
        assert (record["kind"], tuple(sorted(record["parameters"].items()))) == (point.kind, point.parameters)
        assert record["cost"]["latency" if module is loads else "occupancy"]["p50"] > 0


def test_a_load_rate_never_reads_a_dram_box_twice() -> None:
    box = 32768
    total = tma.boxes(box, tma.DRAM_ROWS)
    assert total & (total - 1) == 0
    starts = sorted(pid * (total // 128) % total for pid in range(0, 132, 33))
    gaps = [b - a for a, b in zip(starts, [*starts[1:], total + starts[0]], strict=True)]
    assert min(gaps) > 48 * tma.INNER + 6


@pytest.mark.parametrize("point", [p for p in FAMILIES["gather"] if p.text("source") == "dram"], ids=lambda p: p.label)
def test_gathers_from_dram_never_copy_a_box_twice(point: Point) -> None:
    numbers = gather.indexing(point)
    boxes = (numbers["mask"] + 1) // (point.number("bytes") // 128)
    walked = {(pid * numbers["spread"] + r) % boxes for pid in range(0, 132, 33) for r in range(REPETITIONS)}
    assert len(walked) == 4 * REPETITIONS
    assert gather.LONG <= gather.MATRIX_COLUMNS // gather.BOX_COLUMNS


@pytest.mark.parametrize("point", FAMILIES["loads"], ids=lambda p: p.label)
def test_loads_of_two_blocks_share_no_line(point: Point) -> None:
    (case,) = loads.cases(point)
    (elements,) = (a.elements for name, a in case.arguments if name == "data")
    assert 4 * elements >= 160 * REPETITIONS * max(point.number("bytes"), loads.LINE_BYTES)


@pytest.mark.parametrize("columns", WIDENED_COLUMNS)
def test_what_is_taken_off_a_conversion_undoes_itself(columns: int) -> None:
    _, kept = widening.cases(Point.of("widen_fp8_float16", elements=64 * columns))
    assert dict(kept.constants)["UNROLL"] % 2 == 0


def test_statistics() -> None:
    q = quantiles(np.array([1.0, 2.0, 3.0, 4.0, -9.0]))
    assert (q.p50, q.count) == (2.0, 5)
    assert quantiles(np.array([-3.0])).p50 == 0.0
    assert slope(np.array([110.0, 130.0]), np.array([10.0, 10.0]), 4.0).tolist() == [25.0, 30.0]
    assert ceiling("launch_us", [1.0, 2.0, 3.0])["rate"] == {"p50": 2.0, "p10": 1.2, "p90": 2.8, "count": 3}
