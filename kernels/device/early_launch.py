"""Launches that are prepared while the kernel before them in the stream still ends (programmatic dependent launch).

With :data:`LAUNCH_OPTIONS` a launch need not wait for the kernel before to have ended: its CTAs may begin before, and
wait in :func:`wait_for_previous_kernel` until all that the kernel before wrote can be read. Whatever else the launch
makes ready, barriers above all, comes before that call, and every access to global memory behind it.

No kernel tells the next one to begin early (``griddepcontrol.launch_dependents``): its CTAs would then lie on SMs in
the order in which these become free, and neighbours in the tile order, which read the same operands, apart.
"""

from __future__ import annotations

from warpplan.kernels.triton_compat import gdc_wait, gluon

LAUNCH_OPTIONS = {"launch_pdl": True}
"""Of each kernel that calls :func:`wait_for_previous_kernel`, and of no other."""


@gluon.jit
def wait_for_previous_kernel():
    """Called by all warps of the first partition, before the others begin."""
    gdc_wait()
