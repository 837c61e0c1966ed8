"""The solver's results on training and held-out loops, and its ablation, as the measurements page shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from recorded_figures import RESULTS, load

SPLITS = {"train": "training", "practice": "practice", "heldout": "held-out"}
ABLATIONS = ("solver_ablation", "solver_ablation_open", "solver_ablation_modulo")

Figures = Mapping[str, Any]


def solver_table() -> str:
    """One column a split: what was proven, in what time, and how the loop compares with scheduling it first."""
    summary = load("solver")["summary"]
    splits: Mapping[str, Figures] = summary if "train" in summary else {"train": summary}
    lines: dict[str, Callable[[Figures], str]] = {
        "loops": lambda s: f"{s['loops']}",
        "proven optimal or infeasible": lambda s: f"{s.get('proven', s['optimal'])}",
        "of these, within 1 s": lambda s: f"{s.get('proven_within_1s', s.get('within_goal', ''))}",
        "without a plan when the work budget ended": lambda s: f"{s.get('without_plan', 0)}",
        "seconds by the clock: median": lambda s: f"{s['median_wall_s']:.2f}",
        "seconds by the clock: 90th percentile": lambda s: f"{s['p90_wall_s']:.2f}" if "p90_wall_s" in s else "",
        "seconds by the clock: worst": lambda s: f"{s['worst_wall_s']:.2f}",
        "largest gap between interval and bound": lambda s: f"{s.get('gap_worst', 0):.1%}".replace("%", " %"),
        "shorter than schedule-first, proven": lambda s: f"{s.get('joint_shorter_proven', '')}",
        "longer than schedule-first": lambda s: _count(s.get("joint_longer")),
    }
    rows = [f"| | {' | '.join(SPLITS[split] for split in splits)} |", "|---" + "|---:" * len(splits) + "|"]
    rows += [f"| {name} | {' | '.join(cell(figures) for figures in splits.values())} |" for name, cell in lines.items()]
    return "\n".join(rows)


def ablation_tables() -> str:
    """For each recorded ablation: the loops proven without a technique, better and worse than with it, and the work."""
    return "\n\n".join(_ablation(name) for name in ABLATIONS if (RESULTS / f"{name}.json").is_file())


def _ablation(name: str) -> str:
    recorded = load(name)
    summary: Mapping[str, Mapping[str, Figures]] = recorded["summary"]
    splits = list(next(iter(summary.values())))
    heads = [f"{SPLITS.get(split, split)}: {what}" for split in splits for what in ("proven", "better, worse", "work")]
    rows = [f"| switched off | {' | '.join(heads)} |", "|---" + "|---:" * len(heads) + "|"]
    for variant, of in summary.items():
        if variant != "default":
            cells = [cell for split in splits for cell in _effect(of[split])]
            rows.append(f"| {variant.removeprefix('without ').replace('_', ' ')} | {' | '.join(cells)} |")
    default = ", ".join(f"{summary['default'][s]['proven']} of {summary['default'][s]['loops']}" for s in splits)
    budget = (
        f"`{name}.json`, {recorded['work_limit_s']:g} s of work for each loop; with everything on {default} are proven."
    )
    return "\n".join([budget, "", *rows])


def optimality_table() -> str:
    """One line a kernel and dtype, or a family of the corpus: its loops, proven optimal, with something shorter."""
    recorded = load("optimality")
    rows = [
        "| loops of | loops | proven optimal | shorter found | by more than 5 % | at most |",
        "|---" + "|---:" * 5 + "|",
    ]
    for name, of in recorded["summary"].items():
        most = f"{of['most_gain']:.2f}×" if of["shorter_found"] else ""
        cells = (name, of["loops"], of["proven"], of["shorter_found"], of["clearly_shorter_found"], most)
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def _effect(off: Figures) -> tuple[str, str, str]:
    percent = round(100 * (off["work_s"] / off["work_s_default"] - 1)) if off["work_s_default"] else 0
    work = f"{percent:+d} %".replace("-", "−") if percent else "0 %"
    return f"{off['proven']}", f"{off['better']}, {off['worse']}", work


def _count(names: list[str] | None) -> str:
    return "" if names is None else f"{len(names)}"
