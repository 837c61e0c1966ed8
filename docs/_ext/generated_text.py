"""A Sphinx extension: text that pages take from the code and from ``benchmarks/results/`` when they are built.

A line ``% generated: NAME`` becomes what the function of that name in :data:`GENERATED` returns, and
``{{ file:path:format }}`` a number of a results file, such as ``{{ solver:summary.worst_wall_s:.2f }}``. An unknown
name ends the build.
"""

from __future__ import annotations

import builtins
import importlib
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from code_layout import folder_table, longest_functions, top_names
from docutils import nodes
from hopper_tables import cluster_table, order_table
from measured_tables import corpus_table, moe_table, partitions_table
from recorded_figures import (
    compiler_table,
    figure_table,
    gemm_many_sections,
    gemm_table,
    kernels_table,
    recorded,
    vector_add_table,
)
from reference_pages import command_line, file_schemas, http_routes
from solver_tables import ablation_tables, optimality_table, solver_table
from sphinx.application import Sphinx
from sphinx.ext.autodoc.mock import mock

GENERATED: dict[str, Callable[[], str]] = {
    "ablation-tables": ablation_tables,
    "cluster-table": cluster_table,
    "command-line": command_line,
    "compiler-table": compiler_table,
    "corpus-table": corpus_table,
    "figures": figure_table,
    "file-schemas": file_schemas,
    "folders": folder_table,
    "gemm-many": gemm_many_sections,
    "gemm-table": gemm_table,
    "kernels-table": kernels_table,
    "http-routes": http_routes,
    "longest-functions": longest_functions,
    "moe-table": moe_table,
    "optimality-table": optimality_table,
    "order-table": order_table,
    "other-card-table": partial(kernels_table, "h100"),
    "partitions-table": partitions_table,
    "solver-table": solver_table,
    "vector-add-table": vector_add_table,
}
MARK = re.compile(r"^% generated: ([a-z-]+)$", re.MULTILINE)
NUMBER = re.compile(r"\{\{ ([a-z0-9_]+):([A-Za-z0-9_. ]+):([^ }]*) \}\}")
UNDERLINE = re.compile(r"^(=+|-+|~+|\^+)$")


def fill(text: str) -> str:
    """``text`` with what is generated in the places of its marks; ``KeyError`` for a mark that nothing fills."""
    text = MARK.sub(lambda mark: GENERATED[mark[1]](), text)
    return NUMBER.sub(lambda mark: recorded(*mark.groups()), text)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _read)
    app.connect("missing-reference", _known_name)
    app.connect("autodoc-process-docstring", _headings_to_rubrics)
    app.connect("autodoc-process-signature", _readable_defaults)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _read(app: Sphinx, page: str, content: list[str]) -> None:
    content[0] = fill(content[0])


def _known_name(app: Sphinx, env: Any, node: Any, shown: nodes.Node) -> nodes.Node | None:
    """A Python name without a page of its own is plain text where it exists, and fails the build where it does not."""
    if node.get("refdomain") != "py":
        return None
    target, module, owner = node["reftarget"], node.get("py:module"), node.get("py:class")
    places = [target, f"{module}.{target}", f"{module}.{owner}.{target}"]
    known = hasattr(builtins, target) or target in top_names() or any(_exists(place) for place in places)
    return shown if known else None


def _exists(name: str) -> bool:
    """Whether ``name`` is a module, or an attribute or a dataclass's field in one."""
    with mock(["torch", "triton"]):
        return _found(name)


def _found(name: str) -> bool:
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:split]))
        except ImportError:
            continue
        for part in parts[split:]:
            if not hasattr(value, part) and part not in getattr(value, "__annotations__", ()):
                return False
            value = getattr(value, part, None)
        return True
    return False


def _headings_to_rubrics(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Headings inside of a docstring would be sections where only text may stand."""
    for i in range(len(lines) - 1, 0, -1):
        title = lines[i - 1].strip()
        if title and not title.startswith(" ") and UNDERLINE.match(lines[i]) and len(lines[i]) >= len(title) > 2:
            lines[i - 1 : i + 1] = [f".. rubric:: {title}", ""]


def _readable_defaults(
    app: Sphinx, what: str, name: str, value: object, options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """A field that a factory fills has a default that is no Python: Sphinx could not read the signature."""
    return signature and signature.replace("<factory>", "..."), returns
