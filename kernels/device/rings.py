"""Rings of shared-memory slots between a producer and consumers, guarded by two barriers a slot.

    full[s]    the slot's bytes have landed          empty[s]    every consumer of the slot has let go of it

A slot's n-th use has ring index s + n · depth. It waits for ``full`` with parity n & 1 and for ``empty`` with the
opposite one, which a fresh barrier satisfies at once.
"""

from __future__ import annotations

from warpplan.kernels.triton_compat import gl, gluon, mbarrier


@gluon.jit
def init_ring(full, empty, DEPTH: gl.constexpr, CONSUMERS: gl.constexpr):
    """One arrival, the producer's, fills a slot; ``CONSUMERS`` arrivals empty it."""
    for slot in gl.static_range(DEPTH):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=CONSUMERS)


@gluon.jit
def wait_empty(empty, index, DEPTH: gl.constexpr):
    """Wait until the slot of ring index ``index`` may be filled."""
    mbarrier.wait(empty.index(index % DEPTH), (index // DEPTH & 1) ^ 1)


@gluon.jit
def wait_full(full, index, DEPTH: gl.constexpr):
    """Wait until the slot of ring index ``index`` may be read."""
    mbarrier.wait(full.index(index % DEPTH), index // DEPTH & 1)


@gluon.jit
def previous_slot(index, DEPTH: gl.constexpr):
    """The slot of the ring index before ``index``."""
    return (index + DEPTH - 1) % DEPTH
