"""The job end to end without a GPU: its parts against obvious ones, the loop from times to a calibrated profile, the
whole of it, small."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs torch (no GPU): make test-feeds installs it")
pytest.importorskip("matplotlib", reason="needs matplotlib: make test-feeds installs it")

FOLDER = Path(__file__).parents[1] / "examples" / "train"
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "common")]

import comparison  # noqa: E402
import job  # noqa: E402
import job_products  # noqa: E402
import train  # noqa: E402
from comparison import JobFailed, Jobs, calibrated, judged, table  # noqa: E402
from job import ALONE, PLAIN, SERVED, TUNED, WAYS, Learner, Way  # noqa: E402
from job_products import add_planned, add_with_torch, pointer_product  # noqa: E402
from job_shapes import LlamaSizes, shapes  # noqa: E402
from job_timings import TimedConfig, candidates, report  # noqa: E402
from llama import Llama, Rotary  # noqa: E402
from made_up_text import BEST_LOSS, CHANCES, MadeUpText  # noqa: E402
from planning_service import PLANNED_FOR, ServedConfigs, service  # noqa: E402
from torch.nn.functional import linear as torch_linear  # noqa: E402

from warpplan.kernels.linear_layer import autograd, products  # noqa: E402
from warpplan.kernels.registry import kernel  # noqa: E402
from warpplan.planner.errors import Infeasible  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402
from warpplan.profiler.embedded import embedded  # noqa: E402

SMALL = LlamaSizes(batch=2, length=20, width=32, heads=2, hidden=56, layers=1, vocabulary=40)
VERSIONS = {"driver": "1", "cuda": "13.0", "triton": "3.6.0", "torch": "2.13.0"}


@pytest.fixture(autouse=True)
def one_thread():
    """The products are so small that threads would only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_token_is_one_of_its_predecessors_four_successors():
    sizes = replace(SMALL, batch=16, length=200)
    text = MadeUpText(sizes, "cpu")
    tokens, successors = text.batch(3)
    assert tokens.shape == successors.shape == (16, 200)
    assert torch.equal(tokens[:, 1:], successors[:, :-1])
    pairs = set(zip(tokens.flatten().tolist(), successors.flatten().tolist(), strict=True))
    following = [len({b for a, b in pairs if a == word}) for word in range(sizes.vocabulary)]
    assert max(following) <= len(CHANCES) < 1.1 * sum(following) / len(following)
    assert pytest.approx(0.940, abs=1e-3) == BEST_LOSS
    assert torch.equal(tokens, MadeUpText(sizes, "cpu").batch(3)[0])
    assert not torch.equal(tokens, text.batch(4)[0])


def test_rotary_scores_depend_on_the_distance_alone():
    torch.manual_seed(0)
    turn, head = Rotary(12, 8), torch.randn(2, 8)
    q, k = (turn(row.expand(1, 1, 12, 8))[0, 0] for row in head)
    scores = q @ k.T
    for distance in range(12):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    torch.testing.assert_close(scores[0, 0], head[0] @ head[1])


def test_a_token_sees_no_later_one():
    torch.manual_seed(0)
    model = Llama(SMALL, add_with_torch, torch_linear)
    tokens = torch.randint(SMALL.vocabulary, (SMALL.batch, SMALL.length))
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % SMALL.vocabulary
    with torch.no_grad():
        before, after = (model.trunk(t).view(SMALL.batch, SMALL.length, -1) for t in (tokens, changed))
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_the_added_product_and_its_gradients_are_torchs():
    torch.manual_seed(0)
    operands = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((5, 8), (16, 8), (5, 16))]
    torch.testing.assert_close(add_planned(*operands), add_with_torch(*operands))
    assert torch.autograd.gradcheck(add_planned, operands)
    torch.library.opcheck(add_planned, [t.detach().float().requires_grad_() for t in operands])


@pytest.fixture
def as_on_hopper(monkeypatch):
    """Lets operands on the CPU take a Hopper GPU's path up to the kernels, which are torch's here; yields what
    configurations were asked for."""
    asked = []

    def configuration(name, shape, dtype, device):
        asked.append((name, shape))
        assert (dtype, device) == ("bfloat16", H200.name)
        if name == "gemm":
            raise Infeasible("torch multiplies", field="shape", value=shape)
        return "the residual's"

    def fused(a, b, config, *, residual):
        assert config == "the residual's"
        return add_with_torch(a, b, residual)

    launch = pytest.importorskip("warpplan.kernels.gemm_bias_act.launch", reason="needs triton")
    monkeypatch.setattr(launch, "gemm_bias_act", fused)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: H200.name)
    monkeypatch.setattr(autograd, "_runs_on", lambda index: True)
    for module in (products, job_products):
        monkeypatch.setattr(module, "hopper", lambda index: True)
        monkeypatch.setattr(module, "configuration", configuration)
    monkeypatch.setitem(products._hopper_names, None, H200.name)
    return asked


@pytest.mark.parametrize("mode", [None, "default"], ids=["eager", "compiled"])
def test_a_step_asks_for_the_shapes_that_were_fetched(as_on_hopper, mode):
    torch._dynamo.reset()
    learner = Learner(SMALL, Way(add_planned, mode=mode, plans=True), "cpu")
    learner.train(MadeUpText(SMALL, "cpu"), 1, 0.0)
    torch._dynamo.reset()
    assert set(as_on_hopper) == set(shapes(SMALL))
    assert len(shapes(SMALL)) == 12


def test_every_way_has_the_same_weights_and_losses():
    """By references all ways are torch's products; the losses of float32 differ by rounding."""
    text = MadeUpText(SMALL, "cpu")
    curves = {name: Learner(SMALL, WAYS[name], "cpu").train(text, 8, 0.0)[0] for name in (PLAIN, TUNED, SERVED)}
    exact = Learner(SMALL, WAYS[PLAIN], "cpu", torch.float32).train(text, 8, 0.0)[0]
    torch._dynamo.reset()
    for curve in curves.values():
        assert curve == pytest.approx(exact, rel=0.02)
        assert curve != exact
        assert curve[-1] < curve[0] - 0.2


def test_the_pointer_product_is_torchs_without_a_gpu():
    x, weight = torch.randn(3, 8), torch.randn(4, 8)
    assert torch.equal(pointer_product(x, weight), torch_linear(x, weight))


@pytest.mark.slow
def test_the_pointer_kernel_and_its_gradients_are_torchs():
    """As Triton's interpreter runs it, on rows and columns that no tile divides."""
    pytest.importorskip("triton", reason="needs triton")
    script = """
        import torch
        from triton.runtime import interpreter
        patch_tensor = interpreter._patch_lang_tensor
        def patch_index(tensor, *scope):  # Triton 3.6 counts on conversions that numpy 2.4 refuses
            patch_tensor(tensor, *scope)
            tensor.__index__ = lambda self: self.handle.data.item()
        interpreter._patch_lang_tensor = patch_index
        from job_products import _PointerProduct
        from pointer_matmul import matmul
        matmul.configs = matmul.configs[-1:]  # one tile: nothing to tune without a GPU
        torch.manual_seed(0)
        x, weight = torch.randn(75, 40, requires_grad=True), torch.randn(68, 40, requires_grad=True)
        ours, theirs = _PointerProduct.apply(x, weight), torch.nn.functional.linear(x, weight)
        gradient = torch.randn(75, 68)
        torch.testing.assert_close(ours, theirs)
        for a, b in zip(*(torch.autograd.grad(y, (x, weight), gradient) for y in (ours, theirs))):
            torch.testing.assert_close(a, b)
        print("equal")
    """
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(FOLDER), *sys.path])}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout == "equal\n", done.stderr


def run(losses, first_step_s, exact=None):
    return {"losses": losses, "first_step_s": first_step_s, "exact": exact}


def test_a_loss_that_rounding_does_not_explain_is_refused():
    exact = [4.0, 3.0, 2.0]
    runs = {PLAIN: run([4.0, 3.01, 2.0], [1.0], exact), TUNED: run([4.0, 3.01, 2.0], [8.0, 9.0])}
    rows, good = judged({**runs, SERVED: run([4.0, 3.0, 2.01], [2.0])})
    assert good
    assert [row["of_max_autotune"] for row in rows] == [0.125, 1.0, 0.25]
    assert len(table(rows).splitlines()) == 4
    assert not judged({**runs, SERVED: run([4.0, 3.0, 2.05], [2.0])})[1]


@pytest.mark.slow
def test_reported_times_make_a_calibrated_profile_whose_plans_are_served_next(tmp_path):
    """The GPU is stood in for: it takes 12 % longer than predicted, which its reports tell."""
    sizes = replace(LlamaSizes(), hidden=4096)
    profile = embedded(H200.name)
    times = []
    for name, shape in shapes(sizes):
        candidate = kernel(name).rank(shape, "bfloat16", H200, profile, limit=4)
        times += [TimedConfig(name, shape, plan.config, 1.12 * plan.prediction.time_us, 20) for plan in candidate]
    assert {time.config for time in times} >= set(candidates(*shapes(sizes)[0], "bfloat16", H200.name))
    store, out = tmp_path / "plans.sqlite", tmp_path / "calibrated.json"
    with service(store=store) as url:
        served = ServedConfigs(url)
        served.fetch(shapes(sizes), "bfloat16", H200.name)
        before = {answer["provenance"]["profile"] for answer in served.answers.values()}
        environment = {"gpu": H200.name, **VERSIONS}
        taken, refused = report(served.client, times, "bfloat16", H200.name, environment, "a run")
        assert (taken, refused) == (len(times), [])
        absurd = replace(times[0], time_us=1e-3)
        assert report(served.client, [absurd], "bfloat16", H200.name, environment, "a run")[0] == 0
    found = calibrated(store, {"device": H200.name, "environment": environment}, out)
    assert found["profile"], found
    (gemm,) = (c for c in found["report"]["calibrations"] if c["calibrated"])
    assert (gemm["name"], gemm["shapes"]) == ("gemm", 10)
    assert gemm["after"]["median_error"] < 0.5 * gemm["before"]["median_error"]
    with service(store=store, profile=out) as url:
        again = ServedConfigs(url)
        again.fetch(shapes(sizes), "bfloat16", H200.name)
    assert {answer["provenance"]["profile"] for answer in again.answers.values()} == {found["profile"]} != before
    assert calibrated(store, {"device": "CPU", "environment": {**VERSIONS, "driver": "2"}}, out)["profile"] is None


@pytest.fixture
def nobody():
    """A URL where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{free.getsockname()[1]}"


def test_a_job_whose_service_is_away_says_so_and_goes_on(nobody, tmp_path, capsys):
    out = tmp_path / "job.json"
    words = ["--way", SERVED, "--url", nobody, "--steps", "2", "--device", "cpu", "--out", str(out)]
    assert job.main(words) == 0
    torch._dynamo.reset()
    said = capsys.readouterr().err.strip()
    assert said.startswith(f"the service at {nobody} cannot be reached")
    assert said.endswith("the job goes on with configurations ranked in its own process")
    assert len(said.splitlines()) == 1
    result = json.loads(out.read_text())
    assert len(result["losses"]) == 2
    assert "configs" not in result


def test_a_repeated_cold_start_ends_after_its_first_step(tmp_path, monkeypatch):
    started = []

    def run_here(command, **options):
        started.append(command[2:])
        return SimpleNamespace(returncode=job.main(command[2:]))

    monkeypatch.setattr(comparison.subprocess, "run", run_here)
    found = Jobs(SMALL, 3, "cpu", tmp_path).compare(PLAIN, None, repeats=2)
    assert len(found["losses"]) == len(found["exact"]) == 3
    assert len(found["first_step_s"]) == len(started) == 2
    assert "exact" not in json.loads((tmp_path / "plain-torch-1" / "job.json").read_text())
    monkeypatch.setattr(comparison.subprocess, "run", lambda *a, **o: SimpleNamespace(returncode=1))
    with pytest.raises(JobFailed, match="the job 'no service' ended with status 1"):
        Jobs(SMALL, 3, "cpu", tmp_path).run(ALONE, None)


def test_a_comparison_that_was_cut_off_goes_on_behind_what_had_finished(tmp_path, monkeypatch):
    started = []

    def run_here(command, **options):
        started.append(command[2:])
        return SimpleNamespace(returncode=job.main(command[2:]))

    monkeypatch.setattr(comparison.subprocess, "run", run_here)
    jobs = Jobs(SMALL, 3, "cpu", tmp_path)
    assert not jobs.finished(PLAIN)
    first = jobs.run(PLAIN, None)
    assert jobs.finished(PLAIN)
    assert not [path for path in (tmp_path / "plain-torch-0").iterdir() if path.is_dir()], "caches are gone"
    assert Jobs(SMALL, 3, "cpu", tmp_path).run(PLAIN, None) == first
    assert len(started) == 1
    other = Jobs(SMALL, 2, "cpu", tmp_path)
    assert not other.finished(PLAIN)
    assert len(other.run(PLAIN, None)["losses"]) == 2
    assert len(started) == 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--steps", "0"], "--steps 0: expected 1 or more"),
        (["--layers", "-1"], "--layers -1: expected 1 or more"),
        (["--url", "planner:8000"], "--url planner:8000: expected http://host:port"),
        (["--device", "tpu"], "invalid choice: 'tpu'"),
        (["--steps", "many"], "invalid int value: 'many'"),
        (["--out", __file__], f"--out {__file__}: File exists"),
    ],
)
def test_bad_options_are_one_line(words, reason, capsys):
    with pytest.raises(SystemExit) as ended:
        train.main(words)
    said = capsys.readouterr().err.strip()
    assert ended.value.code == 2
    assert reason in said
    assert len(said.splitlines()) == 1


@pytest.mark.slow
def test_the_whole_job_runs_beside_services_of_its_own(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "WARPPLAN_URL"}
    command = [sys.executable, FOLDER / "train.py", "--device", "cpu", "--steps", "5", "--layers", "1"]
    command += ["--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "train.json").read_text())
    assert [row["way"] for row in result["rows"]] == list(WAYS)
    assert {len(run["losses"]) for run in result["jobs"]} == {5}
    assert all(run["parts"]["imports"] < run["seconds"][0] for run in result["jobs"])
    *_, served, second = result["jobs"]
    assert len(served["configs"]) == len(second["configs"]) == 12
    assert {answer["device"] for answer in served["configs"]} == {PLANNED_FOR}
    assert served["measured"]["taken"] == 0
    assert "no measured time" in result["calibration"]["reason"]
    assert {"device", "versions", "date", "command"} < set(result)
    assert (tmp_path / "train.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "unfinished").exists()
