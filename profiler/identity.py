"""Which GPU and which software this is: the part of a profile's identity that a child process reads."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path


def machine() -> dict[str, str]:
    """The fields of ``Identity`` but date and command. Needs torch, triton and a GPU."""
    import torch
    import triton

    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no CUDA GPU")
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver_version(),
        "cuda": str(torch.version.cuda),
        "triton": triton.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def driver_version() -> str:
    """The kernel driver's version by nvidia-smi, or by /proc where that is missing; "unknown" where both are."""
    try:
        asked = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
        )
        lines = asked.stdout.split()
        if asked.returncode == 0 and lines:
            return lines[0]
    except (OSError, subprocess.TimeoutExpired):
        pass
    try:
        found = re.search(r"Kernel Module(?: for \S+)?\s+([\d.]+)", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return "unknown"
    return found[1] if found else "unknown"
