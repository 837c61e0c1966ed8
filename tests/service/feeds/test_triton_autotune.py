"""An unmodified autotuned consumer reads our entries and benchmarks nothing.

The job is real: Triton's own autotuner, its own cache lookup, its own key; so are the store and the answers in it.
Stubbed are the GPU (a driver that knows its target and whose benchmark raises) and the launch (a recorder), because
there is no GPU here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warpplan.planner.errors import InvalidInput, StoreError, UnknownName
from warpplan.planner.values import codec
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.profile import Identity, Profile
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service import feeds
from warpplan.service.feeds import FeedRequest, triton_autotune
from warpplan.service.feeds.consumer_kernel import load
from warpplan.service.feeds.feed_report import ExportReport, VerifyReport
from warpplan.service.feeds.machine_here import Machine
from warpplan.service.feeds.provenance import beside, read_beside, write_beside
from warpplan.service.feeds.provenance import measured as provenance_of_a_job
from warpplan.service.store.answer_store import Store
from warpplan.service.store.tuned.kernel_answer_store import KernelAnswer, KernelAnswers
from warpplan.service.store.tuned.tuning_store import TunedTime, Tunings
from warpplan.service.tuning.tuned_entries import export_tuned, verify_tuned

triton = pytest.importorskip("triton", reason="needs triton (no GPU) to compute its cache keys")

CONSUMER = Path(__file__).with_name("consumer_kernel.py")
SPEC = f"{CONSUMER}:matmul"
SHAPE = (4096, 4096, 4096)
SIGNATURE = (
    "a_ptr=*bf16, b_ptr=*bf16, c_ptr=*bf16, stride_ak=1, stride_am=K, stride_bk=1, stride_bn=N, stride_cm=N, "
    "stride_cn=1"
)
SMALL = "a_ptr=*bf16, b_ptr=*bf16, c_ptr=*bf16"
"""The signature of :func:`consumer`'s kernel."""
H200, H100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"
PROFILE = Profile(Identity(H200, "", "", "", "", "", "", ""), CostTable(()), ())
MACHINE = "warpplan.service.feeds.machine_here.machine_here"


def listed(rows: int, columns: int, stages: int, warps: int) -> TuningConfig:
    """A configuration of the consumer's list."""
    kwargs = {"BLOCK_SIZE_M": rows, "BLOCK_SIZE_N": columns, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8}
    return TuningConfig.of(kwargs, num_warps=warps, num_stages=stages)


WIDE, NARROW = listed(128, 256, 3, 8), listed(64, 256, 4, 4)
TILE = TuningConfig.of({"BLOCK_M": 128, "BLOCK_N": 64, "BK": 32}, num_warps=4, num_stages=3)
"""One of :func:`consumer`'s list."""


class Kept:
    """A store of answers, as ``warpplan tune`` keeps them, and what is exported from it into the folder ``out``."""

    def __init__(self, store: Store, out: Path) -> None:
        self.answers, self.tunings = KernelAnswers(store.database), Tunings(store.database)
        self.out = out

    def keep(
        self, config: TuningConfig = WIDE, spec: str = SPEC, *, shape: tuple[int, ...] = SHAPE,
        signature: str = SIGNATURE, names: str = "MNK", **changes: Any,
    ) -> KernelAnswer:  # fmt: skip
        """Keep ``config`` as the first of a ranking of today."""
        function = load(spec).function
        sizes = tuple(sorted(zip(names.split() if " " in names else names, shape, strict=True)))
        answer = KernelAnswer(
            function.__name__, function.cache_key, sizes, signature, H200, codec.key(PROFILE), "1.0",
            ((config, 100.0),), triton=triton.__version__,
        )  # fmt: skip
        answer = replace(answer, **changes)
        self.answers.keep([answer])
        return answer

    def request(self, spec: str = SPEC, **changes: Any) -> FeedRequest:
        return replace(FeedRequest(self.out, H200, PROFILE, spec, planner="1.0"), **changes)

    def export(self, spec: str = SPEC, **changes: Any) -> ExportReport:
        return export_tuned(self.request(spec, **changes), self.answers, self.tunings)

    def verify(self, spec: str = SPEC, **changes: Any) -> VerifyReport:
        return verify_tuned(self.request(spec, **changes), self.answers, self.tunings)


@pytest.fixture
def kept(store: Store, cache: Path) -> Kept:
    return Kept(store, cache)


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

    def test_after_export_it_runs_what_was_ranked_first_without_a_benchmark(self, job: Job, kept: Kept) -> None:
        kept.keep()
        report = kept.export()
        launched = job.launch()
        assert launched["BLOCK_SIZE_M"] == 128
        assert launched["BLOCK_SIZE_N"] == 256
        assert (launched["num_warps"], launched["num_stages"], launched["num_ctas"]) == (8, 3, 1)
        assert Path(report.entries[0].path).is_relative_to(kept.out)

    def test_a_module_is_a_source(self, job: Job, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(CONSUMER.parent)
        kept.keep(spec="consumer_kernel:matmul")
        kept.export("consumer_kernel:matmul")
        sys.modules.pop("consumer_kernel")
        assert job.launch()["BLOCK_SIZE_N"] == 256

    def test_the_entry_reads_as_triton_writes_it(self, kept: Kept) -> None:
        kept.keep()
        entry = kept.export().entries[0]
        body = json.loads(Path(entry.path).read_text())
        assert body["key"] == [*SHAPE, "torch.bfloat16", "torch.bfloat16", "torch.bfloat16"]
        ((config, timings),) = body["configs_timings"]
        assert timings == [pytest.approx(0.1)] * 3
        assert config["pre_hook"] is None
        assert set(config["kwargs"]) == {"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M"}
        assert Path(entry.path).name == "matmul.autotune.json"

    def test_each_shape_gets_its_own(self, job: Job, kept: Kept) -> None:
        small = (128, 4096, 4096)
        kept.keep()
        kept.keep(NARROW, shape=small)
        kept.export()
        assert job.launch(shape=small)["BLOCK_SIZE_M"] == 64
        assert job.launch()["BLOCK_SIZE_M"] == 128

    def test_export_replaces_an_older_entry(self, job: Job, kept: Kept) -> None:
        for config, rows in ((WIDE, 128), (NARROW, 64)):
            kept.keep(config)
            kept.export()
            assert job.launch()["BLOCK_SIZE_M"] == rows

    def test_what_a_job_has_measured_is_kept_beside(self, kept: Kept) -> None:
        kept.keep()
        (exported,) = kept.export().entries
        path = Path(exported.path)
        assert kept.export().kept == (), "an older plan needs no copy"
        path.write_text(path.read_text().replace('"num_warps": 8', '"num_warps": 4'))
        measured = path.read_bytes()
        (copy,) = kept.export().kept
        assert Path(copy).read_bytes() == measured
        assert kept.verify().all_current
        path.write_bytes(measured)
        write_beside(path, provenance_of_a_job("triton", measured, Machine((H200,), "570.86")))
        assert kept.export().kept == (copy,)

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
    def test_another_launch_still_benchmarks(self, job: Job, kept: Kept, other: dict[str, Any]) -> None:
        kept.keep()
        kept.export()
        with pytest.raises(BenchmarkedError):
            job.launch(**other)

    def test_a_tensor_of_another_dtype(self, job: Job, kept: Kept) -> None:
        kept.keep(signature=SIGNATURE.replace("c_ptr=*bf16", "c_ptr=*fp32"))
        kept.export()
        assert job.launch(dtypes=("bfloat16", "bfloat16", "float32"))["BLOCK_SIZE_M"] == 128

    def test_key_names_and_arguments_of_the_consumers_own(self, job: Job, kept: Kept, tmp_path: Path) -> None:
        spec = consumer(
            tmp_path,
            f"@triton.autotune({TWO}, key=['rows', 'k', 'ACT'], cache_results=True)",
            signature="x, w, y_ptr, bias_ptr, rows, n, k, ACT: tl.constexpr, "
            "BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BK: tl.constexpr",
        )
        signature = "ACT='relu', bias_ptr=None, w=*bf16, x=*bf16, y_ptr=*bf16"
        kept.keep(TILE, spec, signature=signature, names="rows n k")
        kept.export(spec)
        tensors = [TorchLike("bfloat16") for _ in range(3)]
        launched = job.launch(
            Path(spec.rpartition(":")[0]), function="kernel", arguments=(*tensors, None, *SHAPE), ACT="relu"
        )
        assert (launched["BLOCK_M"], launched["BLOCK_N"], launched["BK"]) == (128, 64, 32)

    def test_pruning_and_heuristics_run_as_in_the_job(self, job: Job, kept: Kept, tmp_path: Path) -> None:
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
        kept.keep(TILE, spec, signature=SMALL)
        kept.export(spec)
        tensors = [TorchLike("bfloat16") for _ in range(3)]
        launched = job.launch(Path(spec.rpartition(":")[0]), function="kernel", arguments=(*tensors, *SHAPE))
        assert launched["BLOCK_M"] == 128
        assert launched["EVEN"] is True

    def test_tritons_globals_and_the_environment_stay_as_they_were(
        self, kept: Kept, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from triton import knobs
        from triton.runtime.driver import driver

        monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
        driver_before, environment = driver._active, dict(os.environ)
        kept.keep()
        kept.export()
        kept.verify()
        assert driver._active is driver_before
        assert dict(os.environ) == environment
        assert knobs.cache.dir == "elsewhere"
        assert knobs.cache.manager_class is None


class TestStale:
    """What Triton's key does not hold: it would take the entry, so ``verify`` says that it must not."""

    def test_the_other_gpu_of_the_architecture(self, kept: Kept) -> None:
        kept.keep()
        kept.keep(device=H100)
        kept.export()
        (entry,) = kept.verify(device=H100).entries
        assert (entry.hit, entry.config) == (False, None)
        assert f"Triton would take the entry for {H200}" in entry.reason

    @pytest.mark.parametrize(
        ("here", "changed"),
        [
            (Machine((H100,), "570.86"), "the GPU (was NVIDIA H200"),
            (Machine((H200,), "580.10"), "the driver (was 570.86, is 580.10)"),
        ],
    )
    def test_another_gpu_or_driver_since(
        self, kept: Kept, here: Machine, changed: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(MACHINE, lambda: Machine((H200,), "570.86"))
        kept.keep()
        kept.export()
        assert kept.verify().all_current
        monkeypatch.setattr(MACHINE, lambda: here)
        report = kept.verify()
        assert not report.all_hit
        assert changed in report.entries[0].reason
        assert "of 1 rows 1 miss" in report.summary()

    def test_a_driver_that_was_not_known_is_said_where_one_is(
        self, kept: Kept, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(MACHINE, Machine)
        kept.keep()
        assert dict(kept.export().identity)["driver"].startswith("unknown")
        assert kept.verify().all_current, "nobody knows a driver here either"
        monkeypatch.setattr(MACHINE, lambda: Machine((H200,), "580.10"))
        report = kept.verify()
        assert (report.all_hit, report.all_current) == (True, False)
        assert "the driver that it was made for is not known, and here is 580.10" in report.summary()

    def test_the_jobs_driver_is_told_or_was_measured_under(self, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(MACHINE, Machine)
        answer = kept.keep()
        told = {"driver": "580.10"}
        (entry,) = kept.export(settings=told).entries
        assert made(entry.path).driver == "580.10"
        assert kept.verify(settings=told).all_current
        assert "the driver (was 580.10, is 570.86)" in kept.verify(settings={"driver": "570.86"}).entries[0].reason
        environment = (("driver", "570.86"), ("triton", triton.__version__))
        kept.tunings.record([time_of(answer, WIDE, environment)])
        assert made(kept.export().entries[0].path).driver == "570.86"

    def test_an_older_choice_hits_and_is_not_current(self, kept: Kept) -> None:
        kept.keep()
        kept.export()
        kept.keep(NARROW)
        report = kept.verify()
        assert (report.all_hit, report.all_current) == (True, False)
        assert "1 hit what would not be exported today" in report.summary()
        assert "an older answer" in report.entries[0].reason

    def test_provenance_lies_beside_the_entry(self, kept: Kept) -> None:
        kept.keep()
        found = made(kept.export().entries[0].path)
        assert (found.device, found.planner, found.profile) == (H200, "1.0", codec.key(PROFILE))
        assert found.date.startswith("20")

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"profile": "0" * 64}, "stale: ranked from another profile: tune it again"),
            ({"planner": "0.1"}, "stale: ranked by 0.1, not today's planner 1.0"),
            ({"triton": "3.5.0"}, "stale: ranked as Triton 3.5.0 compiles it, and Triton "),
            ({"triton": ""}, "stale: ranked as a Triton that is not known compiles it"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_an_answer_of_another_profile_planner_or_triton_is_not_exported(
        self, kept: Kept, changes: dict[str, str], told: str
    ) -> None:
        kept.keep(NARROW, date="2999-01-01T00:00:00+00:00", **changes)
        with pytest.raises(InvalidInput, match=r"has no answer for .* that holds") as caught:
            kept.export()
        assert told in str(caught.value)
        assert not kept.out.exists()
        (entry,) = kept.verify().entries
        assert (entry.hit, told in entry.reason) == (False, True)
        kept.keep()
        (exported,) = kept.export().entries
        assert exported.config == WIDE, "today's answer goes before a newer one that is stale"
        assert kept.verify().all_current
        kept.keep(shape=(64, 64, 64), **changes)
        (skipped,) = kept.export().skipped
        assert told in skipped.reason
        assert not kept.verify().all_hit

    def test_a_time_holds_for_the_triton_that_it_was_measured_with(self, kept: Kept) -> None:
        answer = kept.keep(profile="0" * 64, planner="0.1", triton="3.5.0")
        kept.tunings.record([time_of(answer, NARROW, (("triton", "3.5.0"),))])
        with pytest.raises(InvalidInput, match=r"stale: measured with Triton 3\.5\.0, and Triton .* is installed"):
            kept.export()
        kept.tunings.record([time_of(answer, NARROW, (("triton", triton.__version__),))])
        kept.export()
        assert kept.verify().all_current, "what was measured comes from no profile and no planner"

    def test_an_entry_of_another_planner_is_not_current(self, kept: Kept) -> None:
        kept.keep()
        kept.export()
        kept.keep(planner="2.0")
        report = kept.verify(planner="2.0")
        assert (report.all_hit, report.all_current) == (True, False)
        assert report.entries[0].reason == "planned by 1.0, not today's planner"


class TestVerify:
    def test_hit(self, kept: Kept) -> None:
        kept.keep()
        kept.export()
        report = kept.verify()
        assert report.all_hit
        (entry,) = report.entries
        assert entry.reason == ""
        assert dict(entry.config.kwargs)["BLOCK_SIZE_M"] == 128 if entry.config else False

    def test_nothing_exported_and_nothing_made(self, kept: Kept) -> None:
        kept.keep()
        (entry,) = kept.verify().entries
        assert not entry.hit
        assert "nothing was exported" in entry.reason
        assert not kept.out.exists()

    def test_a_shape_that_was_not_exported(self, kept: Kept) -> None:
        kept.keep()
        kept.export()
        kept.keep(shape=(1, 4096, 4096))
        report = kept.verify()
        assert sorted(e.hit for e in report.entries) == [False, True]
        assert not report.all_hit
        assert "no entry for these sizes" in "".join(e.reason for e in report.entries)
        assert sum("MISS" in line for line in report.lines()) == 1

    def test_a_changed_kernel_says_so(self, kept: Kept, tmp_path: Path) -> None:
        decorator = f"@triton.autotune({TWO}, key=['M', 'N', 'K'], cache_results=True)"
        spec = consumer(tmp_path, decorator)
        kept.keep(TILE, spec, signature=SMALL)
        kept.export(spec)
        consumer(tmp_path, decorator, body="tl.program_id(0)")
        with pytest.raises(InvalidInput, match="its source is another than that of the 1 answer that is kept"):
            kept.verify(spec)
        kept.keep(TILE, spec, signature=SMALL)
        (entry,) = kept.verify(spec).entries
        assert not entry.hit
        assert "source kernel" in entry.reason
        consumer(tmp_path, decorator, body="tl.program_id(1)")
        with pytest.raises(InvalidInput, match="another than that of the 2 answers that are kept"):
            kept.verify(spec)

    def test_a_changed_environment_says_so(self, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
        kept.keep()
        kept.export()
        monkeypatch.setenv("DISABLE_LLVM_OPT", "1")
        (entry,) = kept.verify().entries
        assert not entry.hit
        assert "environment" in entry.reason
        assert "DISABLE_LLVM_OPT" in entry.reason

    def test_a_damaged_entry_says_so(self, kept: Kept) -> None:
        kept.keep()
        Path(kept.export().entries[0].path).write_text('{"key": [')
        (entry,) = kept.verify().entries
        assert not entry.hit
        assert "damaged" in entry.reason

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
    def test_a_hit_without_provenance_is_not_current(self, kept: Kept, text: str | None, told: str) -> None:
        kept.keep()
        (exported,) = kept.export().entries
        if text is None:
            beside(Path(exported.path)).unlink()
        else:
            beside(Path(exported.path)).write_text(text)
        report = kept.verify()
        assert (report.all_hit, report.all_current) == (True, False)
        assert told in report.entries[0].reason
        assert told in report.summary()
        assert told in report.lines()[1]
        kept.export()
        assert kept.verify().all_current

    @pytest.mark.parametrize("text", ["[" * 100_000, '{"identity": 3}', "null", "{"])
    def test_a_damaged_manifest_says_so(self, kept: Kept, text: str) -> None:
        kept.keep()
        (exported,) = kept.export().entries
        Path(exported.path).unlink()
        (kept.out / "warpplan-matmul.json").write_text(text)
        (entry,) = kept.verify().entries
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
        self, kept: Kept, kwargs: dict[str, int] | None, warps: object, told: str
    ) -> None:
        kept.keep()
        (exported,) = kept.export().entries
        entry = json.loads(Path(exported.path).read_text())
        config = entry["configs_timings"][0][0]
        config |= {"num_warps": warps, "kwargs": config["kwargs"] if kwargs is None else kwargs}
        Path(exported.path).write_text(json.dumps(entry))
        (found,) = kept.verify().entries
        assert (found.hit, found.config) == (False, None)
        assert told in found.reason

    def test_an_entry_that_nests_too_deeply_says_so(self, kept: Kept) -> None:
        kept.keep()
        (exported,) = kept.export().entries
        Path(exported.path).write_text("[" * 100_000)
        (entry,) = kept.verify().entries
        assert not entry.hit
        assert "damaged and the launch will fail (RecursionError" in entry.reason


class TestReport:
    def test_names_what_the_entries_are_valid_for(self, kept: Kept) -> None:
        kept.keep()
        text = "\n".join(kept.export().lines())
        assert f"triton {triton.__version__} (build " in text
        assert "sm_90" in text
        assert "K=4096xM=4096" not in text
        assert f"on {H200}: BLOCK_SIZE_K=32 BLOCK_SIZE_M=128" in text


class TestRefusals:
    @pytest.mark.parametrize("command", ["export", "verify"])
    def test_shapes_do_not_say_how_a_kernel_is_launched(self, kept: Kept, command: str) -> None:
        with pytest.raises(InvalidInput, match=r"warpplan tune .*:matmul --shapes .* then give --tuned") as caught:
            getattr(feeds.target("triton"), command)(kept.request())
        assert "\n" not in str(caught.value)
        assert not kept.out.exists()

    def test_a_triton_that_was_not_tested(self, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(triton_autotune, "TESTED", ("2.0.0",))
        kept.keep()
        for run in (kept.export, kept.verify):
            with pytest.raises(InvalidInput, match=r"triton 3.* was not tested.* Tested: 2\.0\.0\. Give --untested"):
                run()
        kept.export(untested=True)
        assert kept.verify(untested=True).all_current

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
        ],
        ids=["not cached", "no key", "one config", "not tuned", "pre_hook"],
    )
    def test_where_triton_would_not_look(self, kept: Kept, tmp_path: Path, decorator: str, reason: str) -> None:
        with pytest.raises(InvalidInput, match=reason):
            kept.export(consumer(tmp_path, decorator))
        assert not kept.out.exists()

    def test_pruning_that_raises(self, kept: Kept, tmp_path: Path) -> None:
        spec = consumer(
            tmp_path,
            f"@triton.autotune({TWO}, key=['M', 'N', 'K'], cache_results=True, "
            "prune_configs_by={'early_config_prune': lambda configs, named, **kw: 1 / 0})",
        )
        kept.keep(TILE, spec, signature=SMALL)
        with pytest.raises(InvalidInput, match="raised ZeroDivisionError"):
            kept.export(spec)
        assert not kept.out.exists()

    def test_pruned_to_one(self, job: Job, kept: Kept, tmp_path: Path) -> None:
        """Triton 3.6 looks the one configuration up like any other; 3.9 runs it and looks nothing up."""
        spec = consumer(
            tmp_path,
            f"@triton.autotune({TWO}, key=['M', 'N', 'K'], cache_results=True, "
            "prune_configs_by={'early_config_prune': lambda configs, named, **kw: configs[:1]})",
        )
        kept.keep(TILE, spec, signature=SMALL)
        arguments = (*(TorchLike("bfloat16") for _ in range(3)), *SHAPE)
        try:
            kept.export(spec)
        except InvalidInput as error:
            assert "pruning leaves a single configuration" in str(error)  # noqa: PT017
            assert not kept.out.exists()
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
    def test_a_consumer_that_cannot_be_loaded(self, kept: Kept, spec: str, reason: str) -> None:
        with pytest.raises(InvalidInput, match=reason) as caught:
            kept.export(spec)
        assert "\n" not in str(caught.value)

    def test_answers_that_fall_on_one_entry(self, kept: Kept, tmp_path: Path) -> None:
        spec = consumer(tmp_path, f"@triton.autotune({TWO}, key=['K'], cache_results=True)")
        kept.keep(TILE, spec, signature=SMALL)
        kept.keep(
            TuningConfig.of({"BLOCK_M": 64, "BLOCK_N": 64, "BK": 32}, num_warps=4, num_stages=3), spec,
            signature=SMALL, shape=(1, 1, 4096),
        )  # fmt: skip
        with pytest.raises(InvalidInput, match="fall on one entry"):
            kept.export(spec)
        assert not kept.out.exists()

    def test_nothing_to_export(self, kept: Kept) -> None:
        with pytest.raises(InvalidInput, match="none is kept under its name"):
            kept.export()
        kept.keep(device=H100)
        with pytest.raises(InvalidInput, match="what is kept of it is for another GPU"):
            kept.export()

    def test_no_triton(self, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("warpplan.service.feeds.triton_autotune.find_consumer", lambda name: None)
        with pytest.raises(InvalidInput, match=r"warpplan\[gpu\]"):
            kept.export()

    def test_a_folder_that_cannot_be_written(self, kept: Kept, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        kept.keep()
        with pytest.raises(StoreError, match="cannot write"):
            kept.export(out=tmp_path / "file")

    def test_unknown_target(self) -> None:
        assert feeds.target("triton").DESCRIPTION
        with pytest.raises(UnknownName, match=r"expected one of .*triton"):
            feeds.target("tritron")


def made(path: str) -> Any:
    found = read_beside(Path(path))
    assert found is not None
    return found


def time_of(answer: KernelAnswer, config: TuningConfig, environment: tuple[tuple[str, str], ...]) -> TunedTime:
    """9 us of ``config``, as ``warpplan tune --measure`` keeps it."""
    return TunedTime(answer.kernel, answer.source, answer.tuning_key, config, answer.device, environment, 9.0)
