"""Fit the time model of the kernels that training runs, and store it in the embedded profile.

    python benchmarks/fit_kernels.py

It sees the training rows of the raw tables alone. A calibration that the profile has stays where a new one makes no
better first choices on them. Each calibration begins at a wider one and is drawn to it, so that a dozen rows suffice:
that of fp8 at that of 16 bits, that of another kernel at gemm's. What power costs is then taken from the settled
readings of an H100, whose SMs and L2 are the same, wherever the card's own rows, too few or too short to show it, do
not speak against it. A card without raw tables has the H200's calibrations, changed by what the settled readings of
``bench_power.py`` show of it; gemm's is then fitted anew where the first candidates of many shapes were timed
(``bench_gemm_many.py``), as that of the H200 is by ``fit_gemm.py``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from bench_target import CARD, TARGET
from kernel_cases.bench_rows import BenchRow
from kernel_cases.grouped_case import group_sizes
from kernel_estimates import power_limited
from kernel_tables import SearchedRow, exhaustive_path, power_path, read_exhaustive, read_many, read_sustained
from results_file import RESULTS, head, write
from row_work import WorkOf, device_work
from settled_fit import (
    ORDERED,
    fit_settled,
    own_readings,
    settled_elsewhere,
    with_constants,
    write_later_regrets,
)
from time_statistics import geomean

from warpplan.kernels.gemm.kernel import EARLY_BESIDE_US, EARLY_US
from warpplan.kernels.gemm.space import config_of, tuning
from warpplan.planner.predict.time_model import GLOBAL_DEFAULTS, Rates, terms
from warpplan.planner.values.profile import Calibration, Profile
from warpplan.planner.values.tuning import TuningConfig
from warpplan.profiler import recalibrate
from warpplan.profiler.fit import MeasuredShape, fit
from warpplan.profiler.profile_files import load, save

PROFILE = Path(__file__).parents[1] / "profiler" / "data" / f"{TARGET.name.lower().replace(' ', '_')}.json"


@dataclass(frozen=True)
class Fitted:
    """A calibration: its name, that of the wider one it begins at, its raw table, and which rows of the table count."""

    name: str
    prior: str
    table: str
    options: tuple[tuple[str, str], ...] = ()

    def counts(self, row: BenchRow) -> bool:
        return row.split == "train" and all(row.option(name) == value for name, value in self.options)


FITTED = (
    Fitted("gemm fp8", "gemm", "gemm_fp8"),
    Fitted("gemm_bias_act", "gemm", "gemm_bias_act"),
    Fitted("grouped_gemm", "gemm", "grouped_gemm"),
    Fitted("grouped_gemm fp8", "grouped_gemm", "grouped_gemm_fp8"),
    Fitted("attention_fwd", "gemm", "attention_fwd"),
    Fitted("attention_fwd fp8", "attention_fwd", "attention_fp8"),
    Fitted("attention_decode", "gemm", "attention_decode"),
    Fitted("attention_bwd", "gemm", "attention_bwd"),
)
"""What the kernels look up, in the order in which it is fitted: a prior comes before what begins at it."""
VARIANTS = (
    Fitted("gemm nn", "gemm", "gemm_layouts", (("layout", "nn"),)),
    Fitted("gemm tn", "gemm", "gemm_layouts", (("layout", "tn"),)),
    Fitted("grouped_gemm forward", "grouped_gemm", "grouped_gemm", (("product", "forward"),)),
    Fitted("grouped_gemm dgrad", "grouped_gemm", "grouped_gemm", (("product", "dgrad"),)),
    Fitted("grouped_gemm wgrad", "grouped_gemm", "grouped_gemm", (("product", "wgrad"),)),
    Fitted("attention_fwd packed", "attention_fwd", "attention_packed"),
)
"""What calibrations of their own would gain for layouts, products and packed sequences: printed, not stored."""


MANY = ("_before", "_training", "_tiles", "", "_changed")
"""Files of ``bench_gemm_many.py`` that gemm is fitted anew to: what was read before that, training rows that were read
again while it was, for the first choices of constants between, training rows with the best of each tile, the newest
run's, and rows whose first choice had changed since."""
EARLY_LAUNCHES, FASTER_SPLITS = "2026-11-27T14:00:00Z", "2026-11-27T06:20:00Z"
"""When kernels began to be launched before the one ahead of them has ended, and when split tiles began to be added as
today. What was read before tells nothing of short launches and of kernels of one partition, or of splits."""
GROUP_STEPS = "2026-11-27T23:25:00Z"
"""When wgrad began to leave out the steps of a group's last K block that have none of its rows."""


EARLY = f"early_launch_{CARD}.json"
"""Rows of ``bench_early_launch.py``: what letting the next launch begin early saves or costs, and what kernels of one
partition take that are launched early."""
SAVED, SCATTERED = "early_launch_us", "scatter_l2"
LAUNCHING = ("gemm fp8", "gemm_bias_act")
"""Calibrations of kernels that let the next launch begin early and split K as gemm does: what that saves and costs is
gemm's."""
LEAST_K_BLOCK = 64
"""Elements: a K block of the narrowest."""
UNREAD = ("gemm fp8",)
"""Calibrations whose settled rows lack what the other card's constants would choose first: such rows cannot tell what
it would cost. (Of fp8 these are tiles of 256x192 and 128x256.)"""
SPLITTING = ("gemm", "gemm_bias_act")
"""Kernels whose plans may split K. The raw tables hold splits of former kernels, so only whole plans of them count."""
SPLIT = ("split_us", "split_scale", "split_trip_us", "stream_l2")
"""What a split of K costs: gemm's calibration has it from ``splits_<card>.json`` and the newest of :data:`MANY`."""
ENERGY = ("energy_l2", "energy_dram")
"""What a shape's first candidates, which read about as much through L2, say nothing of: fitted to them, L2's share of
the power fell to nothing, and many shapes that power limits got tiles of 128x128, which read a third more."""
NARROW, NARROW_SCALE, LEAST_NARROW = "narrow_scale", 3.0, 10
"""What boxes with rows of part of a cache line cost more in L2: the H100's, as fitted to 388 training shapes, stands
where a card's training rows have fewer shapes with such boxes. The H200's have one."""


def calibrated(profile: Profile, table: Sequence[SearchedRow], fitted: Fitted, source: str, work_of: WorkOf) -> Profile:
    """``profile`` with this calibration, fitted to the rows of ``table`` that count. Raises ``ValueError`` for none."""
    rows = [m for m in table if fitted.counts(m.row)]
    if not rows:
        raise ValueError(f"{source} has no training row for {fitted.name}")
    measured = [MeasuredShape(m.row.shape, work_of(m.row, m.configs, profile), m.time_us) for m in rows]
    calibration = fit(
        fitted.name, measured, Rates.of(profile, rows[0].row.dtype), source, prior=profile.calibration(fitted.prior),
        held=SPLIT if rows[0].row.kernel in SPLITTING else (),
    )  # fmt: skip
    others = tuple(c for c in profile.calibrations if c.kernel != fitted.name)
    return replace(profile, calibrations=(*others, calibration))


def errors(
    profile: Profile, table: Sequence[SearchedRow], fitted: Fitted, name: str, work_of: WorkOf
) -> tuple[float, float]:
    """How well the calibration called ``name`` does on the rows that ``fitted`` is fitted to: the first choice's regret
    and the median error."""
    calibration = profile.calibration(name)
    constants = dict(calibration.constants) if calibration else {}
    regrets, wrong = [], []
    for m in (m for m in table if fitted.counts(m.row)):
        predicted = terms(work_of(m.row, m.configs, profile), Rates.of(profile, m.row.dtype), constants)[1]
        regrets.append(m.time_us[np.argmin(predicted)] / m.time_us.min())
        wrong.append(np.median(np.abs(predicted / m.time_us - 1)))
    return geomean(regrets) - 1, float(np.median(wrong))


def fit_tables(profile: Profile, tables: Path, variants: bool) -> Profile:
    """``profile`` with every calibration of :data:`FITTED` whose raw table is there (:func:`better`); those of
    :data:`VARIANTS` are printed and left out."""
    for fitted in (*FITTED, *VARIANTS) if variants else FITTED:
        path = exhaustive_path(tables, fitted.table)
        if path.exists():
            found = better(profile, searched(path), fitted, f"benchmarks/results/{path.name}")
            profile = found if fitted in FITTED else profile
    return profile


def better(profile: Profile, table: Sequence[SearchedRow], fitted: Fitted, source: str) -> Profile:
    """``profile`` with the calibration anew where that makes better first choices on the rows it is fitted to, else
    with the one it has: what the wider calibration gained may cost those that begin at it."""
    made = calibrated(profile, table, fitted, source, device_work)
    known = profile.calibration(fitted.name)
    found = {"prior": errors(profile, table, fitted, fitted.prior, device_work)}
    found |= {"known": errors(profile, table, fitted, fitted.name, device_work)} if known else {}
    found |= {"made": errors(made, table, fitted, fitted.name, device_work)}
    texts = (f"{which} {regret:.2%} off the best, times {error:.1%}" for which, (regret, error) in found.items())
    print(f"{fitted.name}: {'; '.join(texts)}", flush=True)
    return made if known is None or found["made"][0] < found["known"][0] else profile


def launched_as_gemm(profile: Profile) -> Profile:
    """``profile`` with gemm's constants of early launches and of splits in the calibrations :data:`LAUNCHING`."""
    gemm = profile.calibration("gemm")
    assert gemm is not None
    constants = {name: dict(gemm.constants).get(name, GLOBAL_DEFAULTS[name]) for name in (SAVED, SCATTERED, *SPLIT)}
    for known in map(profile.calibration, LAUNCHING):
        if known is not None:
            profile = recalibrate.with_calibration(profile, with_constants(known, constants))
    return profile


def own_rows(name: str, tables: Path) -> list[SearchedRow]:
    """The training rows of a calibration's table that power limits, as they were read on the card itself: the settled
    readings, and where there are none, or :data:`UNREAD` ones, those in turn."""
    table = ORDERED[name][0]
    if name not in UNREAD and (path := power_path(tables)).exists() and (settled := read_sustained(path, table)):
        return [row for row in settled if row.row.split == "train"]
    rows = searched(exhaustive_path(tables, table))
    if name == "gemm":
        paths = [path for when in MANY if (path := tables / f"gemm_many_{CARD}{when}.json").exists()]
        rows += read_many(*paths, counts=launched_as_today)
    return [row for row in rows if row.configs and row.row.split == "train" and power_limited(row.row)]


def fit_many(profile: Profile, tables: Path, broad: Sequence[SearchedRow]) -> Profile:
    """``profile`` with gemm's calibration fitted anew to the training rows of :data:`MANY`, of splits of K and of
    :data:`EARLY` that the folder ``tables`` has, and to ``broad``, which keep it what it is elsewhere; ``profile``
    itself where it has none. Writes ``gemm_many_fit_<card>.json``: errors and regrets before and after; ``left_out`` is
    of training rows by constants that were fitted without them. Held-out rows are judged, never fitted to."""
    paths = [path for when in MANY if (path := tables / f"gemm_many_{CARD}{when}.json").exists()]
    if not paths:
        return profile
    paths += [path for path in (tables / EARLY, tables / f"splits_{CARD}.json") if path.exists()]
    rates = Rates.of(profile, "bfloat16")

    def measured(rows: Sequence[SearchedRow], split: str) -> list[MeasuredShape]:
        return [
            MeasuredShape(m.row.shape, device_work(m.row, m.configs, profile), m.time_us)
            for m in rows
            if m.row.split == split
        ]

    def fitted(shapes: Sequence[MeasuredShape]) -> Calibration:
        held = (*ENERGY, *([SAVED] if early else []), *([NARROW] if few_narrow else []))
        read = ", ".join(path.name for path in paths)
        source = f"{prior.source}; fitted anew to benchmarks/results/{read}"
        shrinkage = recalibrate.RESIDUAL_SHRINKAGE
        return fit("gemm", [*shapes, *kept], rates, source, prior=prior, shrinkage=shrinkage, held=held)

    def missed(shapes: Sequence[MeasuredShape], calibration: Calibration) -> list[tuple[float, float]]:
        return [recalibrate.missed(m, rates, dict(calibration.constants)) for m in shapes]

    prior = profile.calibration("gemm")
    assert prior is not None
    if early := [path for path in paths if path.name == EARLY]:
        prior = with_constants(prior, {SAVED: saved_us(read_many(*early), profile)})
    rows = [row for row in read_many(*paths, counts=launched_as_today) if row.configs]
    few_narrow = sum(bool(m.work.narrow.any()) for m in measured(rows, "train")) < LEAST_NARROW
    if few_narrow:
        prior = with_constants(prior, {NARROW: NARROW_SCALE})
    kept = measured(broad, "train")
    training, heldout = measured(rows, "train"), measured(rows, "heldout")
    left_out = [one for others, held in recalibrate.folds(training) for one in missed(held, fitted(others))]
    made = fitted(training)
    summaries = {
        "training": {"before": missed(training, prior), "left_out": left_out, "after": missed(training, made)},
        "heldout": {"before": missed(heldout, prior), "after": missed(heldout, made)},
    }
    found = {
        split: {"rows": len(training if split == "training" else heldout)}
        | {when: asdict(recalibrate.summed_up(values)) for when, values in of_split.items()}
        for split, of_split in summaries.items()
    }
    print(found)
    write(tables / f"gemm_many_fit_{CARD}.json", {**head("gemm_many_fit", TARGET.name), **found})
    return recalibrate.with_calibration(profile, made)


def saved_us(table: Sequence[SearchedRow], profile: Profile) -> float:
    """What early launches save, in µs: the median over training shapes of which all CTAs find room beside the launch
    before. Times of launches, most of which are early, would show their difference less well than their level."""
    saved = []
    for found in table:
        times = dict(zip(found.configs, found.time_us, strict=True))
        room = device_work(found.row, found.configs, profile).early_part
        for config, beside in zip(found.configs, room, strict=True):
            if found.row.split == "train" and config_of(config).launch_dependents and beside == 1:
                waiting = tuning(replace(config_of(config), launch_dependents=False))
                saved += [times[waiting] - times[config]] if waiting in times else []
    return float(np.median(saved))


def launched_as_today(date: str, config: TuningConfig, us: float) -> bool:
    """Whether ``us``, read on ``date``, is what a kernel takes now that ranking may propose as ``config`` says."""
    candidate = config_of(config)
    if date < EARLY_LAUNCHES and (us < EARLY_US or not candidate.specialized):
        return False
    if candidate.launch_dependents and us > EARLY_BESIDE_US:
        return False
    return candidate.split == "none" or date >= FASTER_SPLITS


def searched(path: Path) -> list[SearchedRow]:
    """The rows of a raw table as today's kernels take them: no splits of K, and no wgrad of groups that end inside of a
    K block, where that was read before :data:`GROUP_STEPS`."""
    former = json.loads(path.read_text())["date"] < GROUP_STEPS
    return [found for found in whole(read_exhaustive(path)) if not (former and ends_inside_blocks(found.row))]


def ends_inside_blocks(row: BenchRow) -> bool:
    """Whether the rows that wgrad sums over are no whole K blocks in some group."""
    if row.kernel != "grouped_gemm" or row.option("product") != "wgrad":
        return False
    return any(size % LEAST_K_BLOCK for size in group_sizes(row))


def whole(table: Sequence[SearchedRow]) -> list[SearchedRow]:
    """The rows with the candidates that leave K whole, where there are any."""
    rows = [unsplit(found) if found.row.kernel in SPLITTING else found for found in table]
    return [found for found in rows if found.configs]


def unsplit(found: SearchedRow) -> SearchedRow:
    """The candidates of a row that leave K whole."""
    kept = [i for i, config in enumerate(found.configs) if config_of(config).split == "none"]
    return replace(found, configs=tuple(found.configs[i] for i in kept), time_us=found.time_us[kept])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, default=RESULTS, help="folder of the raw tables")
    parser.add_argument("--profile", type=Path, default=PROFILE)
    parser.add_argument("--variants", action="store_true", help="print too what calibrations of variants would gain")
    arguments = parser.parse_args()
    profile = load(arguments.profile)
    if all(exhaustive_path(arguments.tables, fitted.table).exists() for fitted in FITTED):
        kept = fit_tables(own_readings(profile, arguments.tables), arguments.tables, arguments.variants)
        kept = settled_elsewhere(launched_as_gemm(kept), arguments.tables, partial(own_rows, tables=arguments.tables))
    else:
        settled = power_path(arguments.tables)
        kept = fit_settled(profile, settled)
        kept = fit_many(kept, arguments.tables, read_sustained(settled, *ORDERED["gemm"]))
        if (later := settled.with_stem(f"{settled.stem}_later")).exists():
            write_later_regrets(later, launched_as_gemm(kept))
    save(launched_as_gemm(kept), arguments.profile)


if __name__ == "__main__":
    main()
