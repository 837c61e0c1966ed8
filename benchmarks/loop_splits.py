"""The loops that the joint solver is measured on, in three splits.

``train``: the loops of ``loop_graphs.py``, which the planner's constants were chosen with. ``practice``: those of
``practice/``, other kernels varied like the held-out ones, with which its models were chosen, too.
``heldout``: those of ``heldout/``, which none was chosen with. All are frozen: ``tests/test_loop_splits.py`` pins the
digest of each.

``python benchmarks/loop_splits.py --out DIR`` writes each as a graph-1 file, to be read by ``warpplan solve``;
``--split`` takes one split.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, get_args

from heldout.generator import heldout_loops
from loop_graphs import graphs
from practice.generator import practice_loops

from warpplan.planner.values import codec
from warpplan.planner.values.dependence_graph import DependenceGraph

Split = Literal["train", "practice", "heldout"]
SPLITS: tuple[Split, ...] = get_args(Split)
LOOPS: dict[Split, Callable[[], dict[str, DependenceGraph]]] = {
    "train": graphs,
    "practice": practice_loops,
    "heldout": heldout_loops,
}


def loops(split: Split) -> dict[str, DependenceGraph]:
    """The split's loops, by name."""
    return LOOPS[split]()


def digest(found: Iterable[DependenceGraph]) -> str:
    """SHA-256 of the graphs' canonical JSON, one a line."""
    lines = (codec.canonical(graph) for graph in found)
    return hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest()


def file_name(name: str) -> str:
    return name.replace(" ", "-").replace("#", "") + ".json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the graph files")
    parser.add_argument("--split", choices=SPLITS, help="only this one")
    options = parser.parse_args()
    for split in SPLITS if options.split is None else (options.split,):
        folder = options.out / split
        folder.mkdir(parents=True, exist_ok=True)
        for name, graph in loops(split).items():
            (folder / file_name(name)).write_text(json.dumps(codec.to_json(graph), indent=1) + "\n")
        print(f"{folder}: {len(loops(split))} loops")


if __name__ == "__main__":
    main()
