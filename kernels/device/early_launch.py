"""Launches that are prepared while the kernel before them in the stream still ends (programmatic dependent launch).

With :data:`LAUNCH_OPTIONS` a launch need not wait for the kernel before to have ended: its CTAs may begin before, and
wait in :func:`wait_for_previous_kernel` until all that the kernel before wrote can be read. Whatever else the launch
makes ready, barriers above all, comes before that call, and every access to global memory behind it.

They begin when the kernel before has ended, all but its writes, or when each of its CTAs has called
:func:`launch_dependents`, and find room. Of launches of some microseconds of one kernel in a row, from a CUDA graph,
that saves 0.2 to 0.8 us each. Longer ones may lose by it, one takes 1.25 times as long: a likely reason, not verified,
is that early CTAs lie on SMs in the order in which these become free, some beside one another and neighbours in the
tile order apart. Between kernels that are not launched so, the wait alone costs some 0.3 us in a CUDA graph, and gains
more in a stream (``benchmarks/results/early_launch_h200.json``: ``waits``, ``launches`` and ``plain``).
"""

from __future__ import annotations

from warpplan.kernels.triton_compat import gdc_launch_dependents, gdc_wait, gluon

LAUNCH_OPTIONS = {"launch_pdl": True}
"""Of each kernel that calls :func:`wait_for_previous_kernel`, and of no other."""


@gluon.jit
def wait_for_previous_kernel():
    """Called by all warps of the first partition, before the others begin; of a kernel of one partition, by all."""
    gdc_wait()


@gluon.jit
def launch_dependents():
    """Called by one warp of each CTA, once, where little is left to do."""
    gdc_launch_dependents()
