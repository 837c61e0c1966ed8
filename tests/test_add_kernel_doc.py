"""The page "Add your own kernel" is right: its blocks, put into files, are a kernel that is planned and served."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from warpplan.kernels import registry
from warpplan.kernels.declaration import Shape
from warpplan.planner.check.plan_check import check
from warpplan.planner.values.device import H200
from warpplan.profiler.embedded import embedded
from warpplan.service.cli.app import main
from warpplan.service.http.app import create_app
from warpplan.service.workflow.configure import Workflow

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "add-a-kernel.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PACKAGE = "scale_of_the_page"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The folder of the page as a package outside of this one, and the blocks that are no files, as they stand."""
    folder = tmp_path / PACKAGE
    folder.mkdir()
    (folder / "__init__.py").touch()
    rest = []
    for block in BLOCKS:
        text = block.replace("warpplan.kernels.scale", PACKAGE)
        named = re.match(r"# kernels/scale/(\w+\.py)\n", text)
        if named:
            (folder / named[1]).write_text(text)
        else:
            rest.append(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_KERNELS", dict(registry._KERNELS))
    yield rest
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.fixture
def registered(page: list[str]) -> list[str]:
    exec(compile(page[0], "add-a-kernel.md", "exec"), {})
    assert registry.names()[-1] == "scale"
    return page


def test_the_page_names_the_files_that_it_shows() -> None:
    shown = re.findall(r"^# kernels/scale/(\w+\.py)$", "\n".join(BLOCKS), re.MULTILINE)
    assert shown == ["space.py", "graph.py", "work.py", "tl.py", "kernel.py"]
    example = Path(__file__).parents[1] / "kernels" / "vector_add"
    assert all((example / name).exists() for name in re.findall(r"`(\w+\.py)`", PAGE))


def test_the_blocks_run(registered: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = {}
    for block in registered[1:]:
        exec(compile(block, "add-a-kernel.md", "exec"), found)
    assert "BLOCK_SIZE" in capsys.readouterr().out
    assert found["answer"].as_dict()["plan"]["status"] == "optimal"


@pytest.mark.parametrize("shape", [(98432,), (98432, "source=l2")])
def test_its_plans_are_optimal_and_pass_the_checker(registered: list[str], shape: Shape) -> None:
    kernel, profile = registry.kernel("scale"), embedded(H200.name)
    ranked = kernel.rank(shape, "float32", H200, profile, limit=100)
    assert len(ranked) > 3
    for plan in ranked:
        loop = kernel.loop(plan.config, "float32", H200, profile, shape)
        assert loop.outcome.status == "optimal"
        assert loop.outcome.plan is not None
        assert check(loop.outcome.plan, loop.graph) == ()


def test_it_is_served_and_documented(registered: list[str]) -> None:
    client = TestClient(create_app(Workflow()))
    answer = client.get("/v1/configs/scale", params={"N": 98432, "dtype": "float32"})
    assert answer.status_code == 200
    assert set(answer.json()["config"]["kwargs"]) == {"BLOCK_SIZE"}
    refused = client.get("/v1/configs/scale", params={"N": 0})
    assert (refused.status_code, refused.json()["field"]) == (422, "N")
    from_l2 = client.get("/v1/configs/scale", params={"N": 98432, "dtype": "float32", "source": "l2"}).json()
    assert from_l2["shape"] == {"N": 98432, "source": "l2"}
    assert from_l2["predicted"]["time_us"] < answer.json()["predicted"]["time_us"]
    refused = client.get("/v1/configs/scale", params={"N": 98432, "source": "ram"})
    assert (refused.json()["field"], refused.json()["limit"]) == ("source", ["dram", "l2"])
    batch = client.post("/v1/configs:batch", json={"items": [{"kernel": "scale", "N": 7}, {"M": 64, "N": 64, "K": 64}]})
    assert [result["status"] for result in batch.json()["results"]] == [200, 200]
    assert client.get("/v1/kernels").json()["kernels"][-1]["name"] == "scale"
    assert "/v1/configs/scale" in client.get("/openapi.json").json()["paths"]


def test_a_kernel_registered_while_the_service_runs_is_served(page: list[str]) -> None:
    client = TestClient(create_app(Workflow()))
    exec(compile(page[0], "add-a-kernel.md", "exec"), {})
    assert client.get("/v1/configs/scale", params={"N": 98432}).status_code == 200


def test_the_command_line_has_it(registered: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels"]) == 0
    listed = capsys.readouterr().out
    assert "scale            sizes N, dtypes float32, bfloat16: out[N] = 2 · x[N]" in listed
    assert "  source         where x lies before: dram | l2, default dram" in listed
    assert main(["plan", "scale", "N=98432", "source=l2"]) == 0
    assert "II " in capsys.readouterr().out
    assert main(["explain", "scale", "N=98432"]) == 0
    assert "What binds" in capsys.readouterr().out


def test_its_device_code_compiles(registered: list[str]) -> None:
    pytest.importorskip("triton", reason="compiling needs triton")
    from importlib import import_module

    from warpplan.kernels.compile import compile_report, specialized

    kernel = import_module(f"{PACKAGE}.tl").scale_kernel
    types = {"x_ptr": "*fp32", "out_ptr": "*fp32", "N": "i32"}
    source = specialized(kernel, types, {"BLOCK_SIZE": 1024}, ["x_ptr", "out_ptr"])
    assert compile_report(source, {"num_warps": 4}, 90, what="scale").clean


def test_a_kernel_must_declare_the_name_that_it_is_registered_under(page: list[str]) -> None:
    registry.register("other", f"{PACKAGE}.kernel:Scale")
    with pytest.raises(ValueError, match="registered as 'other' and declares 'scale'"):
        registry.kernel("other")
