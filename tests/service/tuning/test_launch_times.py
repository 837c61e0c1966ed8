"""What jobs' autotuners report of a kernel chooses among its kept configurations, where it is of that very launch."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

triton = pytest.importorskip("triton")

sys.path.insert(0, str(Path(__file__).parent))

from tuned_product import ALL, KERNELS, tune  # noqa: E402

from warpplan.planner.values.device import H200  # noqa: E402
from warpplan.service import listening  # noqa: E402
from warpplan.service.cli.app import main  # noqa: E402
from warpplan.service.client import Client, listen  # noqa: E402
from warpplan.service.feeds.consumer_kernel import Tensor, find, load  # noqa: E402
from warpplan.service.feeds.paper_launch import read_entry  # noqa: E402
from warpplan.service.store.answer_store import Store  # noqa: E402
from warpplan.service.store.tuned.kernel_answer_store import KernelAnswer, KernelAnswers  # noqa: E402
from warpplan.service.store.tuned.tuning_store import TunedTime, Tunings  # noqa: E402
from warpplan.service.tuning.kernel_choice import choose  # noqa: E402
from warpplan.service.tuning.launch_times import times_of  # noqa: E402

SIZES = {"M": 2048, "N": 2048, "K": 1024}
HERE = {"gpu": "NVIDIA H200", "driver": "580.1", "cuda": "13.0", "triton": triton.__version__, "torch": "2.13.0"}
BF16 = "torch.bfloat16"


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A kernel, and beside it the store in which ``warpplan tune`` has kept its answer."""
    path = tmp_path_factory.mktemp("tuned") / "mine.py"
    path.write_text(KERNELS)
    assert main(["tune", f"{path}:product", *ALL, "--store", str(path.with_name("store.sqlite"))]) == 0
    return f"{path}:product"


@pytest.fixture
def store(spec: str, tmp_path: Path) -> Iterator[Store]:
    """A copy of that store."""
    for path in Path(spec.partition(":")[0]).parent.glob("store.sqlite*"):
        shutil.copy(path, tmp_path)
    opened = Store.open(tmp_path / "store.sqlite")
    yield opened
    opened.close()


@pytest.fixture
def predicted(store: Store) -> KernelAnswer:
    """The answer: two configurations, best first."""
    (answer,) = KernelAnswers(store.database).of("product")
    assert len(answer.ranked) == 2
    return answer


def launch_key(spec: str, cache: Path, *sizes: int, dtype: str = "bfloat16") -> tuple[Any, ...]:
    """The key that the kernel's own autotuner makes of the job's launch."""
    a, b, c = (Tensor(dtype) for _ in range(3))
    return read_entry(load(spec), ((a, b, c, *sizes, 1024, 1.5), {}), H200, cache).key


def job_tunes(url: str, spec: str, times_us: dict[int, float], key: tuple[Any, ...]) -> None:
    """What Triton calls after a tuning; ``times_us`` by BM."""
    consumer = find(spec)
    timings = {config: [times_us[config.kwargs["BM"]] * 1e-3] * 3 for config in consumer.configs}
    best = min(timings, key=lambda config: timings[config][0])
    with listen(url, timeout=60, interval_s=60) as listener, pytest.MonkeyPatch.context() as patch:
        patch.setattr(listening, "environment", lambda gpu=0: HERE)
        listener(fn=consumer.fn, key=key, best_config=best, configs_timings=timings, duration=1.0, cache_hit=False)
        listener.flush()
    assert (listener.posted, listener.lost) == (1, 0)


def other_bm(answer: KernelAnswer) -> int:
    """The tile of the entry that was not predicted to be the fastest."""
    return int(dict(answer.ranked[-1][0].kwargs)["BM"])


def test_what_a_job_tunes_is_what_everyone_is_given_from_then_on(
    predicted: KernelAnswer, spec: str, store: Store, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slower, cache = other_bm(predicted), tmp_path / "cache"
    client = Client(url, timeout=60)
    before = client.tuned(find(spec), **SIZES)
    assert before is not None
    assert (before["config"]["kwargs"]["BM"] != slower, before["measured_us"]) == (True, None)
    key = launch_key(spec, cache, 2048, 2048, 1024)
    assert key == (2048, 2048, 1024, BF16, BF16, BF16)
    for _ in range(20):
        job_tunes(url, spec, {64: 500.0, 128: 500.0, slower: 190.0}, key)
    after = client.tuned(find(spec), **SIZES)
    assert after is not None
    assert (after["config"]["kwargs"]["BM"], after["measured_us"]) == (slower, 190.0)
    assert (after["provenance"]["source"], after["provenance"]["environment"]) == ("measured", HERE)

    status, out, _ = tune(capsys, spec, "--store", store.name, "--json")
    told = json.loads(out)["shapes"][0]["answer"]
    assert (status, told["config"], told["measured_us"]) == (0, after["config"], 190.0)
    export = ("export", "--tuned", "--consumer", spec, "--store", store.name, "--out", str(cache))
    assert main(list(export)) == 0
    a, b, c = (Tensor("bfloat16") for _ in range(3))
    entry = read_entry(load(spec), ((a, b, c, 2048, 2048, 1024, 1024, 1.5), {}), H200, cache)
    assert entry.config is not None
    assert dict(entry.config.kwargs)["BM"] == slower


def heard(answer: KernelAnswer, tunings: Tunings, *, us: float = 9.0, **changes: Any) -> None:
    """A report of the slower configuration, but for ``changes``."""
    values = {
        "kernel": "train.product", "source": answer.source, "key": (2048, 2048, 1024, BF16, BF16, BF16),
        "config": answer.ranked[-1][0], "device": answer.device, "environment": tuple(sorted(HERE.items())),
        "time_us": us,
    } | changes  # fmt: skip
    tunings.record([TunedTime(**values)])


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "another"},
        {"device": "NVIDIA H100 80GB HBM3"},
        {"key": (2048, 2048, 512, BF16, BF16, BF16)},
        {"key": (2048, 2048, 1024, "torch.float16", BF16, BF16)},
        {"key": (2048, 2048, 1024, BF16, BF16)},
        {"key": (2048.0, 2048, 1024, BF16, BF16, BF16)},
    ],
)
def test_of_another_launch_the_prediction_stays(predicted: KernelAnswer, store: Store, changes: dict[str, Any]) -> None:
    tunings = Tunings(store.database)
    heard(predicted, tunings, **changes)
    choice = choose(predicted, times_of([predicted], tunings))
    assert choice is not None
    assert (choice.config, choice.measured) == (predicted.ranked[0][0], None)
    heard(predicted, tunings)
    choice = choose(predicted, times_of([predicted], tunings))
    assert choice is not None
    assert (choice.config, choice.measured is not None) == (predicted.ranked[-1][0], True)


def test_a_configuration_that_the_answer_does_not_rank_is_left_out(predicted: KernelAnswer, store: Store) -> None:
    tunings = Tunings(store.database)
    heard(predicted, tunings, config=predicted.ranked[0][0].__class__.of({"BM": 256}, num_warps=4, num_stages=1))
    assert times_of([predicted], tunings) == ()


def test_two_kept_questions_of_one_key_are_both_predicted(predicted: KernelAnswer, spec: str, store: Store) -> None:
    """The key does not name ``scale``: which of the two was tuned is not known."""
    assert main(["tune", spec, *(word.replace("1.5", "2.5") for word in ALL), "--store", store.name]) == 0
    tunings = Tunings(store.database)
    heard(predicted, tunings)
    assert times_of(KernelAnswers(store.database).of("product"), tunings) == ()


def test_a_question_that_is_spelt_differently_is_the_same_launch(
    predicted: KernelAnswer, spec: str, store: Store
) -> None:
    words = (word.replace("stride_am=K", "stride_am=1024") for word in ALL)
    assert main(["tune", spec, *words, "--store", store.name]) == 0
    tunings, answers = Tunings(store.database), KernelAnswers(store.database).of("product")
    heard(predicted, tunings)
    assert {time.key for time in times_of(answers, tunings)} == {answer.tuning_key for answer in answers}
    assert len(answers) == 2


def test_a_key_that_leaves_a_size_open_stands_for_no_launch(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(KERNELS.replace('key=["M", "N", "K"]', 'key=["N", "K"]'))
    assert tune(capsys, f"{path}:product", "--store", store.name)[0] == 0
    source = find(f"{path}:product").fn.cache_key
    (answer,) = (found for found in KernelAnswers(store.database).of("product") if found.source == source)
    tunings = Tunings(store.database)
    heard(answer, tunings, key=(2048, 1024, BF16, BF16, BF16))
    assert times_of([answer], tunings) == ()


def test_times_that_were_taken_in_unlike_ways_are_not_compared(predicted: KernelAnswer, store: Store) -> None:
    """``warpplan tune --measure`` took one, an autotuner both: the autotuner's count."""
    tunings = Tunings(store.database)
    first, last = predicted.ranked[0][0], predicted.ranked[-1][0]
    heard(predicted, tunings, us=50.0, config=first)
    heard(predicted, tunings, us=40.0, config=last)
    heard(predicted, tunings, us=45.0, config=first, key=predicted.tuning_key, kernel="product")
    assert sorted(time.time_us or 0 for time in times_of([predicted], tunings)) == [40.0, 50.0]


def test_what_an_older_service_kept_is_not_certain_until_it_is_reported_again(
    predicted: KernelAnswer, store: Store
) -> None:
    """It may have been a prediction that Triton read from its disk cache."""
    tunings = Tunings(store.database)
    heard(predicted, tunings, us=5.0)
    with store.database.writing() as connection:
        connection.execute(text("UPDATE tuning_times SET certain = 0"))
    assert times_of([predicted], tunings) == ()
    heard(predicted, tunings, us=9.0)
    (time,) = times_of([predicted], tunings)
    assert (time.time_us, time.reports) == (9.0, 1)


def test_the_kept_reports_are_listed_as_before(predicted: KernelAnswer, store: Store, http: httpx.Client) -> None:
    heard(predicted, Tunings(store.database))
    (row,) = http.get("/v1/tunings", params={"kernel": "train.product"}).json()["tunings"]
    assert (row["time_us"], row["key"][:3]) == (9.0, [2048, 2048, 1024])


def test_an_export_in_a_process_that_listens_posts_nothing(
    predicted: KernelAnswer, spec: str, store: Store, url: str, tmp_path: Path
) -> None:
    """It takes the kernel's own autotuner through a tuning, with predicted times; a job that finds the entry reports
    none either."""
    with listen(url, timeout=60, interval_s=60) as listener:
        words = ("--tuned", "--consumer", spec, "--store", store.name, "--out", str(tmp_path / "cache"))
        assert main(["export", *words]) == 0
        assert main(["verify", *words]) == 0
        assert (len(listener._waiting), listener.cached) == (0, 0)
    assert Tunings(store.database).of_source(predicted.source) == ()
