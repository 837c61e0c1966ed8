"""What is known to compile clean is not compiled anew; what is new, or drawn, is."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton", reason="compiling needs triton")

import triton

from warpplan.kernels.attention_fwd.candidates import structures
from warpplan.kernels.attention_fwd.compile_attention_fwd import compile_attention_fwd
from warpplan.planner.errors import InvalidConfig
from warpplan.planner.values.device import H200


@pytest.mark.usefixtures("known_compiles")
def test_most_are_known_and_one_in_eight_is_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch, compiled_anew: dict[str, Any]
) -> None:
    if triton.__version__ != "3.6.0":
        pytest.skip("known for Triton 3.6.0")

    def compiled(*arguments: Any, **named: Any) -> Any:
        raise ValueError("it would be compiled")

    monkeypatch.setattr(triton, "compile", compiled)
    compiled_anew.clear()
    known, fresh = 0, 0
    for config in structures(64, "bfloat16", H200):
        try:
            report = compile_attention_fwd(config, "bfloat16", causal=True, window=True)
        except InvalidConfig:
            fresh += 1
        else:
            known += 1
            assert report.clean
            assert report.warps == config.total_warps
            assert report.ptx == "", "the assembly is not kept"
    assert known > 20
    assert 0 < fresh < known
    with pytest.raises(InvalidConfig, match="would be compiled"):
        compile_attention_fwd(config, "float16", causal=False, window=True)
