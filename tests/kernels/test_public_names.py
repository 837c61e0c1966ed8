"""The names that are imported from ``warpplan.kernels``, with and without what they need."""

from __future__ import annotations

import subprocess
import sys

import pytest

import warpplan.kernels

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; import warpplan.kernels; warpplan.kernels."


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", ["attention", "linear", "packed_attention", "patch"])
def test_without_torch_one_error_names_the_extra(name):
    found = run(WITHOUT_TORCH + name)
    expected = f"ModuleNotFoundError: warpplan.kernels.{name} needs torch: pip install 'warpplan[gpu]'"
    assert found.stderr.splitlines()[-1] == expected
    assert found.stderr.count("Traceback") == 1, "the cause is said once"


@pytest.mark.parametrize("name", ["PlanSourceWarning", "PlanWarning", "planned", "planned_inductor", "use_source"])
def test_other_names_need_no_torch(name):
    assert run(WITHOUT_TORCH + name).returncode == 0


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="has no attribute 'linera'"):
        warpplan.kernels.linera  # noqa: B018
