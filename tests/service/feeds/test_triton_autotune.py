"""An unmodified autotuned consumer reads our entries and benchmarks nothing.

The job is real: Triton's own autotuner, its own cache lookup, its own key. Stubbed are the GPU (a driver that knows its
target and whose benchmark raises) and the launch (a recorder), because there is no GPU here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warpplan.kernels import registry
from warpplan.kernels.gemm.kernel import Gemm
from warpplan.planner.errors import Infeasible, InvalidInput, StoreError, UnknownName
from warpplan.planner.predict.ranking import RankedPlan
from warpplan.planner.predict.time_model import Prediction
from warpplan.planner.values import codec
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.plan import Outcome
from warpplan.planner.values.profile import Identity, Profile
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service import feeds
from warpplan.service.feeds import ExportRow, Options, export_triton, triton_autotune, verify_triton
from warpplan.service.feeds.machine_here import Machine
from warpplan.service.feeds.provenance import beside, read_beside, write_beside
from warpplan.service.feeds.provenance import measured as provenance_of_a_job

pytest.importorskip("triton", reason="needs triton (no GPU) to compute its cache keys")

CONSUMER = Path(__file__).with_name("consumer_kernel.py")
SPEC = f"{CONSUMER}:matmul"
SHAPE = (4096, 4096, 4096)
PROFILE = Profile(Identity("NVIDIA H200", "", "", "", "", "", "", ""), CostTable(()), ())
H200_ROW = ExportRow(SHAPE, "bfloat16", "NVIDIA H200", PROFILE)


def plan_config(**changes: Any) -> TuningConfig:
    kwargs = {"SCHEME": "pipelined", "BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 16, "PERSISTENT": True}
    return TuningConfig.of(kwargs | changes, num_warps=8, num_stages=3)


def unsolved() -> Outcome:
    raise AssertionError("an exporter needs no solved loop")


class FixedKernel:
    """A planner that answers from a table: the exporter's own work is what is tested here."""

    declaration = Gemm.declaration

    def __init__(self) -> None:
        self.plans: dict[tuple[int, ...], tuple[TuningConfig, ...]] = {}
        self.portable: list[bool] = []

    def rank(self, shape: tuple[int, ...], *_: object, limit: int, portable: bool) -> tuple[RankedPlan, ...]:
        self.portable.append(portable)
        plans = self.plans.get(shape, (plan_config(),))
        return tuple(RankedPlan(c, Prediction(100.0 + i, 1.0, "tensor", ()), unsolved) for i, c in enumerate(plans))[
            :limit
        ]


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> FixedKernel:
    kernel = FixedKernel()
    monkeypatch.setattr(registry, "kernel", lambda name: kernel)
    return kernel


class BenchmarkedError(AssertionError):
    pass


class StubDriver:
    def __init__(self, capability: int = 90) -> None:
        self.capability = capability

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_benchmarker(self) -> Callable[..., Any]:
        def benchmark(*args: object, **kwargs: object) -> None:
            raise BenchmarkedError("the consumer benchmarked")

        return benchmark


class TorchLike:
    def __init__(self, dtype: str) -> None:
        self.dtype = type("dtype", (), {"__str__": lambda self: f"torch.{dtype}"})()


class Job:
    """A process that launches the consumer, as far as this can go without a GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        self.monkeypatch = monkeypatch
        monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))

    def launch(
        self,
        file: Path = CONSUMER,
        shape: tuple[int, int, int] = SHAPE,
        dtypes: tuple[str, str, str] = ("bfloat16",) * 3,
        capability: int = 90,
        function: str = "matmul",
        arguments: tuple[object, ...] | None = None,
        **keywords: object,
    ) -> dict[str, object]:
        """The keyword arguments with which the kernel itself is launched."""
        from triton.runtime.driver import driver
        from triton.runtime.jit import JITFunction

        spec = importlib.util.spec_from_file_location("job_kernels", file)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kernel = getattr(module, function)
        bottom = kernel
        while not isinstance(bottom, JITFunction):
            bottom = bottom.fn
        launches: list[dict[str, object]] = []
        bottom.run = lambda *args, **kwargs: launches.append(kwargs)
        before = driver._active
        driver.set_active(StubDriver(capability))
        try:
            if arguments is None:
                m, n, k = shape
                arguments = (*map(TorchLike, dtypes), m, n, k, k, 1, n, 1, n, 1)
            kernel[(1,)](*arguments, **keywords)
        finally:
            driver.set_active(before)
        assert len(launches) == 1
        return launches[0]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Job:
    return Job(monkeypatch, tmp_path / "cache")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def consumer(tmp_path: Path, decorator: str, *, header: str = "", signature: str = "", body: str = "") -> str:
    """A small consumer file; returns its ``FILE.py:function``."""
    signature = (
        signature or "a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BK: tl.constexpr"
    )
    lines = (
        "import triton",
        "import triton.language as tl",
        "def config(**kwargs):",
        "    return triton.Config(kwargs or dict(BLOCK_M=64, BLOCK_N=64, BK=32))",
        header,
        decorator,
        "@triton.jit",
        f"def kernel({signature}):",
        f"    {body or 'pass'}",
    )
    path = tmp_path / "job_consumer.py"
    path.write_text("\n".join(lines) + "\n")
    return f"{path}:kernel"


TWO = "configs=[config(), config(BLOCK_M=128, BLOCK_N=64, BK=32)]"


class TestHit:
    def test_without_an_entry_the_consumer_benchmarks(self, job: Job) -> None:
        with pytest.raises(BenchmarkedError):
            job.launch()

    def test_after_export_it_runs_our_plan_without_a_benchmark(
        self, job: Job, planner: FixedKernel, cache: Path
    ) -> None:
        report = export_triton(SPEC, [H200_ROW], cache)
        launched = job.launch()
        assert launched["BLOCK_SIZE_M"] == 128
        assert launched["BLOCK_SIZE_N"] == 256
        assert launched["BLOCK_SIZE_K"] == 64, "outside the consumer's own list, which has 32 only"
        assert launched["GROUP_SIZE_M"] == 16
        assert (launched["num_warps"], launched["num_stages"], launched["num_ctas"]) == (8, 3, 1)
        assert planner.portable == [True], "only one-partition plans can be said in tl"
        assert Path(report.entries[0].path).is_relative_to(cache)

    def test_a_plain_tuple_is_a_row_and_a_module_a_source(
        self, job: Job, planner: FixedKernel, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.syspath_prepend(CONSUMER.parent)
        export_triton("consumer_kernel:matmul", [tuple(H200_ROW)], cache)  # type: ignore[list-item]
        sys.modules.pop("consumer_kernel")
        assert job.launch()["BLOCK_SIZE_N"] == 256

    def test_the_entry_reads_as_triton_writes_it(self, planner: FixedKernel, cache: Path) -> None:
        entry = export_triton(SPEC, [H200_ROW], cache).entries[0]
        body = json.loads(Path(entry.path).read_text())
        assert body["key"] == [*SHAPE, "torch.bfloat16", "torch.bfloat16", "torch.bfloat16"]
        ((config, timings),) = body["configs_timings"]
        assert timings == [pytest.approx(0.1)] * 3
        assert config["pre_hook"] is None
        assert list(config["kwargs"]) == ["BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M"]
        assert Path(entry.path).name == "matmul.autotune.json"

    def test_each_shape_gets_its_own_plan(self, job: Job, planner: FixedKernel, cache: Path) -> None:
        small = (128, 4096, 4096)
        planner.plans[small] = (plan_config(BLOCK_M=64),)
        export_triton(SPEC, [H200_ROW, H200_ROW._replace(shape=small)], cache)
        assert job.launch(shape=small)["BLOCK_SIZE_M"] == 64
        assert job.launch()["BLOCK_SIZE_M"] == 128

    def test_export_replaces_an_older_entry(self, job: Job, planner: FixedKernel, cache: Path) -> None:
        export_triton(SPEC, [H200_ROW], cache)
        planner.plans[SHAPE] = (plan_config(BLOCK_M=64),)
        export_triton(SPEC, [H200_ROW], cache)
        assert job.launch()["BLOCK_SIZE_M"] == 64

    def test_what_a_job_has_measured_is_kept_beside_the_plan(self, planner: FixedKernel, cache: Path) -> None:
        (exported,) = export_triton(SPEC, [H200_ROW], cache).entries
        path = Path(exported.path)
        assert export_triton(SPEC, [H200_ROW], cache).kept == (), "an older plan needs no copy"
        path.write_text(path.read_text().replace('"num_warps": 8', '"num_warps": 4'))
        measured = path.read_bytes()
        (kept,) = export_triton(SPEC, [H200_ROW], cache).kept
        assert Path(kept).read_bytes() == measured
        assert verify_triton(SPEC, [H200_ROW], cache).all_current
        path.write_bytes(measured)
        write_beside(path, provenance_of_a_job("triton", measured, Machine(("NVIDIA H200",), "570.86")))
        assert export_triton(SPEC, [H200_ROW], cache).kept == (kept,)

    @pytest.mark.parametrize(
        "other",
        [
            {"shape": (4096, 4096, 8192)},
            {"dtypes": ("float16",) * 3},
            {"dtypes": ("bfloat16", "bfloat16", "float32")},
            {"capability": 100},
        ],
        ids=["shape", "dtype", "output dtype", "architecture"],
    )
    def test_another_launch_still_benchmarks(
        self, job: Job, planner: FixedKernel, cache: Path, other: dict[str, Any]
    ) -> None:
        export_triton(SPEC, [H200_ROW], cache)
        with pytest.raises(BenchmarkedError):
            job.launch(**other)

    def test_a_tensor_of_another_dtype_is_named(self, job: Job, planner: FixedKernel, cache: Path) -> None:
        export_triton(SPEC, [H200_ROW], cache, Options(tensors={"c_ptr": "float32"}))
        assert job.launch(dtypes=("bfloat16", "bfloat16", "float32"))["BLOCK_SIZE_M"] == 128

    def test_key_names_and_arguments_of_the_consumers_own(
        self, job: Job, planner: FixedKernel, cache: Path, tmp_path: Path
    ) -> None:
        spec = consumer(
            tmp_path,
            f"@triton.autotune({TWO}, key=['rows', 'k', 'ACT'], cache_results=True)",
            signature="x, w, y_ptr, bias_ptr, rows, n, k, ACT: tl.constexpr, "
            "BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BK: tl.constexpr",
        )
        options = Options(
            key_map={"rows": "M"},
            tensors={"x": "bfloat16", "w": "torch.bfloat16", "bias_ptr": "none"},
            arguments={"ACT": "relu"},
        )
        export_triton(spec, [H200_ROW], cache, options)
        tensors = [TorchLike("bfloat16") for _ in range(3)]
        launched = job.launch(
            Path(spec.rpartition(":")[0]), function="kernel", arguments=(*tensors, None, *SHAPE), ACT="relu"
        )
        assert (launched["BLOCK_M"], launched["BLOCK_N"], launched["BK"]) == (128, 256, 64)

    def test_pruning_and_heuristics_run_as_in_the_job(
        self, job: Job, planner: FixedKernel, cache: Path, tmp_path: Path
    ) -> None:
        spec = consumer(
            tmp_path,
            "@triton.heuristics({'EVEN': lambda args: args['K'] % 64 == 0})\n"
            f"@triton.autotune({TWO[:-1]}, config(BLOCK_M=32, BLOCK_N=32, BK=32)], key=['M', 'N', 'K', 'EVEN'], "
            "prune_configs_by={'early_config_prune': prune}, cache_results=True)",
            header="def prune(configs, named_args, **kwargs):\n"
            "    return [c for c in configs if c.kwargs['BLOCK_M'] <= named_args['M'] / 64]\n",
            signature="a_ptr, b_ptr, c_ptr, M, N, K, EVEN: tl.constexpr, "
            "BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BK: tl.constexpr",
        )
        export_triton(spec, [H200_ROW], cache)
        tensors = [TorchLike("bfloat16") for _ in range(3)]
        launched = job.launch(Path(spec.rpartition(":")[0]), function="kernel", arguments=(*tensors, *SHAPE))
        assert launched["BLOCK_M"] == 128
        assert launched["EVEN"] is True

    def test_only_listed_keeps_to_the_consumers_list(self, job: Job, planner: FixedKernel, cache: Path) -> None:
        listed = TuningConfig.of(
            {"SCHEME": "pipelined", "BLOCK_M": 64, "BLOCK_N": 256, "BLOCK_K": 32, "GROUP_M": 8},
            num_warps=4,
            num_stages=4,
        )
        planner.plans[SHAPE] = (plan_config(), listed)
        report = export_triton(SPEC, [H200_ROW], cache, Options(only_listed=True))
        assert report.entries[0].predicted_us == 101.0
        assert job.launch()["BLOCK_SIZE_M"] == 64
        planner.plans[SHAPE] = (plan_config(),)
        with pytest.raises(Infeasible, match="--only-listed"):
            export_triton(SPEC, [H200_ROW], cache, Options(only_listed=True))

    def test_tritons_globals_and_the_environment_stay_as_they_were(
        self, planner: FixedKernel, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from triton import knobs
        from triton.runtime.driver import driver

        monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
        driver_before, environment = driver._active, dict(os.environ)
        export_triton(SPEC, [H200_ROW], cache)
        verify_triton(SPEC, [H200_ROW], cache)
        assert driver._active is driver_before
        assert dict(os.environ) == environment
        assert knobs.cache.dir == "elsewhere"
        assert knobs.cache.manager_class is None


class TestStale:
    """What Triton's key does not hold: it would take the entry, so ``verify`` says that it must not."""

    def test_the_other_gpu_of_the_architecture(self, planner: FixedKernel, cache: Path) -> None:
        export_triton(SPEC, [H200_ROW], cache)
        (entry,) = verify_triton(SPEC, [H200_ROW._replace(device="NVIDIA H100 80GB HBM3")], cache).entries
        assert (entry.hit, entry.config) == (False, None)
        assert "Triton would take the entry for NVIDIA H200" in entry.reason

    @pytest.mark.parametrize(
        ("here", "changed"),
        [
            (Machine(("NVIDIA H100 80GB HBM3",), "570.86"), "the GPU (was NVIDIA H200"),
            (Machine(("NVIDIA H200",), "580.10"), "the driver (was 570.86, is 580.10)"),
        ],
    )
    def test_another_gpu_or_driver_since(
        self, planner: FixedKernel, cache: Path, here: Machine, changed: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made_on = Machine(("NVIDIA H200",), "570.86")
        monkeypatch.setattr(triton_autotune, "machine_here", lambda: made_on)
        export_triton(SPEC, [H200_ROW], cache, planner="1.0")
        assert verify_triton(SPEC, [H200_ROW], cache).all_current
        monkeypatch.setattr(triton_autotune, "machine_here", lambda: here)
        report = verify_triton(SPEC, [H200_ROW], cache)
        assert not report.all_hit
        assert changed in report.entries[0].reason
        assert "of 1 rows 1 miss" in report.summary()

    def test_an_older_plan_hits_and_is_not_current(self, planner: FixedKernel, cache: Path) -> None:
        export_triton(SPEC, [H200_ROW], cache)
        planner.plans[SHAPE] = (plan_config(BLOCK_M=64),)
        report = verify_triton(SPEC, [H200_ROW], cache)
        assert (report.all_hit, report.all_current) == (True, False)
        assert "1 hit what would not be exported today" in report.summary()

    def test_provenance_lies_beside_the_entry(self, planner: FixedKernel, cache: Path) -> None:
        (entry,) = export_triton(SPEC, [H200_ROW], cache, planner="1.0").entries
        found = read_beside(Path(entry.path))
        assert found is not None
        assert (found.device, found.planner, found.profile) == ("NVIDIA H200", "1.0", codec.key(PROFILE))
        assert found.date.startswith("20")


class TestVerify:
    def test_hit(self, planner: FixedKernel, cache: Path) -> None:
        export_triton(SPEC, [H200_ROW], cache)
        report = verify_triton(SPEC, [H200_ROW], cache)
        assert report.all_hit
        (entry,) = report.entries
        assert entry.reason == ""
        assert dict(entry.config.kwargs)["BLOCK_SIZE_M"] == 128 if entry.config else False

    def test_nothing_exported_and_nothing_made(self, planner: FixedKernel, cache: Path) -> None:
        (entry,) = verify_triton(SPEC, [H200_ROW], cache).entries
        assert not entry.hit
        assert "nothing was exported" in entry.reason
        assert not cache.exists()

    def test_a_shape_that_was_not_exported(self, planner: FixedKernel, cache: Path) -> None:
        export_triton(SPEC, [H200_ROW], cache)
        report = verify_triton(SPEC, [H200_ROW, H200_ROW._replace(shape=(1, 4096, 4096))], cache)
        assert [e.hit for e in report.entries] == [True, False]
        assert not report.all_hit
        assert "no entry for these sizes" in report.entries[1].reason
        assert sum("MISS" in line for line in report.lines()) == 1

    def test_a_changed_kernel_says_so(self, planner: FixedKernel, cache: Path, tmp_path: Path) -> None:
        spec = consumer(tmp_path, f"@triton.autotune({TWO}, key=['M', 'N', 'K'], cache_results=True)")
        export_triton(spec, [H200_ROW], cache)
        consumer(tmp_path, f"@triton.autotune({TWO}, key=['M', 'N', 'K'], cache_results=True)", body="tl.program_id(0)")
        (entry,) = verify_triton(spec, [H200_ROW], cache).entries
        assert not entry.hit
        assert "source kernel" in entry.reason

    def test_a_changed_environment_says_so(
        self, planner: FixedKernel, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        export_triton(SPEC, [H200_ROW], cache)
        monkeypatch.setenv("DISABLE_LLVM_OPT", "1")
        (entry,) = verify_triton(SPEC, [H200_ROW], cache).entries
        assert not entry.hit
        assert "environment" in entry.reason
        assert "DISABLE_LLVM_OPT" in entry.reason

    def test_a_damaged_entry_says_so(self, planner: FixedKernel, cache: Path) -> None:
        exported = export_triton(SPEC, [H200_ROW], cache).entries[0]
        Path(exported.path).write_text('{"key": [')
        (entry,) = verify_triton(SPEC, [H200_ROW], cache).entries
        assert not entry.hit
        assert "damaged" in entry.reason

    def test_a_hit_that_is_not_todays_plan_says_so(self, planner: FixedKernel, cache: Path) -> None:
        export_triton(SPEC, [H200_ROW], cache)
        planner.plans[SHAPE] = (plan_config(BLOCK_M=64),)
        (entry,) = verify_triton(SPEC, [H200_ROW], cache).entries
        assert entry.hit
        assert "not today's plan" in entry.reason

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            (None, "provenance is missing: no matmul.autotune.json.warpplan.json"),
            ('{"schema": "warpplan/prov', "is damaged"),
            ("null", "is damaged"),
            ("[" * 100_000, "is damaged"),
        ],
        ids=["missing", "truncated", "null", "nested"],
    )
    def test_a_hit_without_provenance_is_not_current(
        self, planner: FixedKernel, cache: Path, text: str | None, told: str
    ) -> None:
        (exported,) = export_triton(SPEC, [H200_ROW], cache).entries
        if text is None:
            beside(Path(exported.path)).unlink()
        else:
            beside(Path(exported.path)).write_text(text)
        report = verify_triton(SPEC, [H200_ROW], cache)
        assert (report.all_hit, report.all_current) == (True, False)
        assert told in report.entries[0].reason
        assert told in report.summary()
        assert told in report.lines()[1]
        export_triton(SPEC, [H200_ROW], cache)
        assert verify_triton(SPEC, [H200_ROW], cache).all_current

    @pytest.mark.parametrize("text", ["[" * 100_000, '{"identity": 3}', "null", "{"])
    def test_a_damaged_manifest_says_so(self, planner: FixedKernel, cache: Path, text: str) -> None:
        export_triton(SPEC, [H200_ROW], cache)
        (cache / "warpplan-matmul.json").write_text(text)
        (entry,) = verify_triton(SPEC, [H200_ROW._replace(shape=(1, 4096, 4096))], cache).entries
        assert not entry.hit
        assert "warpplan-matmul.json is damaged: export again" in entry.reason

    @pytest.mark.parametrize(
        ("kwargs", "warps", "told"),
        [
            ({"TILE": 1}, 4, "sets TILE, which is no parameter"),
            ({}, 4, "lacks BLOCK_SIZE_K"),
            (None, "4", "has num_warps '4'"),
            (None, None, "has num_warps None"),
        ],
    )
    def test_an_entry_that_no_launch_takes_is_a_miss(
        self, planner: FixedKernel, cache: Path, kwargs: dict[str, int] | None, warps: object, told: str
    ) -> None:
        (exported,) = export_triton(SPEC, [H200_ROW], cache).entries
        entry = json.loads(Path(exported.path).read_text())
        config = entry["configs_timings"][0][0]
        config |= {"num_warps": warps, "kwargs": config["kwargs"] if kwargs is None else kwargs}
        Path(exported.path).write_text(json.dumps(entry))
        (found,) = verify_triton(SPEC, [H200_ROW], cache).entries
        assert (found.hit, found.config) == (False, None)
        assert told in found.reason

    def test_an_entry_that_nests_too_deeply_says_so(self, planner: FixedKernel, cache: Path) -> None:
        (exported,) = export_triton(SPEC, [H200_ROW], cache).entries
        Path(exported.path).write_text("[" * 100_000)
        (entry,) = verify_triton(SPEC, [H200_ROW], cache).entries
        assert not entry.hit
        assert "damaged and the launch will fail (RecursionError" in entry.reason


class TestReport:
    def test_names_what_the_entries_are_valid_for(self, planner: FixedKernel, cache: Path) -> None:
        import triton

        text = "\n".join(export_triton(SPEC, [H200_ROW], cache).lines())
        assert f"triton {triton.__version__} (build " in text
        assert "sm_90" in text
        assert "4096x4096x4096 bfloat16 on NVIDIA H200: BLOCK_SIZE_M=128" in text


class TestRefusals:
    @pytest.mark.parametrize(
        ("decorator", "reason"),
        [
            (f"@triton.autotune({TWO}, key=['M', 'N', 'K'])", "cache_results=True"),
            (f"@triton.autotune({TWO}, key=[], cache_results=True)", "key is empty"),
            ("@triton.autotune(configs=[config()], key=['M', 'N', 'K'], cache_results=True)", "single configuration"),
            ("", "not under @triton.autotune"),
            (
                "@triton.autotune(configs=[config(), triton.Config(dict(BLOCK_M=64, BLOCK_N=64, BK=32), "
                "pre_hook=print)], key=['M', 'N', 'K'], cache_results=True)",
                "pre_hook",
            ),
            (
                f"@triton.autotune({TWO}, key=['M', 'N', 'K'], cache_results=True, "
                "prune_configs_by={'early_config_prune': lambda configs, named, **kw: 1 / 0})",
                "raised ZeroDivisionError",
            ),
        ],
        ids=["not cached", "no key", "one config", "not tuned", "pre_hook", "pruning raises"],
    )
    def test_where_triton_would_not_look(
        self, planner: FixedKernel, cache: Path, tmp_path: Path, decorator: str, reason: str
    ) -> None:
        spec = consumer(tmp_path, decorator)
        with pytest.raises(InvalidInput, match=reason):
            export_triton(spec, [H200_ROW], cache)
        assert not cache.exists()

    def test_pruned_to_one(self, job: Job, planner: FixedKernel, cache: Path, tmp_path: Path) -> None:
        """Triton 3.6 looks the one configuration up like any other; 3.9 runs it and looks nothing up."""
        spec = consumer(
            tmp_path,
            f"@triton.autotune({TWO}, key=['M', 'N', 'K'], cache_results=True, "
            "prune_configs_by={'early_config_prune': lambda configs, named, **kw: configs[:1]})",
        )
        arguments = (*(TorchLike("bfloat16") for _ in range(3)), *SHAPE)
        try:
            export_triton(spec, [H200_ROW], cache)
        except InvalidInput as error:
            assert "pruning leaves a single configuration" in str(error)  # noqa: PT017
            assert not cache.exists()
            assert job.launch(Path(spec.rpartition(":")[0]), function="kernel", arguments=arguments)["BLOCK_M"] == 64
        else:
            assert job.launch(Path(spec.rpartition(":")[0]), function="kernel", arguments=arguments)["BLOCK_M"] == 128

    @pytest.mark.parametrize(
        ("spec", "reason"),
        [
            ("no_such_file.py:kernel", "no file"),
            ("no.such.module:kernel", "ModuleNotFoundError"),
            (f"{CONSUMER}:nobody", "has no 'nobody'"),
            (f"{CONSUMER}:configs", "not a Triton kernel"),
            ("kernel", "expected FILE.py:function"),
        ],
    )
    def test_a_consumer_that_cannot_be_loaded(self, planner: FixedKernel, cache: Path, spec: str, reason: str) -> None:
        with pytest.raises(InvalidInput, match=reason) as caught:
            export_triton(spec, [H200_ROW], cache)
        assert "\n" not in str(caught.value)

    def test_constexprs_that_a_plan_does_not_know_are_listed(
        self, planner: FixedKernel, cache: Path, tmp_path: Path
    ) -> None:
        spec = consumer(
            tmp_path,
            "@triton.autotune(configs=[config(BLOCK_M=64, BLOCK_N=64, BK=32, SPLIT=s, FAST=True) for s in (1, 2)], "
            "key=['M', 'N', 'K'], cache_results=True)",
            signature="a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BK: tl.constexpr, "
            "SPLIT: tl.constexpr, FAST: tl.constexpr",
        )
        with pytest.raises(InvalidInput, match="also tune SPLIT, about"):
            export_triton(spec, [H200_ROW], cache)
        entry = export_triton(spec, [H200_ROW], cache, Options(renames={"GROUP_M": "SPLIT"})).entries[0]
        assert dict(entry.config.kwargs) == {"BLOCK_M": 128, "BLOCK_N": 256, "BK": 64, "SPLIT": 16, "FAST": True}

    def test_a_tile_size_that_is_not_tuned(self, planner: FixedKernel, cache: Path, tmp_path: Path) -> None:
        spec = consumer(
            tmp_path,
            "@triton.autotune(configs=[config(BLOCK_M=m, BLOCK_N=64, STEP=32) for m in (64, 128)], "
            "key=['M', 'N', 'K'], cache_results=True)",
            signature="a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STEP: tl.constexpr",
        )
        with pytest.raises(InvalidInput, match="--rename BLOCK_K=NAME"):
            export_triton(spec, [H200_ROW], cache)
        entry = export_triton(spec, [H200_ROW], cache, Options(renames={"BLOCK_K": "STEP"})).entries[0]
        assert dict(entry.config.kwargs)["STEP"] == 64

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            (Options(renames={"BLOCK_Q": "BLOCK_SIZE_M"}), "--rename BLOCK_Q"),
            (Options(renames={"BLOCK_M": "NOPE"}), "--rename to NOPE"),
            (Options(key_map={"rows": "M"}), "--key rows"),
            (Options(key_map={"M": "Q"}), "--key M=Q"),
            (Options(tensors={"d_ptr": "float32"}), "--tensor d_ptr"),
            (Options(tensors={"a_ptr": "foo"}), "--tensor a_ptr=foo: unknown dtype, expected none or one of bfloat16"),
            (Options(tensors={"a_ptr": "torch.half"}), "--tensor a_ptr=torch.half: unknown dtype"),
            (Options(arguments={"ACT": 1}), "--set ACT"),
        ],
    )
    def test_options_that_name_nothing(self, planner: FixedKernel, cache: Path, options: Options, reason: str) -> None:
        with pytest.raises(InvalidInput, match=reason):
            export_triton(SPEC, [H200_ROW], cache, options)

    def test_rows_that_fall_on_one_entry(self, planner: FixedKernel, cache: Path, tmp_path: Path) -> None:
        spec = consumer(tmp_path, f"@triton.autotune({TWO}, key=['K'], cache_results=True)")
        planner.plans[(1, 1, 4096)] = (plan_config(BLOCK_M=64),)
        with pytest.raises(InvalidInput, match="fall on one entry"):
            export_triton(spec, [H200_ROW, H200_ROW._replace(shape=(1, 1, 4096))], cache)
        assert not cache.exists()

    def test_h100_and_h200_with_the_same_plan_share_the_entry(self, planner: FixedKernel, cache: Path) -> None:
        report = export_triton(SPEC, [H200_ROW, H200_ROW._replace(device="NVIDIA H100 80GB HBM3")], cache)
        assert len({e.path for e in report.entries}) == 1

    def test_nothing_to_export(self, planner: FixedKernel, cache: Path) -> None:
        with pytest.raises(InvalidInput, match="nothing to export"):
            export_triton(SPEC, [], cache)

    def test_no_triton(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("warpplan.service.feeds.triton_autotune.find_spec", lambda name: None)
        with pytest.raises(InvalidInput, match=r"warpplan\[gpu\]"):
            export_triton(SPEC, [H200_ROW], cache)

    def test_a_folder_that_cannot_be_written(self, planner: FixedKernel, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(StoreError, match="cannot write"):
            export_triton(SPEC, [H200_ROW], tmp_path / "file")

    def test_unknown_target(self) -> None:
        assert feeds.target("triton").DESCRIPTION
        with pytest.raises(UnknownName, match=r"expected one of .*triton"):
            feeds.target("tritron")
