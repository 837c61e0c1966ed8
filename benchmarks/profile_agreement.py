"""Do two profiles of one GPU model agree? The stability report of each and of the pair, as a results file.

python benchmarks/profile_agreement.py SECOND.json [--first FIRST.json] --out benchmarks/results
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

import numpy as np
from results_file import head, write

from warpplan.profiler import stability
from warpplan.profiler.profile_files import load

EMBEDDED = Path(__file__).parents[1] / "profiler" / "data" / "nvidia_h200.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("second", type=Path)
    parser.add_argument("--first", type=Path, default=EMBEDDED)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    first, second = load(arguments.first), load(arguments.second)
    findings = stability.compare(first, second)
    a, b = stability.numbers(first), stability.numbers(second)
    ratios = {name: b[name] / a[name] for name in sorted(a.keys() & b.keys()) if a[name]}
    off = np.abs(np.array(list(ratios.values())) - 1.0)
    result = {
        **head("profile_agreement", first.identity.gpu),
        "first": asdict(first.identity),
        "second": asdict(second.identity),
        "numbers": len(ratios),
        "median_disagreement": round(float(np.median(off)), 5),
        "p90_disagreement": round(float(np.quantile(off, 0.9)), 5),
        "findings": [asdict(f) for f in findings],
        "second_over_first": {name: round(r, 4) for name, r in ratios.items()},
    }
    print(stability.report(findings, len(ratios)))
    write(arguments.out / "profile_agreement_h200.json", result)


if __name__ == "__main__":
    main()
