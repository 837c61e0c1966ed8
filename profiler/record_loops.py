"""``python -m warpplan.profiler.record_loops``: solve every loop of the embedded profiles and write what ships.

``make solved-loops`` runs it, after a change of the model, of the solver or of a profile.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import warpplan.kernels
from warpplan.kernels import registry, solved_loops
from warpplan.planner.values.device import device
from warpplan.profiler.embedded import available, embedded


def record(device_names: Iterable[str]) -> dict[str, solved_loops.Entry]:
    """Every loop of every kernel's candidates for every dtype and each device, by its embedded profile."""
    with solved_loops.recording() as found:
        for device_name in device_names:
            for kernel_name in registry.names():
                kernel = registry.kernel(kernel_name)
                for dtype in kernel.declaration.dtypes:
                    kernel.solve_all(dtype, device(device_name), embedded(device_name))
        return found


def main() -> None:
    entries = record(available())
    path = Path(str(warpplan.kernels.__file__)).parent / "data" / solved_loops.FILE_NAME
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(solved_loops.packed(entries))
    print(f"{path}: {len(entries)} loops, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
