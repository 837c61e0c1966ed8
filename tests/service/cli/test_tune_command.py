"""``warpplan tune`` as a user runs it: a kernel's own list or a space ranked for shapes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

from warpplan.planner.errors import InvalidInput  # noqa: E402
from warpplan.service.cli.app import main  # noqa: E402
from warpplan.service.store.answer_store import Store  # noqa: E402
from warpplan.service.store.tuned.kernel_answer_store import KernelAnswers  # noqa: E402
from warpplan.service.tuning.size_formulas import evaluate, whole_number  # noqa: E402
from warpplan.service.tuning.size_words import shape_named, space  # noqa: E402

KERNELS = """
import triton
import triton.language as tl


def configs():
    return [triton.Config({"BM": m, "BN": 128, "BK": 64}, num_warps=4, num_stages=s) for m, s in
            ((128, 3), (64, 3), (128, 8))]


@triton.autotune(configs(), key=["M"])
@triton.jit
def product(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bk, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, col = tl.program_id(0) * BM, tl.program_id(1) * BN
    rows, cols, depth = row + tl.arange(0, BM), col + tl.arange(0, BN), tl.arange(0, BK)
    a_ptrs = a_ptr + rows[:, None] * stride_am + depth[None, :]
    b_ptrs = b_ptr + depth[:, None] * stride_bk + cols[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), acc)
        a_ptrs += BK
        b_ptrs += BK * stride_bk
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc.to(tl.bfloat16))


@triton.jit
def gathered(x_ptr, index_ptr, out_ptr, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + tl.load(index_ptr + at)))


@triton.heuristics({"BLOCK": lambda given: triton.next_power_of_2(given["cols"])})
@triton.heuristics({"WHOLE": lambda given: given["BLOCK"] == given["cols"]})
@triton.heuristics({"HAS_BIAS": lambda given: given["bias"] is not None})
@triton.autotune([triton.Config({}, num_warps=w) for w in (1, 4)], key=["cols"])
@triton.heuristics({"STRIDE": lambda given: given["x_ptr"].stride(0)})
@triton.jit
def rows(
    x_ptr, bias, out_ptr, cols, STRIDE, WHOLE: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):
    at = tl.arange(0, BLOCK)
    tl.static_assert(not WHOLE, "not a whole row")
    x = tl.load(x_ptr + tl.program_id(0) * STRIDE + at, mask=at < cols)
    if HAS_BIAS:
        x += tl.load(bias + at, mask=at < cols)
    tl.store(out_ptr + tl.program_id(0) * STRIDE + at, x, mask=at < cols)


@triton.jit
def listed(x_ptr, count_ptr, N, BLOCK: tl.constexpr):
    for i in range(tl.load(count_ptr)):
        at = i * BLOCK + tl.arange(0, BLOCK)
        tl.store(x_ptr + at, tl.load(x_ptr + at) + N)


@triton.autotune([triton.Config({}, num_warps=w) for w in (1, 4, 8)], key=["cols"])
@triton.jit
def softmax(x_ptr, out_ptr, cols, B: tl.constexpr):
    at = tl.program_id(0) * cols + tl.arange(0, B)
    x = tl.load(x_ptr + at).to(tl.float32)
    e = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + at, (e / tl.sum(e, 0)).to(tl.bfloat16))


not_a_kernel = 3
"""
SHAPE = ("--shapes", "M=2048 N=2048 K=1024")
POINTERS = "a_ptr=*bf16, b_ptr=*bf16, c_ptr=*bf16"
SIGNATURE = ("--signature", f"{POINTERS}, stride_am=K, stride_bk=N")
GRID = ("--grid", "cdiv(M, BM), cdiv(N, BN)")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kernels") / "mine.py"
    path.write_text(KERNELS)
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["tune", *words])
    said = capsys.readouterr()
    return status, said.out, said.err


class TestTune:
    def test_the_kernels_own_list_is_ranked_and_what_does_not_fit_is_left_out(
        self, kernels: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = (f"{kernels}:product", *SHAPE, "--shapes", "M=256 N=2048 K=1024", *SIGNATURE, *GRID, "--json")
        status, out, _ = run(capsys, *words)
        assert status == 0
        plain = json.loads(out)
        assert plain["schema"] == "warpplan/tune-1"
        for found in plain["shapes"]:
            times = [r["predicted_us"] for r in found["ranked"]]
            assert times == sorted(times)
            assert [r["config"]["kwargs"]["BM"] for r in found["refused"]] == [128]
            assert "shared memory" in found["refused"][0]["reason"]
        big, small = plain["shapes"]
        assert [r["programs"] for r in big["ranked"]] == [
            16 * 2048 // r["config"]["kwargs"]["BM"] for r in big["ranked"]
        ]
        # Two row blocks of 128 leave most of the SMs without work.
        assert small["ranked"][0]["config"]["kwargs"]["BM"] == 64
        assert big["ranked"][0]["dram_bytes"] == 2 * (2048 * 1024 + 1024 * 2048 + 2048 * 2048)

    def test_a_space_takes_the_lists_place(self, kernels: Path, capsys: pytest.CaptureFixture[str]) -> None:
        options = ("--space", "BM=64 BN=64,128 BK=64 num_warps=4 num_stages=2,3")
        status, out, _ = run(capsys, f"{kernels}:product", *SHAPE, *SIGNATURE, *GRID, *options)
        assert status == 0
        assert "4 configurations, best first" in out
        assert "priced without a measurement" not in out

    def test_what_the_file_prints_is_no_part_of_the_answer(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "printing.py"
        path.write_text(f'print("imported")\n{KERNELS}')
        status, out, err = run(capsys, f"{path}:product", *SHAPE, *SIGNATURE, *GRID, "--json")
        assert (status, json.loads(out)["schema"]) == (0, "warpplan/tune-1")
        assert "imported" in err

    def test_the_stores_help_says_that_answers_are_kept_and_not_looked_up(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "300")
        _, out, _ = run(capsys, "--help")
        assert "Keep the answers here" in out
        assert "Look here first" not in out

    def test_gathered_loads_are_said_to_be_unknown(self, kernels: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = ("--shapes", "N=65536", "--signature", "x_ptr=*fp32, index_ptr=*i32, out_ptr=*fp32",
                 "--grid", "cdiv(N, BLOCK)", "--space", "BLOCK=512,1024")  # fmt: skip
        status, out, _ = run(capsys, f"{kernels}:gathered", *words)
        assert status == 0
        assert "looked up in memory" in out
        assert "the length of a loop" not in out

    def test_a_loop_of_unknown_length_is_said_to_be(self, kernels: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = (
            "--shapes",
            "N=1",
            "--signature",
            "x_ptr=*fp32, count_ptr=*i32",
            "--grid",
            "64",
            "--space",
            "BLOCK=256",
        )
        status, out, _ = run(capsys, f"{kernels}:listed", *words)
        assert (status, "the length of a loop depends on data: 32 iterations stand for it" in out) == (0, True)
        plain = json.loads(run(capsys, f"{kernels}:listed", *words, "--json")[1])
        assert [r["trips_known"] for r in plain["shapes"][0]["ranked"]] == [False]

    @pytest.mark.parametrize(
        ("kernel", "changed", "told"),
        [
            ("product", ("--grid", "cdiv(M, BLOCK)"), "no value for BLOCK"),
            ("product", ("--grid", "M - 4096"), "expected one to three sizes from 1 on"),
            (
                "product",
                ("--grid", "cdiv(M, BM), 2048 * N"),
                "has 4194304 programs along y: CUDA launches at most 65535",
            ),
            ("product", ("--shapes", "M=2048 N=oops"), "expected NAME=NUMBER"),
            ("product", ("--space", "BM=64,x"), "expected NAME=NUMBER,NUMBER"),
            ("product", ("--space", "TILE=64"), "sets TILE: the kernel's parameters are"),
            ("product", ("--signature", "a_ptr=*bf16"), "b_ptr: missing"),
            ("product", ("--shapes", "M=2048 N=²"), "'N=²': expected NAME=NUMBER"),
            ("product", ("--shapes", f"M={'9' * 5000}"), "of numbers up to 4611686018427387904"),
            ("product", ("--space", "BM=64,²"), "expected NAME=NUMBER,NUMBER"),
            ("product", ("--space", f"BM={'9' * 5000}"), "of numbers up to 4611686018427387904"),
            ("product", ("--signature", f"{SIGNATURE[1]}, K=i32"), "K = i32: --shapes gives K=1024: leave it out"),
            ("product", ("--signature", f"{SIGNATURE[1]}, BM=64"), "BM = 64: a configuration gives BM=128"),
            (
                "product",
                ("--signature", f"{POINTERS}, stride_am=²"),
                "stride_am = ²: no type",
            ),
            (
                "product",
                ("--signature", f"{POINTERS}, stride_am=--5"),
                "stride_am = --5: no type",
            ),
            ("product", ("--grid", "cdiv(M)"), "cdiv() missing 1 required positional argument"),
            ("product", ("--signature", "a_ptr=*bf16, zzz=1"), "zzz"),
            ("product", ("--device", "NVIDIA A100"), "unknown device"),
            ("gathered", (), "give the configurations with --space"),
            ("not_a_kernel", (), "is no Triton kernel"),
        ],
    )
    def test_what_means_nothing_is_refused_in_one_line(
        self, kernels: Path, capsys: pytest.CaptureFixture[str], kernel: str, changed: tuple[str, ...], told: str
    ) -> None:
        given = {option: (option, value) for option, value in (SHAPE, SIGNATURE, GRID)}
        given |= {changed[0]: changed} if changed else {}
        status, out, err = run(capsys, f"{kernels}:{kernel}", *(w for pair in given.values() for w in pair))
        assert (status, out) == (2, "")
        assert told in err
        assert len(err.splitlines()) == 1

    def test_heuristics_are_computed_as_at_a_launch(self, kernels: Path, capsys: pytest.CaptureFixture[str]) -> None:
        shape, grid = ("--shapes", "count=4096 cols=1000"), ("--grid", "count * BLOCK // 1024", "--json")
        # A value that the heuristic computes otherwise is not the launch's.
        given = "x_ptr=*bf16, out_ptr=*bf16, WHOLE=True, STRIDE=1024"
        found = {}
        for bias in ("*bf16", "None"):
            signature = ("--signature", f"{given}, bias={bias}")
            status, out, err = run(capsys, f"{kernels}:rows", *shape, *signature, *grid)
            assert (status, err) == (0, "")
            found[bias] = json.loads(out)["shapes"][0]["ranked"]
        assert [r["programs"] for r in found["None"]] == [4096, 4096]
        assert found["*bf16"][0]["dram_bytes"] - found["None"][0]["dram_bytes"] == 2 * 1024
        status, _, err = run(capsys, f"{kernels}:rows", "--shapes", "count=4096 cols=1024", *signature, *grid)
        assert status == 1, "every configuration's row is whole"

    def test_a_heuristic_that_asks_for_more_is_named(self, kernels: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = ("--shapes", "cols=1000", "--grid", "1", "--signature", "x_ptr=*bf16, out_ptr=*bf16, bias=None")
        status, out, err = run(capsys, f"{kernels}:rows", *words)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert "STRIDE: missing, and its heuristic raised AttributeError" in err
        assert "give its value" in err

    def test_axes_are_given_in_one_grid(self, kernels: Path, capsys: pytest.CaptureFixture[str]) -> None:
        grids = ("--grid", "cdiv(M, BM)", "--grid", "cdiv(N, BN)")
        status, _, err = run(capsys, f"{kernels}:product", *SHAPE, *SIGNATURE, *grids)
        assert (status, "give all axes in one, --grid 'cdiv(M, BM), cdiv(N, BN)'" in err) == (2, True)

    def test_a_row_that_one_warp_cannot_hold_is_not_ranked_first(
        self, kernels: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ("--shapes", "rows=4096 cols=16384", "--grid", "rows", "--json")
        signature = ("--signature", "x_ptr=*bf16, out_ptr=*bf16, B=16384")
        _, out, _ = run(capsys, f"{kernels}:softmax", *words, *signature)
        warps = [r["config"]["num_warps"] for r in json.loads(out)["shapes"][0]["ranked"]]
        assert warps[-1] == 1, "it spills thousands of bytes a thread"

    def test_a_list_of_which_nothing_runs_is_told_and_not_kept(
        self, kernels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ("--shapes", "rows=64 cols=1000", "--grid", "rows", "--store", str(tmp_path / "s.sqlite"))
        signature = ("--signature", "x_ptr=*bf16, out_ptr=*bf16, B=1000")
        status, out, _ = run(capsys, f"{kernels}:softmax", *words, *signature)
        assert status == 1
        assert "none of the configurations can run" in out
        assert "left out: num_warps=8 num_stages=3: does not compile" in out
        store = Store.open(tmp_path / "s.sqlite")
        assert KernelAnswers(store.database).of("softmax") == ()
        store.close()


class TestSizes:
    def test_expressions_of_sizes(self) -> None:
        names = {"M": 100, "BM": 32}
        assert evaluate("cdiv(M, BM) * max(1, 2) - 3 % 2", names, "grid") == 7
        assert evaluate("min(M // BM, -1 + 9)", names, "grid") == 3

    @pytest.mark.parametrize(
        "text", ["M / 2", "M.real", "__import__('os')", "M // 0", "M +", "2 ** 9", "f(M)", "'a' * 9", "9" * 600]
    )
    def test_anything_else_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidInput, match="grid"):
            evaluate(text, {"M": 1}, "grid")

    def test_a_space_is_every_combination(self) -> None:
        found = space("A=1,2 B=3 num_warps=4,8")
        assert [(dict(c.kwargs), c.num_warps, c.num_stages) for c in found] == [
            ({"A": 1, "B": 3}, 4, 3), ({"A": 1, "B": 3}, 8, 3), ({"A": 2, "B": 3}, 4, 3), ({"A": 2, "B": 3}, 8, 3),
        ]  # fmt: skip
        with pytest.raises(InvalidInput, match="at most"):
            space(" ".join(f"A{i}=1,2,3,4" for i in range(8)))

    def test_whole_numbers_are_digits_that_fit(self) -> None:
        assert [whole_number(text) for text in ("0", "-12", str(1 << 62))] == [0, -12, 1 << 62]
        for text in ("", "-", "--5", "²", "１２", "1_0", " 1", "1.0", str((1 << 62) + 1), "9" * 5000):
            assert whole_number(text) is None, text

    def test_a_shape_names_each_size_once(self) -> None:
        assert shape_named(["M=4", "N=8"]) == {"M": 4, "N": 8}
        with pytest.raises(InvalidInput, match="once a name"):
            shape_named(["M=4", "M=8"])
