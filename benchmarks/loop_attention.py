"""Loops of attention, forward and backward."""

from __future__ import annotations

from loop_costs import (
    ROW_LOAD,
    STATISTIC,
    STATISTIC_SFU,
    THREADS,
    TMA_ALIGNMENT,
    Cost,
    Loop,
    measured,
    tcgen05,
    tensor_memory,
    together,
    wgmma,
)

from warpplan.planner.values.dependence_graph import DependenceGraph

# Attention forward: one iteration is a block of keys; a clone is another block of queries.


def attention_forward_hopper(d: int, n: int, clones: int, *, causal: bool = False) -> DependenceGraph:
    """64 rows of queries a clone; scores, weights and output in registers, the weights multiplied from there."""
    loop, rows = Loop("hopper"), 64
    k, v = loop.load("load_k", n * d * 2), loop.load("load_v", n * d * 2)
    for i in range(clones):
        scores = loop.tile(f"qk{i}", "TENSOR", wgmma(rows, n, d), k, registers=rows * n // THREADS)
        alpha, weights = online_softmax(loop, i, scores, rows, n, rows * n // THREADS, 2, causal=causal)
        packed = loop.tile(f"convert{i}", "ALU", measured("convert", rows * n), weights, registers=n // 4)
        wide = rows * d // THREADS
        out = f"pv{i}"
        scaled = loop.tile(f"correct{i}", "ALU", measured("elementwise", rows * d), alpha, (out, 1), registers=wide)
        loop.tile(out, "TENSOR", wgmma(rows, d, n, a="register"), packed, v, scaled, registers=wide)
    name = f"attention-forward d{d} n{n} x{clones}{' causal' if causal else ''}"
    return loop.graph(name, 2 + clones, clones)


def attention_forward_blackwell(
    d: int, n: int, clones: int, *, causal: bool = False, emulated: float = 0.0
) -> DependenceGraph:
    """128 rows of queries a clone; scores and weights in tensor memory, output too, rescaled there in place.

    ``emulated`` is the share of exponentials done by polynomial on the ALU (FlashAttention-4, §3: about 10 operations).
    """
    loop, rows = Loop("blackwell"), 128
    k, v = loop.load("load_k", n * d * 2), loop.load("load_v", n * d * 2)
    for i in range(clones):
        scores = loop.add(f"qk{i}", "TENSOR", tcgen05(n, d), k, buffer_bytes=rows * n * 4, memory="tmem")
        here = loop.tile(f"load_s{i}", "LSU", tensor_memory(rows * n), scores, registers=n)
        alpha, weights = online_softmax(loop, i, here, rows, n, n, 1, causal=causal, emulated=emulated)
        # Converted and written a few columns at a time: no register of its own.
        packing = together(measured("convert", rows * n), tensor_memory(rows * n, 2))
        packed = loop.tile(f"store_p{i}", "ALU", packing, *weights.split(), buffer_bytes=rows * n * 2, memory="tmem")
        out = f"pv{i}"
        touch = together(tensor_memory(rows * d), STATISTIC, tensor_memory(rows * d))
        scaled = loop.tile(f"correct{i}", "LSU", touch, alpha, registers=32)
        loop.add(out, "TENSOR", tcgen05(d, n, a="tmem"), packed, v)
        loop.order(out, scaled, 1)
        loop.order(scaled, out)
    share = f" emulated{round(100 * emulated)}" if emulated else ""
    name = f"attention-forward d{d} n{n} x{clones}{' causal' if causal else ''}{share}"
    return loop.graph(name, 3 + clones, clones, tmem_columns=512 - clones * d)


def online_softmax(
    loop: Loop, i: int, scores: str, rows: int, n: int, registers: int, per_thread: int, *, causal: bool,
    emulated: float = 0.0,
) -> tuple[str, str]:  # fmt: skip
    """Online softmax of one tile: names of the correction factor and of the weights (two where some are emulated)."""
    size = rows * n
    if causal:
        compare_and_select = together(measured("elementwise", size), measured("elementwise", size))
        scores = loop.tile(f"mask{i}", "ALU", compare_and_select, scores, registers=registers)
    maximum = loop.tile(f"max{i}", "ALU", measured("row_max", size), scores, registers=per_thread)
    loop.carry(maximum)
    alpha = loop.tile(f"alpha{i}", "SFU", STATISTIC_SFU, maximum, (maximum, 1), registers=per_thread)
    slow = size - round(emulated * size)
    weights = [loop.tile(f"exp{i}", "SFU", measured("exp2", slow), scores, maximum, registers=registers * slow // size)]
    if emulated:
        polynomial = together(*10 * [measured("elementwise", size - slow)])
        rest = registers - registers * slow // size
        weights.append(loop.tile(f"exp_alu{i}", "ALU", polynomial, scores, maximum, registers=rest))
    total = loop.tile(f"sum{i}", "ALU", measured("row_sum", size), *weights, alpha, registers=per_thread)
    loop.carry(total)
    return alpha, " ".join(weights)


# Attention backward: one iteration is a block of m queries; keys and values stay, a clone is another block of them.


def attention_backward_hopper(d: int, m: int, clones: int, *, causal: bool = False) -> DependenceGraph:
    """64 rows of keys a clone. Scores are transposed, so that P and dS feed dV and dK from registers; dS also goes
    through shared memory, where each clone multiplies all of it by its share of K's columns into dQ."""
    loop, rows = Loop("hopper"), 64
    q, do, lse, delta = _backward_loads(loop, d, m)
    tile, size, accumulator = rows * m // THREADS, rows * m, rows * d // THREADS
    stored = []
    for i in range(clones):
        scores = loop.tile(f"s{i}", "TENSOR", wgmma(rows, m, d), q, registers=tile)
        grads = loop.tile(f"dp{i}", "TENSOR", wgmma(rows, m, d), do, registers=tile)
        if causal:
            compare_and_select = together(measured("elementwise", size), measured("elementwise", size))
            scores = loop.tile(f"mask{i}", "ALU", compare_and_select, scores, registers=tile)
        p = loop.tile(f"exp{i}", "SFU", measured("exp2", size), scores, lse, registers=tile)
        packed = loop.tile(f"convert_p{i}", "ALU", measured("convert", size), p, registers=tile // 2)
        into_v = wgmma(rows, d, m, a="register")
        loop.carry(loop.tile(f"dv{i}", "TENSOR", into_v, packed, do, registers=accumulator), into_v.occupancy)
        twice = together(measured("elementwise", size), measured("elementwise", size))
        ds = loop.tile(f"ds{i}", "ALU", twice, p, grads, delta, registers=tile)
        low = loop.tile(f"convert_ds{i}", "ALU", measured("convert", size), ds, registers=tile // 2)
        loop.carry(loop.tile(f"dk{i}", "TENSOR", into_v, low, q, registers=accumulator), into_v.occupancy)
        stored.append(
            loop.tile(f"store_ds{i}", "LSU", fenced_store(size * 2), low, buffer_bytes=size * 2,
                      alignment=TMA_ALIGNMENT)
        )  # fmt: skip
    for i in range(clones):
        dq = loop.tile(f"dq{i}", "TENSOR", wgmma(m, d // clones, rows * clones), *stored,
                       registers=m * d // clones // THREADS)  # fmt: skip
        _reduce_dq(loop, i, dq, m * d // clones * 4)
    name = f"attention-backward d{d} m{m} x{clones}{' causal' if causal else ''}"
    return loop.graph(name, 2 + clones, clones)


def attention_backward_blackwell(d: int, m: int, *, causal: bool = False) -> DependenceGraph:
    """128 rows of keys; eight warps share the scores' tile. S, P, dP and dQ alternate in tensor memory."""
    loop, rows, warps = Loop("blackwell"), 128, 8
    q, do, lse, delta = _backward_loads(loop, d, m)
    size, tile = rows * m, rows * m // (2 * THREADS)
    half = {"registers": tile, "warps": warps}
    s = loop.add("s", "TENSOR", tcgen05(m, d), q, buffer_bytes=size * 4, memory="tmem")
    dp = loop.add("dp", "TENSOR", tcgen05(m, d), do, buffer_bytes=size * 4, memory="tmem")
    scores = loop.tile("load_s", "LSU", tensor_memory(size), s, **half)
    if causal:
        compare_and_select = together(measured("elementwise", size), measured("elementwise", size))
        scores = loop.tile("mask", "ALU", compare_and_select, scores, **half)
    p = loop.tile("exp", "SFU", measured("exp2", size), scores, lse, **half)
    packing = together(measured("convert", size), tensor_memory(size, 2))
    packed = loop.tile("store_p", "ALU", packing, p, warps=warps, buffer_bytes=size * 2, memory="tmem")
    into_v = tcgen05(d, m, a="tmem")
    dv = loop.add("dv", "TENSOR", into_v, packed, do)
    loop.order(dv, dv, 1, into_v.occupancy)
    grads = loop.tile("load_dp", "LSU", tensor_memory(size), dp, **half)
    twice = together(measured("elementwise", size), measured("elementwise", size))
    ds = loop.tile("ds", "ALU", twice, p, grads, delta, **half)
    low = loop.tile("convert_ds", "ALU", measured("convert", size), ds, registers=tile // 2, warps=warps)
    stored = loop.tile("store_ds", "LSU", fenced_store(size * 2), low, warps=warps, buffer_bytes=size * 2,
                       alignment=TMA_ALIGNMENT)  # fmt: skip
    into_k = tcgen05(d, m)
    dk = loop.add("dk", "TENSOR", into_k, stored, q)
    loop.order(dk, dk, 1, into_k.occupancy)
    # tcgen05 of 64 rows takes as long as of 128, in 64 of the lanes.
    dq = loop.add("dq", "TENSOR", tcgen05(d, rows), stored, buffer_bytes=m * d * 4, memory="tmem", lanes=min(m, 128))
    out = loop.tile("load_dq", "LSU", tensor_memory(m * d), dq, registers=m * d // THREADS // 2)
    _reduce_dq(loop, 0, out, m * d * 4)
    name = f"attention-backward d{d} m{m}{' causal' if causal else ''}"
    return loop.graph(name, 5, tmem_columns=512 - 2 * d)


def _backward_loads(loop: Loop, d: int, m: int) -> tuple[str, str, str, str]:
    q, do = loop.load("load_q", m * d * 2), loop.load("load_do", m * d * 2)
    return q, do, loop.load("load_lse", m * 4, ROW_LOAD), loop.load("load_delta", m * 4, ROW_LOAD)


def fenced_store(size: int) -> Cost:
    """Registers to shared memory for the asynchronous proxy: the store, and the wait until it may be read."""
    store, fenced = measured("shared_store", size), measured("epilogue_store", size // 2)
    return Cost(fenced.latency, store.occupancy, store.issue)


def _reduce_dq(loop: Loop, i: int, dq: str, size: int) -> None:
    """fp32 to shared memory, and from there added into global memory; a reduction costs what a store does."""
    staged = loop.tile(f"stage_dq{i}", "LSU", fenced_store(size), dq, buffer_bytes=size, alignment=TMA_ALIGNMENT)
    loop.add(f"reduce_dq{i}", "TMA", measured("tma_store", size), staged)
