"""What settled readings show of a card, in the calibrations of the kernels that multiply tiles.

A card that draws its power limit lowers its clock over tenths of a second, so that readings of some milliseconds in
turn hide what a plan draws; ``bench_power.py`` reads each candidate until that has settled. A card without raw tables
has the H200's calibrations, changed by its own settled readings (:func:`fit_settled`); the H200 takes what power costs
from the H100's, where its own, of few shapes, do not speak against it (:func:`settled_elsewhere`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import card_constants
from bench_target import CARD, TARGET
from card_constants import CardConstants, SettledRow
from kernel_tables import SearchedRow, read_sustained
from results_file import head, write
from row_work import device_work
from time_statistics import geomean

from warpplan.kernels.gemm.work import RESIDUAL, calibrated_constants, relatives
from warpplan.planner.predict.time_model import LAUNCHES, Rates
from warpplan.planner.values.device import H200
from warpplan.planner.values.profile import Calibration, Profile
from warpplan.profiler import recalibrate
from warpplan.profiler.embedded import embedded

ORDERED = {
    "gemm": ("gemm_layouts", "gemm_many"), "gemm fp8": ("gemm_fp8",), "gemm_bias_act": ("gemm_bias_act",),
    "grouped_gemm": ("grouped_gemm",), "grouped_gemm fp8": ("grouped_gemm_fp8",),
}  # fmt: skip
"""Calibrations of kernels that multiply tiles in an order, and the tables whose rows they predict: the constants are
the card's, not the kernel's."""
REGRETS = ("regret_without", "regret_with", "regret_left_out")
"""By the H200's constants alone, by the card's, and by those fitted without the row."""
SETTLED, SETTLED_CARD = "power_h100.json", "NVIDIA H100 80GB HBM3"
"""Settled readings, and the card that they were read on. Of 37 training shapes of an H200 that power limits, and of 191
of an H100, readings of 90 ms in turn show next to no energy of L2 (``energy_l2`` fitted to 0.1 and 0.0), because each
candidate runs at a clock that its neighbours have set; settled ones of the H100 show 0.39."""
POWER_SOURCE = f"what power costs: benchmarks/results/{SETTLED}"
TAKEN = "card_constants_h200.json"
"""What :func:`settled_elsewhere` has changed of the H200's calibrations."""


def read_settled(profile: Profile, path: Path, base: Profile) -> list[SettledRow]:
    """Every row of ``path`` of a kernel in :data:`ORDERED`, read on the card of ``profile``, with the calibrations of
    ``base``."""
    found = [(name, row) for name, tables in ORDERED.items() for row in read_sustained(path, *tables)]
    return [settled_row(name, row, profile, base) for name, row in found]


def settled_row(name: str, found: SearchedRow, profile: Profile, base: Profile) -> SettledRow:
    """A row that was read on the card of ``profile``, with the calibration of ``base`` called ``name``."""
    work = device_work(found.row, found.configs, profile)
    known = calibrated_constants(base, (name,), work.structures)
    constants = {**{RESIDUAL + structure: 0.0 for structure in work.structures}, **known}
    return SettledRow(name, constants, found, work, Rates.of(profile, found.row.dtype))


def settled_elsewhere(profile: Profile, tables: Path, own_rows: Callable[[str], Sequence[SearchedRow]]) -> Profile:
    """``profile``, of the card's own readings alone, with what power costs by the settled readings :data:`SETTLED` of
    another card in those calibrations of :data:`ORDERED` where that makes no worse first choices on the card's
    own training rows that power limits (``own_rows`` of a calibration's name); how much power there is, these show.
    Writes what was changed to :data:`TAKEN`."""
    rows = read_settled(embedded(SETTLED_CARD), tables / SETTLED, profile)
    card = card_constants.fitted([row for row in rows if row.found.row.split == "train"])
    taken: dict[str, float] = {}
    judged = []
    for known in [c for c in profile.calibrations if c.kernel in ORDERED]:
        own = [settled_row(known.kernel, row, profile, profile) for row in own_rows(known.kernel)]
        here = card_constants.with_power(own, card)
        before, after = (geomean([1.0 + row.regret(c) for row in own]) - 1.0 for c in (CardConstants(), here))
        judged.append({
            "kernel": known.kernel, "rows": len(own), "regret_without": round(before, 4), "regret_with": round(after, 4)
        })  # fmt: skip
        if after <= before + recalibrate.REGRET_NOISE:
            taken[known.kernel] = here.power_factor
            constants = here.of_structures(here.applied(dict(known.constants)))
            source = f"{known.source}; {POWER_SOURCE}"
            profile = recalibrate.with_calibration(profile, with_constants(replace(known, source=source), constants))
    print(judged)
    written = {"constants": asdict(card), "power_factors": taken, "rows": sorted(judged, key=lambda j: j["kernel"])}
    write(tables / TAKEN, {**head("card_constants", H200.name), **written})
    return profile


def own_readings(profile: Profile, tables: Path) -> Profile:
    """An H200's ``profile`` as it was before :func:`settled_elsewhere`."""
    recorded = json.loads((tables / TAKEN).read_text()) if (tables / TAKEN).exists() else {"power_factors": {}}
    for known in [c for c in profile.calibrations if c.source.endswith(POWER_SOURCE)]:
        factor = recorded["power_factors"][known.kernel]
        card = CardConstants(**{**recorded["constants"], "power_factor": factor})
        rounded = {name: float(f"{value:.6g}") for name, value in card.undone(dict(known.constants)).items()}
        source = known.source.removesuffix(f"; {POWER_SOURCE}")
        before = replace(known, source=source, constants=tuple(sorted(rounded.items())))
        profile = recalibrate.with_calibration(profile, before)
    return profile


def fit_settled(profile: Profile, path: Path) -> Profile:
    """``profile`` with the H200's calibrations, changed by what ``path``'s training rows show of this card."""
    base = own_readings(embedded(H200.name), path.parent)
    transferred = {c.kernel: replace(c, source=f"{c.source}, recorded on an {H200.name}") for c in base.calibrations}
    rows = read_settled(profile, path, base)
    card = card_constants.fitted([row for row in rows if row.found.row.split == "train"])
    print(card)
    for name in (*ORDERED, LAUNCHES):
        old = transferred[name]
        known = dict(old.constants)
        for block in card.blocks:
            # A block that the H200's rows lack has its residual from this card alone.
            if not any(relatives(n) == RESIDUAL + block for n in known):
                known |= dict.fromkeys(structures_of(rows, name, block), 0.0)
        constants = {n: float(f"{value:.6g}") for n, value in card.of_structures(card.applied(known)).items()}
        source = f"{old.source}; the card's constants of benchmarks/results/{path.name}"
        transferred[name] = replace(old, constants=tuple(sorted(constants.items())), source=source)
    write_card_regrets(path, rows, card)
    return replace(profile, calibrations=tuple(transferred.values()))


def structures_of(rows: Sequence[SettledRow], calibration: str, block: str) -> set[str]:
    """The constants' names of the structures with this block that were read under this calibration."""
    return {
        RESIDUAL + structure
        for row in rows
        if row.calibration == calibration
        for structure in row.work.structures
        if relatives(structure) == block
    }


def write_later_regrets(path: Path, profile: Profile) -> None:
    """``card_constants_<card>_later.json`` beside ``path``, whose training rows were read after ``profile`` was fitted:
    what their first choice loses to the best by the H200's own constants and by the card's."""
    named = (("regret_without", own_readings(embedded(H200.name), path.parent)), ("regret_with", profile))
    regrets: dict[str, list[float]] = {}
    for name, base in named:
        order_l2 = {c.kernel: dict(c.constants).get("order_l2", 0.0) for c in base.calibrations}
        rows = [row for row in read_settled(profile, path, base) if row.found.row.split == "train"]
        regrets[name] = [1.0 + row.regret(CardConstants(order_l2=order_l2[row.calibration])) for row in rows]
    means = {name: round(geomean(values) - 1, 4) for name, values in regrets.items()}
    written = {**head("card_constants", TARGET.name), "rows": len(rows), **means}
    write(path.with_name(f"card_constants_{CARD}_later.json"), written)


def write_card_regrets(path: Path, rows: Sequence[SettledRow], card: CardConstants) -> None:
    """``card_constants_<card>.json`` beside ``path``: what the first choice of each row's readings loses to the best of
    them by the H200's constants alone, by the card's, and by those fitted without the row; held-out rows too."""
    training = [row for row in rows if row.found.row.split == "train"]
    written = []
    for row in rows:
        others = card_constants.fitted([other for other in training if other is not row])
        asked = row.found.row
        names = {"kernel": asked.kernel, "shape": list(asked.shape), "dtype": asked.dtype, "split": asked.split}
        regrets = zip(REGRETS, map(row.regret, (CardConstants(), card, others)), strict=True)
        written.append(names | {name: round(value, 4) for name, value in regrets})
    fitted = [row for row in written if row["split"] == "train"]
    means = {name: round(geomean([1 + row[name] for row in fitted]) - 1, 4) for name in REGRETS}
    write(
        path.with_name(f"card_constants_{CARD}.json"),
        {
            **head("card_constants", TARGET.name), "constants": asdict(card), "training_rows": len(fitted), **means,
            "rows": written,
        },
    )  # fmt: skip


def with_constants(calibration: Calibration, values: Mapping[str, float]) -> Calibration:
    """``calibration`` with these constants in place of its own."""
    rounded = {name: float(f"{value:.6g}") for name, value in values.items()}
    return replace(calibration, constants=tuple(sorted({**dict(calibration.constants), **rounded}.items())))
