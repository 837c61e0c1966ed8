"""The picture of a run: loss curves beside step times."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.ticker import LogLocator

COLOURS = {"warpplan": "#0b6e4f", "torch._grouped_mm": "#c8553d", "expert loop": "#6b7a8f", "block loop": "#b9c0cb"}
EXACT = "float32 loop"


def draw(result: dict[str, Any], path: Path) -> None:
    """Write the picture of a run's JSON to ``path``."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained", width_ratios=(3, 2))
    for name, curve in result["losses"].items():
        style = {"color": "black", "linestyle": ":", "zorder": 3} if name == EXACT else {"color": COLOURS[name]}
        left.plot(curve, label=name, linewidth=1.4, **style)
    left.set(xlabel="step", ylabel="loss (mean squared error)", yscale="log", title="The same loss")
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_locator(LogLocator(subs=(2, 4, 6)))
    left.yaxis.set_minor_formatter("{x:g}")
    left.legend(frameon=False, fontsize=8)
    rows = result["rows"][::-1]
    names = [row["name"] for row in rows]
    whole = [statistics.median(row["step_ms"]) for row in rows]
    gradients = [statistics.median(row["gradients_ms"]) for row in rows]
    colours = [COLOURS[name] for name in names]
    bars = right.barh(names, whole, color=colours, alpha=0.45)
    right.barh(names, gradients, color=colours)
    right.bar_label(bars, [f" {ms:.1f} ms" for ms in whole], fontsize=9)
    right.margins(x=0.2)
    right.set(xlabel="ms a step (pale: the optimizer)", title=result["device"])
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=160)
    pyplot.close(figure)


if __name__ == "__main__":  # python examples/moe/picture.py RESULT.json PICTURE.png
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
