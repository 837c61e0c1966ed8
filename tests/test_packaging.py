"""The distribution is whole: wheel, sdist and editable install import from the root folders, typed, with their data."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]
ROOMS = {name.removeprefix("warpplan."): folder for name, folder in SETUPTOOLS["package-dir"].items()}


def run(*command: object, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def source_packages() -> set[str]:
    """Every folder of a room that holds modules, by its import name."""
    found = set()
    for room, folder in ROOMS.items():
        for module in (ROOT / folder).rglob("*.py"):
            inner = module.parent.relative_to(ROOT / folder).parts
            found.add(".".join(("warpplan", room, *inner)))
    return found


def source_modules() -> set[str]:
    """Every module as the path it has when installed."""
    return {
        f"warpplan/{room}/{path.relative_to(ROOT / folder)}"
        for room, folder in ROOMS.items()
        for path in (ROOT / folder).rglob("*.py")
    }


def checkout(target: Path) -> Path:
    """A copy of what git tracks or would track: a fresh clone, with nothing built in it."""
    try:
        listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=ROOT)
    except (AssertionError, OSError):
        pytest.skip("not a git checkout: the list of source files is unknown")
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)
    return target


# Imports every room; shows where each came from, which are typed, what data the profiler has, and what else is there.
PROBE = """
import importlib, importlib.resources, json, sys
rooms = json.loads(sys.argv[1])
modules = {r: importlib.import_module(f"warpplan.{r}") for r in rooms}
data = [f.name for f in importlib.resources.files("warpplan.profiler").joinpath("data").iterdir()]
typed = [r for r in rooms if importlib.resources.files(f"warpplan.{r}").joinpath("py.typed").is_file()]
import warpplan.planner.values.device
print(json.dumps({
    "files": {r: m.__file__ for r, m in modules.items()},
    "data": data, "typed": typed,
    "top": [n for n in ("planner", "profiler", "kernels", "service") if importlib.util.find_spec(n)],
}))
"""


def probe(target: Path, cwd: Path, **environment: str) -> dict[str, object]:
    # -S -E keeps this environment's own (perhaps editable) warpplan out; only `target` holds one.
    site = [p for p in sys.path if "site-packages" in p]
    code = f"import sys, site; site.addsitedir({str(target)!r}); sys.path += {site!r}\n" + PROBE
    output = run(sys.executable, "-S", "-I", "-c", code, json.dumps(sorted(ROOMS)), cwd=cwd, **environment)
    return json.loads(output)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel built from it, of a fresh copy."""
    folder = tmp_path_factory.mktemp("built")
    source = checkout(folder / "source")
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder, source, cwd=folder)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        # Python 3.11.2, Debian 12's, has no filters yet.
        tar.extractall(folder / "unpacked", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (unpacked,) = (folder / "unpacked").iterdir()
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, unpacked, cwd=folder)
    return folder


def test_every_package_is_listed() -> None:
    assert set(SETUPTOOLS["packages"]) == source_packages()


def test_every_room_is_typed() -> None:
    assert [room for room, folder in ROOMS.items() if not (ROOT / folder / "py.typed").exists()] == []


def test_the_embedded_profile_is_there() -> None:
    assert list((ROOT / "profiler" / "data").glob("*.json"))


def test_the_core_needs_neither_torch_nor_triton() -> None:
    names = {requirement.split(">")[0] for requirement in PYPROJECT["project"]["dependencies"]}
    assert not names & {"torch", "triton"}
    gpu = {requirement.split(">")[0] for requirement in PYPROJECT["project"]["optional-dependencies"]["gpu"]}
    assert gpu == {"torch", "triton"}


def test_every_dependency_has_a_lower_bound() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    everything = [*PYPROJECT["project"]["dependencies"], *(r for name in extras for r in extras[name])]
    bounded = [r for r in everything if ">=" in r or "==" in r or r.startswith("warpplan[")]
    assert bounded == everything


@pytest.mark.slow
def test_wheel(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
        names = set(archive.namelist())
    assert source_modules() <= names
    assert {n.split("/")[0] for n in names} == {"warpplan", wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"}
    found = probe(tmp_path / "site", tmp_path)
    assert all(str(f).startswith(str(tmp_path / "site")) for f in found["files"].values())
    assert sorted(found["typed"]) == sorted(ROOMS)
    assert found["top"] == [], "a top-level `kernels` or `service` would shadow other distributions"
    assert set(found["data"]) >= {p.name for p in (ROOT / "profiler" / "data").glob("*.json")}


@pytest.mark.slow
def test_wheel_has_the_console_script_and_metadata(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        info = next(n.split("/")[0] for n in archive.namelist() if ".dist-info/" in n)
        assert "warpplan = warpplan.service.cli.app:main" in archive.read(f"{info}/entry_points.txt").decode()
        metadata = archive.read(f"{info}/METADATA").decode()
    assert "Requires-Python: >=3.11" in metadata
    assert "Provides-Extra: gpu" in metadata
    assert "# warpplan" in metadata, "the README is the long description"


@pytest.mark.slow
def test_sdist_is_enough_to_test_from(built: Path) -> None:
    (unpacked,) = (built / "unpacked").iterdir()
    named = (
        "Makefile",
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "pyproject.toml",
        "planner/RULES.md",
    )
    pages = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*") if path.is_file()]
    for name in (*named, "tests/test_packaging.py", *(page for page in pages if "__pycache__" not in page)):
        assert (unpacked / name).is_file(), name


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["lenient", "strict"])
def test_editable_install(tmp_path: Path, mode: str) -> None:
    pytest.importorskip("pip", reason="needs pip to install")
    source = checkout(tmp_path / "source")
    site = tmp_path / "site"
    arguments = ["--config-settings", "editable_mode=strict"] if mode == "strict" else []
    run(
        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
        "--target", site, *arguments, "--editable", source,
        cwd=tmp_path,
    )  # fmt: skip
    found = probe(site, tmp_path)
    for room, folder in ROOMS.items():
        assert Path(found["files"][room]).resolve() == (source / folder / "__init__.py").resolve()
    assert found["top"] == []


def test_the_core_imports_without_torch_and_triton(tmp_path: Path) -> None:
    modules = [
        "kernels.registry",
        "profiler.embedded",
        "service.http.app",
        "service.cli.app",
        "service.client",
        "service.feeds",
    ]
    code = (
        "import importlib, sys; sys.modules.update(torch=None, triton=None)\n"
        f"for name in {modules}: importlib.import_module('warpplan.' + name)\n"
        "from warpplan.kernels import registry; print(registry.names())"
    )
    assert "gemm" in run(sys.executable, "-c", code, cwd=tmp_path)
