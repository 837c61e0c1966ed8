"""The recorded passes are those of the installed Triton, and a cut kernel finishes as an uncut one does."""

from __future__ import annotations

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

triton = pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from kernels_under_test import KERNELS, source  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.backends.nvidia import compiler as nvidia_compiler  # noqa: E402

from warpplan.kernels.compiler import pipeline  # noqa: E402
from warpplan.kernels.compiler.exceptions import UnsupportedTriton  # noqa: E402
from warpplan.kernels.compiler.pipeline import cutting, steps  # noqa: E402
from warpplan.kernels.compiler.ttgir import ir, parsing  # noqa: E402
from warpplan.planner.errors import InvalidInput  # noqa: E402

pytestmark = pytest.mark.matrix
CAPABILITIES = [90, 100]


class Recorder:
    """Stands for a tree of bindings: every ``….group.add_pass(manager, …)`` is written down, nothing runs."""

    def __init__(self, calls: list[tuple[str, tuple[Any, ...]]], path: tuple[str, ...] = ()) -> None:
        self._calls, self._path = calls, path

    def __getattr__(self, name: str) -> Recorder:
        return Recorder(self._calls, (*self._path, name))

    def __call__(self, _manager: Any, *arguments: Any) -> None:
        group, name = self._path[-2:]
        self._calls.append((f"{group}.{name.removeprefix('add_')}", arguments))


def parsed(capability: int, **options: Any) -> Any:
    return nvidia_compiler.CUDABackend(GPUTarget("cuda", capability, 32)).parse_options(options)


def really_run(monkeypatch: pytest.MonkeyPatch, options: Any, capability: int) -> list[tuple[str, tuple[Any, ...]]]:
    """What the installed ``make_ttgir`` adds to its pass manager."""
    calls: list[tuple[str, tuple[Any, ...]]] = []
    manager = SimpleNamespace(enable_debug=lambda: False, run=lambda *_: None)
    module = SimpleNamespace(context=None, set_attr=lambda *_: None, get_tensordesc_metadata=list)
    builder = SimpleNamespace(get_int32_attr=lambda n: n)
    bindings = SimpleNamespace(pass_manager=lambda _: manager, builder=lambda _: builder)
    with monkeypatch.context() as patch:
        patch.setattr(nvidia_compiler, "ir", bindings)
        patch.setattr(nvidia_compiler, "passes", Recorder(calls))
        patch.setattr(nvidia_compiler, "nvidia", Recorder(calls))
        nvidia_compiler.CUDABackend.make_ttgir(module, {}, options, capability)
    return calls


@pytest.mark.parametrize(
    ("capability", "options"),
    [
        (90, {"num_warps": 8, "num_stages": 5}),
        (90, {"maxnreg": 128}),
        (100, {"num_warps": 4, "num_stages": 2}),
        (103, {"num_stages": 3}),
        (120, {}),
    ],
)
def test_no_pass_has_drifted(monkeypatch: pytest.MonkeyPatch, capability: int, options: dict[str, Any]) -> None:
    want = parsed(capability, **options)
    ours = pipeline.halves(triton.__version__, capability)
    assert steps.calls(ours.before + ours.stock + ours.after, want, capability, False) == really_run(
        monkeypatch, want, capability
    )


@pytest.mark.parametrize("option", [{"clc": True}, {"instrumentation_mode": "fpsan"}])
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_optional_passes_have_not_drifted_either(
    monkeypatch: pytest.MonkeyPatch, capability: int, option: dict[str, Any]
) -> None:
    try:
        want = parsed(capability, **option)
    except ValueError as refused:  # clc before Blackwell
        pytest.skip(str(refused))
    if not all(hasattr(want, name) for name in option):
        pytest.skip(f"triton {triton.__version__} has no option {', '.join(option)}")
    ours = pipeline.halves(triton.__version__, capability)
    really = really_run(monkeypatch, want, capability)
    assert steps.calls(ours.before + ours.stock + ours.after, want, capability, False) == really


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_cut_and_finished_is_as_triton_makes_it(name: str, capability: int) -> None:
    """sm_90 with Triton's own pass put back at the cut; the text between the halves loses nothing."""
    target, options = GPUTarget("cuda", capability, 32), {"num_warps": 4, "num_stages": 3, "maxnreg": 168}
    cut = pipeline.cut(source(name), target, options)
    module = cutting.read(cut.text, cutting.new_context(nvidia_compiler.CUDABackend(target)))
    pipeline.run_stock(module, cut.options, capability)
    pipeline.run_after(module, cut.options, capability)
    theirs = uncut(name, target, options)
    assert_same_ir(str(module), str(theirs))
    assert module.get_tensordesc_metadata() == theirs.get_tensordesc_metadata()


def uncut(name: str, target: Any, options: dict[str, Any]) -> Any:
    backend = nvidia_compiler.CUDABackend(target)
    want = backend.parse_options(options)
    context = cutting.new_context(backend)
    made = source(name).make_ir(
        target, want, backend.get_codegen_implementation(want), backend.get_module_map(), context
    )
    made.context = context
    return backend.make_ttgir(backend.make_ttir(made, {}, want, target.arch), {}, want, target.arch)


def assert_same_ir(ours: str, theirs: str) -> None:
    """Equal but for how locations are numbered."""
    shapes = [
        [
            (op.name, op.results, "".join(p for p in op.parts if isinstance(p, str)).strip())
            for op in parsing.parse(t).walk()
        ]
        for t in (ours, theirs)
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", KERNELS)
def test_the_reader_loses_nothing_at_the_cut_or_at_the_end(name: str, capability: int) -> None:
    cut = pipeline.cut(source(name), GPUTarget("cuda", capability, 32), {"num_warps": 4})
    finished = pipeline.finish(cut.text, cut.options, capability)
    for text in (cut.text, str(finished)):
        module = parsing.parse(text)
        assert str(module) == text
        assert all(operation.location for operation in module.walk())
        assert any(operation.location.startswith("#loc") for operation in module.function.walk())


def test_the_cut_runs_no_hook_and_writes_no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from triton import knobs

    def hook(*_: Any) -> None:
        raise AssertionError("the cut ran the user's hook")

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", hook)
    pipeline.cut(source("softmax"), GPUTarget("cuda", 90, 32))
    assert not os.path.exists(tmp_path / "cache")


@pytest.fixture(scope="module")
def small() -> pipeline.Cut:
    return pipeline.cut(source("softmax"), GPUTarget("cuda", 90, 32))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("tt.get_program_id", "tt.get_programid", "custom op 'tt.get_programid' is unknown"),
        ("tt.get_program_id x", "tt.get_program_id w", "w"),
        ("arith.muli ", "arith.muli %nowhere, ", "expected"),
        ("#blocked = #ttg.blocked", "#blocked = #ttg.blokced", "unknown attribute `blokced`"),
    ],
)
def test_text_that_triton_does_not_read_is_named_with_its_line(
    small: pipeline.Cut, old: str, new: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert old in small.text
    with pytest.raises(ir.MalformedIR, match=r"edited TTGIR") as caught:
        pipeline.finish(small.text.replace(old, new, 1), small.options, 90)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_threads_that_read_at_once_leave_stderr_as_it_was(
    small: pipeline.Cut, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = small.text.replace("tt.get_program_id", "tt.get_programid", 1)

    def refused(_: int) -> str:
        with pytest.raises(ir.MalformedIR) as caught:
            pipeline.finish(wrong, small.options, 90)
        return str(caught.value)

    with ThreadPoolExecutor(4) as pool:
        messages = set(pool.map(refused, range(16)))
    assert len(messages) == 1
    os.write(2, b"still here")
    assert capfd.readouterr().err == "still here"


def test_the_same_text_gives_the_same_bytes(small: pipeline.Cut) -> None:
    """Operations without a location get that of the text, which must not be another one each time."""
    text = re.sub(r" loc\(#loc\d*\)$", "", small.text, flags=re.MULTILINE)
    assert text != small.text
    first, second = (str(pipeline.finish(text, small.options, 90)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("version", ["3.5.1", "3.10.0", "4.0", "2", "", "3.6x", "main"])
def test_other_releases_are_refused(version: str) -> None:
    with pytest.raises(UnsupportedTriton, match=rf"triton {version}.*3\.6, 3\.7, 3\.8, 3\.9"):
        pipeline.passes_for(version, 90)


@pytest.mark.parametrize("version", ["3.6.0", "3.6.1", "3.7.1+git123", "3.8.0", "3.9.0"])
def test_a_release_is_its_first_two_numbers(version: str) -> None:
    before, after = pipeline.passes_for(version, 90)
    assert before[0].name == "ttir.convert_to_ttgpuir"
    assert after[0].name == "ttgpuir.assign_latencies"
    assert not any("warpspec" in step.name for step in before + after)
    assert [step.name for step in pipeline.halves(version, 90).stock] == ["hopper.hopper_warpspec"]
    assert "ttgpuir.warp_specialize" in [step.name for step in pipeline.passes_for(version, 100)[1]]


def test_an_older_gpu_is_refused() -> None:
    with pytest.raises(InvalidInput, match="sm_80: warp specialisation needs sm_90"):
        pipeline.passes_for("3.6.0", 80)
