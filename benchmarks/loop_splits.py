"""The loops that the joint solver is measured on, in two splits.

``train``: the loops of ``loop_graphs.py``, which the planner's constants were chosen with. ``heldout``: those of
``heldout/``, other kernels, which none was chosen with. Both are frozen: ``tests/test_loop_splits.py`` pins the
digest of each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal, get_args

from heldout.generator import heldout_loops
from loop_graphs import graphs

from warpplan.planner.values import codec
from warpplan.planner.values.dependence_graph import DependenceGraph

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = get_args(Split)


def loops(split: Split) -> dict[str, DependenceGraph]:
    """The split's loops, by name."""
    return graphs() if split == "train" else heldout_loops()


def digest(found: Iterable[DependenceGraph]) -> str:
    """SHA-256 of the graphs' canonical JSON, one a line."""
    lines = (codec.canonical(graph) for graph in found)
    return hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest()
