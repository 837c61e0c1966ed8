"""Kernels played in numpy, as written or lowered: partitions under random schedules, mbarriers, TMA, cp.async and wgmma
that are done some time later, races found by vector clocks; and two kernels' results compared.
"""

EXPORTS: dict[str, tuple[str, ...]] = {}
