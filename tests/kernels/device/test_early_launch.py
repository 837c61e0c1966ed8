"""Every kernel of partitions waits for the kernel before it, and is launched so that it can begin early."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[3] / "kernels"


def calls(tree, name):
    """Lines in which ``name`` is called, by itself or as an attribute."""
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [node.lineno for node in found if getattr(node.func, "attr", getattr(node.func, "id", "")) == name]


def functions():
    """Those of device code that start partitions."""
    for path in sorted(KERNELS.rglob("*.py")):
        if "compiler" not in path.relative_to(KERNELS).parts:
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.FunctionDef) and calls(node, "warp_specialize"):
                    yield pytest.param(path, node, id=f"{path.relative_to(KERNELS)}:{node.name}")


@pytest.mark.parametrize(("path", "function"), functions())
def test_it_waits_before_its_partitions_begin(path, function):
    waits = calls(function, "wait_for_previous_kernel")
    assert len(waits) == 1
    assert waits[0] < min(calls(function, "warp_specialize"))


def test_the_gemm_of_one_partition_waits_before_anything_else():
    tree = ast.parse((KERNELS / "gemm" / "tl.py").read_text())
    (kernel,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "gemm_kernel")
    statements = kernel.body[1:] if ast.get_docstring(kernel) else kernel.body
    assert calls(statements[0], "wait_for_previous_kernel") == [statements[0].lineno]


def options():
    for path in [*sorted(KERNELS.rglob("gluon.py")), KERNELS / "gemm" / "tl.py"]:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name == "launch_options":
                yield pytest.param(node, id=str(path.relative_to(KERNELS)))


@pytest.mark.parametrize("function", options())
def test_it_is_launched_early(function):
    assert [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == "LAUNCH_OPTIONS"]
