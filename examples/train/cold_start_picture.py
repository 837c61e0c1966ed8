"""The picture of a run: seconds to the first step of each way, and the losses over the seconds of each job."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot, ticker

COLOURS = {
    "plain torch": "#b9c0cb",
    "max-autotune": "#c8553d",
    "no service": "#8fc1a9",
    "service": "#0b6e4f",
    "second run": "#1f4e79",
}


def draw(result: dict[str, Any], path: Path) -> None:
    """Write the picture of a run's JSON to ``path``."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 3.6), layout="constrained", width_ratios=(2, 3))
    rows = result["rows"][::-1]
    bars = left.barh(
        [row["way"] for row in rows], [row["first_step_s"] for row in rows], color=[COLOURS[row["way"]] for row in rows]
    )
    left.bar_label(bars, [f" {row['first_step_s']:.1f} s" for row in rows], fontsize=9)
    left.margins(x=0.2)
    left.set(xlabel="seconds until the first step, caches cold", title=result["device"])
    for job in result["jobs"]:
        right.plot(job["seconds"], job["losses"], label=job["way"], linewidth=1.4, color=COLOURS[job["way"]])
    right.axhline(result["best_loss"], color="black", linestyle=":", label="the language's entropy")
    right.set(xlabel="seconds since the process started", ylabel="loss (nats)", xscale="log", title="The same loss")
    right.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    right.xaxis.set_major_formatter("{x:g}")
    right.xaxis.set_minor_formatter(ticker.NullFormatter())
    right.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=160)
    pyplot.close(figure)


if __name__ == "__main__":  # python examples/train/cold_start_picture.py RESULT.json PICTURE.png
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
