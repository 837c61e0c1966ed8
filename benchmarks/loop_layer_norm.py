"""Loops of layer norm, forward and backward."""

from __future__ import annotations

from loop_costs import STATISTIC, STATISTIC_SFU, THREADS, TMA_ALIGNMENT, Loop, gelu, measured, pointer_access, together

from warpplan.planner.values.dependence_graph import Architecture, DependenceGraph

# Layer norm: one iteration is a block of rows, by pointers or by TMA.


def layer_norm_forward(
    architecture: Architecture, size: int, clones: int = 1, *, tma: bool = False, activation: bool = False
) -> DependenceGraph:
    """``size`` elements of bf16 a clone; mean, then variance, then weight and bias."""
    loop, wide = Loop(architecture), size // THREADS
    pass_ = measured("elementwise", size)
    for i in range(clones):
        x = _block(loop, "x", i, size, tma=tma)
        total = loop.tile(f"sum{i}", "ALU", measured("row_sum", size), x, registers=2)
        mean = loop.tile(f"mean{i}", "ALU", STATISTIC, total, registers=2)
        centred = loop.tile(f"centre{i}", "ALU", pass_, x, mean, registers=wide)
        squares = loop.tile(f"squares{i}", "ALU", together(pass_, measured("row_sum", size)), centred, registers=2)
        rstd = loop.tile(f"rstd{i}", "SFU", STATISTIC_SFU, squares, registers=2)
        scaled = loop.tile(f"scale{i}", "ALU", pass_, centred, rstd, registers=wide)
        # Weight and bias of the columns, fp32, stay in shared memory.
        weight = loop.tile(f"read_weight{i}", "LSU", measured("shared_load", 4_096), registers=8)
        value = loop.tile(f"affine{i}", "ALU", pass_, scaled, weight, registers=wide)
        if activation:
            cubic, exponential, product = gelu(size)
            inner = loop.tile(f"gelu_in{i}", "ALU", cubic, value, registers=wide)
            curve = loop.tile(f"gelu_exp{i}", "SFU", exponential, inner, registers=wide)
            value = loop.tile(f"gelu_out{i}", "ALU", product, value, curve, registers=wide)
        _write(loop, "y", i, value, size, tma=tma)
    how = f"{'tma' if tma else 'pointers'}{' gelu' if activation else ''}"
    return loop.graph(f"layer-norm-forward {how} {size} x{clones}", 2 + clones, clones)


def layer_norm_backward(
    architecture: Architecture, size: int, clones: int = 1, *, tma: bool = False
) -> DependenceGraph:
    """dx of a block of rows; the sums of dw and db stay in registers."""
    loop, wide = Loop(architecture), size // THREADS
    pass_ = measured("elementwise", size)
    for i in range(clones):
        x, dy = _block(loop, "x", i, size, tma=tma), _block(loop, "dy", i, size, tma=tma)
        statistics = loop.tile(f"load_statistics{i}", "LSU", pointer_access(512), registers=4)
        weight = loop.tile(f"read_weight{i}", "LSU", measured("shared_load", 4_096), registers=8)
        normal = loop.tile(f"normal{i}", "ALU", pass_, x, statistics, registers=wide)
        loop.carry(loop.tile(f"db{i}", "ALU", pass_, dy, registers=wide // 8))
        loop.carry(loop.tile(f"dw{i}", "ALU", pass_, dy, normal, registers=wide // 8))
        weighted = loop.tile(f"weighted{i}", "ALU", pass_, dy, weight, registers=wide)
        product = together(pass_, measured("row_sum", size))
        both = loop.tile(f"sum_product{i}", "ALU", product, normal, weighted, registers=2)
        one = loop.tile(f"sum{i}", "ALU", measured("row_sum", size), weighted, registers=2)
        inside = loop.tile(f"combine{i}", "ALU", together(pass_, pass_), normal, both, one, weighted, registers=wide)
        dx = loop.tile(f"dx{i}", "ALU", pass_, inside, statistics, registers=wide)
        _write(loop, "dx", i, dx, size, tma=tma)
    return loop.graph(f"layer-norm-backward {'tma' if tma else 'pointers'} {size} x{clones}", 2 + clones, clones)


def _block(loop: Loop, name: str, i: int, size: int, *, tma: bool) -> str:
    """A block of rows in registers, two bf16 each."""
    if not tma:
        return loop.tile(f"load_{name}{i}", "LSU", pointer_access(2 * size), registers=size // THREADS // 2)
    tile = loop.load(f"load_{name}{i}", 2 * size)
    return loop.tile(f"read_{name}{i}", "LSU", measured("shared_load", 2 * size), tile, registers=size // THREADS // 2)


def _write(loop: Loop, name: str, i: int, value: str, size: int, *, tma: bool) -> None:
    if tma:
        staged = loop.tile(f"stage_{name}{i}", "LSU", measured("epilogue_store", size), value, buffer_bytes=2 * size,
                           alignment=TMA_ALIGNMENT)  # fmt: skip
        loop.add(f"store_{name}{i}", "TMA", measured("tma_store", 2 * size), staged)
        return
    packed = loop.tile(f"convert_{name}{i}", "ALU", measured("convert", size), value, registers=size // THREADS // 2)
    loop.tile(f"store_{name}{i}", "LSU", pointer_access(2 * size, store=True), packed)
