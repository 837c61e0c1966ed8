"""Rings of shared-memory slots between a producer and consumers, guarded by two barriers a slot.

    full[s]    the slot's bytes have landed          empty[s]    every consumer of the slot has let go of it

A slot's n-th use has ring index s + n · depth. It waits for ``full`` with parity n & 1 and for ``empty`` with the
opposite one, which a fresh barrier satisfies at once.

In a cluster every CTA has a ring and its barriers. What the first CTA copies into the slots of all of them waits for
one more barrier a slot, the first CTA's, at which the consumers of all CTAs arrive; there alone that CTA waits.
"""

from __future__ import annotations

from warpplan.kernels.triton_compat import gl, gluon, mbarrier


@gluon.constexpr_function
def barrier_layout(cluster, shared):
    """Of one barrier a CTA, or of one that the CTAs of a cluster share: the first one's."""
    return mbarrier.MBarrierLayout() if cluster == 1 else mbarrier.MBarrierLayout([[0 if shared else 1]])


@gluon.jit
def allocate_barriers(COUNT: gl.constexpr, CLUSTER: gl.constexpr = 1, SHARED: gl.constexpr = False):
    """``COUNT`` barriers a CTA or, ``SHARED``, a cluster."""
    CTAS: gl.constexpr = 1 if SHARED else CLUSTER
    LAYOUT: gl.constexpr = barrier_layout(CLUSTER, SHARED)
    return gl.allocate_shared_memory(gl.int64, [COUNT, CTAS], LAYOUT)


@gluon.jit
def init_ring(full, empty, DEPTH: gl.constexpr, CONSUMERS: gl.constexpr):
    """One arrival, the producer's, fills a slot; ``CONSUMERS`` arrivals empty it."""
    for slot in gl.static_range(DEPTH):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=CONSUMERS)


@gluon.jit
def ring_barriers(DEPTH: gl.constexpr, CONSUMERS: gl.constexpr):
    """(full, empty) of a ring of one CTA."""
    full = allocate_barriers(DEPTH)
    empty = allocate_barriers(DEPTH)
    init_ring(full, empty, DEPTH, CONSUMERS)
    return full, empty


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
