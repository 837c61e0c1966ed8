"""Which GPUs and which driver this process would run on, read from the kernel module's files: no CUDA call, so that
nothing is initialised in a training job before its time. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc/driver/nvidia")


@dataclass(frozen=True)
class Machine:
    """``gpus`` are the models by the driver's names, such as "NVIDIA H200", sorted, each once; ``driver`` its version.
    Both are empty where there is no GPU, or where a container hides the files."""

    gpus: tuple[str, ...] = ()
    driver: str = ""

    @property
    def label(self) -> str:
        """``NVIDIA H200, driver 570.86``; empty where either is not known. What was measured under one label says
        nothing about another, and an empty one may be any machine's: what was measured there is shared with nobody."""
        return ", ".join([*self.gpus, f"driver {self.driver}"]) if self.gpus and self.driver else ""


def machine_here(proc: Path = PROC) -> Machine:
    """The machine that the files under ``proc`` describe. Never raises."""
    models = {
        found[1].strip()
        for path in _folders(proc / "gpus")
        if (found := re.search(r"^Model:\s*(.+)$", _text(path / "information"), re.MULTILINE))
    }
    version = re.search(r"Kernel Module(?: for \S+)?\s+([\d.]+)", _text(proc / "version"))
    return Machine(tuple(sorted(models)), version[1] if version else "")


def job_machine(driver: str = "") -> Machine:
    """The machine that a job runs on: this one, under ``driver`` where the job's is told."""
    here = machine_here()
    return Machine(here.gpus, driver or here.driver)


def driver_for(device: str, driver: str = "") -> str:
    """The driver that what is made for ``device`` will run under: ``driver`` where the job's is told, else this
    machine's where it has such a GPU; "" where nobody knows."""
    here = machine_here()
    return driver or (here.driver if device in here.gpus else "")


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
