"""Linear attention: the loop over chunks of Lightning Attention-2's forward kernel (Qin et al. 2024), of RetNet's and
GLA's fused chunk kernels in flash-linear-attention (Yang et al. 2024), and of its
``chunk_gated_delta_rule_fwd_kernel_h`` (Gated DeltaNet, 2024). The state is carried from chunk to chunk: in registers
or tensor memory to be added to, as a bf16 copy in shared memory to be multiplied with. Clones share queries and keys
and own columns of values and state."""

from __future__ import annotations

from random import Random

from loop_costs import measured, tensor_memory, together
from varied_loop import VariedLoop

from warpplan.planner.values.dependence_graph import Architecture, DependenceGraph


def linear_attention(architecture: Architecture, draw: Random) -> DependenceGraph:
    build = draw.choice((chunk_output, chunk_output, delta_rule))
    return build(VariedLoop(architecture, draw), draw)


def chunk_output(loop: VariedLoop, draw: Random) -> DependenceGraph:
    """Within the chunk (q kᵀ, decayed and masked) v; from the chunks before q S; then S ← λ S + kᵀ (λ' v)."""
    kind = draw.choice(("plain", "decay", "gated"))
    chunk = loop.rows
    if loop.hopper:
        dk, dv, clones = draw.choice(((64, 64, 1), (64, 64, 2), (128, 64, 1), (128, 64, 2), (128, 128, 1)))
    else:
        dk, dv, clones = draw.choice(((128, 64, 1), (128, 128, 1), (128, 64, 2 if kind == "plain" else 1)))
    q, k = loop.fill("load_q", chunk * dk * 2), loop.fill("load_k", chunk * dk * 2)
    gate = [loop.row("load_gate", chunk * 4)] if kind == "gated" else []
    for i in range(clones):
        v = loop.fill(f"load_v{i}", chunk * dv * 2)
        scores = loop.fetched(f"scores{i}", chunk, chunk, dk, q, k)
        if gate:
            # exp of differences of cumulated gates
            gate_tile = loop.exponential(f"gate{i}", chunk * chunk, *gate)
            masked = loop.passes(f"mask{i}", chunk * chunk, 2, scores, gate_tile)
        else:
            masked = loop.passes(f"mask{i}", chunk * chunk, 1 if kind == "plain" else 2, scores)
        packed = loop.fed(f"convert{i}", chunk * chunk, masked)
        state, copy = _state(loop, i, dk, dv, fades=kind != "plain")
        before = loop.fetched(f"inter{i}", chunk, dv, dk, q, copy)
        if kind != "plain":
            before = loop.passes(f"scale{i}", chunk * dv, 1, before, *gate)
        if loop.hopper:
            out = loop.product(f"intra{i}", chunk, dv, chunk, packed, v, before, a="register")
        else:
            within = loop.fetched(f"intra{i}", chunk, dv, chunk, packed, v, a="register")
            out = loop.passes(f"add{i}", chunk * dv, 1, within, before)
        if kind != "plain":
            here = loop.read(f"read_v{i}", chunk * dv, v)
            v = loop.keep(f"keep_v{i}", chunk * dv, loop.passes(f"weigh_v{i}", chunk * dv, 1, here, *gate, half=True))
        _add_to_state(loop, i, dk, dv, chunk, (k, v), state)
        loop.put(f"o{i}", chunk * dv, out)
    columns = 512 - clones * dv
    return loop.finish(f"linear-attention {kind} dk{dk} dv{dv} x{clones}", 3 + clones, clones, columns)


def delta_rule(loop: VariedLoop, draw: Random) -> DependenceGraph:
    """v' = u − w S; S ← γ S + kᵀ v'. Each chunk's S and v' are written for the kernel that computes the output."""
    gated, chunk = draw.random() < 0.5, loop.rows
    dk, dv, clones = draw.choice(((64, 64, 1), (128, 64, 1), (128, 64, 2)) if loop.hopper
                                 else ((128, 64, 1), (128, 64, 2), (128, 128, 1)))  # fmt: skip
    w, k = loop.fill("load_w", chunk * dk * 2), loop.fill("load_k", chunk * dk * 2)
    for i in range(clones):
        u = loop.fill(f"load_u{i}", chunk * dv * 2)
        state, copy = _state(loop, i, dk, dv, fades=gated)
        loop.add(f"write_s{i}", "TMA", measured("tma_store", dk * dv * 2), copy)
        predicted = loop.fetched(f"predict{i}", chunk, dv, dk, w, copy)
        here = loop.read(f"read_u{i}", chunk * dv, u)
        new = loop.keep(f"keep_v{i}", chunk * dv, loop.passes(f"subtract{i}", chunk * dv, 1, here, predicted))
        loop.add(f"write_v{i}", "TMA", measured("tma_store", chunk * dv * 2), new)
        _add_to_state(loop, i, dk, dv, chunk, (k, new), state)
    name = f"linear-attention {'gated-' if gated else ''}delta dk{dk} dv{dv} x{clones}"
    return loop.finish(name, 2 + clones, clones, 512 - clones * dv)


def _state(loop: VariedLoop, i: int, dk: int, dv: int, *, fades: bool) -> tuple[str | None, str]:
    """The state as the last chunk left it: what the next sum starts from, and its copy in shared memory."""
    size, product = dk * dv, f"state{i}"
    if loop.hopper:
        faded = loop.passes(f"fade{i}", size, 1, (product, 1)) if fades else None
        half = loop.tile(f"convert_s{i}", "ALU", measured("convert", size), (product, 1), registers=size // 256)
        return faded, loop.keep(f"keep_s{i}", size, half)
    here = loop.tile(f"fetch_s{i}", "LSU", tensor_memory(size), registers=size // 128)
    loop.order(product, here, 1)
    half = loop.tile(f"convert_s{i}", "ALU", measured("convert", size), here, registers=size // 256)
    copy = loop.keep(f"keep_s{i}", size, half)
    if not fades:
        return here, copy
    back = together(measured("elementwise", size), tensor_memory(size))
    return loop.tile(f"fade{i}", "LSU", back, here, registers=8), copy


def _add_to_state(
    loop: VariedLoop, i: int, dk: int, dv: int, chunk: int, operands: tuple[str, str], state: str | None
) -> None:
    product = f"state{i}"
    if loop.hopper and state is not None:
        loop.product(product, dk, dv, chunk, *operands, state)
        return
    loop.product(product, dk, dv, chunk, *operands, resident=True)
    loop.accumulate(product)
    if state is not None:
        loop.order(state, product)  # Read, and scaled, before it is added to.
