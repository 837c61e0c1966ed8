"""Small `tl` kernels whose lowering is tested: loops, branches and loads as people combine them; some are refused."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def between(a, b, c_ptr, low, high, STEP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """One product; the blocks of K from ``low`` to ``high``, every ``STEP``-th."""
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(low, high, STEP):
        acc = tl.dot(a.load([0, i * BK]), b.load([0, i * BK]).T, acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def converted(a, b, c_ptr, low, high, STEP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The same, with arithmetic between the load of B and the product."""
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(low, high, STEP):
        weights = b.load([0, i * BK]).to(tl.float32) * 0.75 + 1
        acc = tl.dot(a.load([0, i * BK]), weights.to(tl.bfloat16).T, acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def scores(q, k, v, c_ptr, low, high, STEP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Attention without its softmax: a product of each block goes into the next one."""
    acc = tl.zeros((BM, BK), tl.float32)
    x = q.load([0, 0])
    for i in range(low, high, STEP):
        s = tl.dot(x, k.load([i * BN, 0]).T)
        acc = tl.dot((s * i).to(tl.bfloat16), v.load([i * BN, 0]), acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BK + tl.arange(0, BK)[None, :], acc)


@triton.jit
def gradients(
    k, v, q, o, c_ptr, d_ptr, r_ptr, count, ROW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """Attention's backward pass without its softmax: two products of what is loaded, two of what is made of them."""
    dk = tl.zeros((BM, BK), tl.float32)
    dv = tl.zeros((BM, BK), tl.float32)
    keys = k.load([0, 0])
    values = v.load([0, 0])
    for i in range(count):
        queries = q.load([i * BN, 0])
        p = tl.dot(keys, queries.T) * (i + 1)
        given = o.load([i * BN, 0])
        dv = tl.dot(p.to(tl.bfloat16), given, dv)
        ds = tl.dot(values, given.T)
        if ROW:
            ds -= tl.load(r_ptr + i * BN + tl.arange(0, BN))[None, :]
        dk = tl.dot((p * ds).to(tl.bfloat16), queries, dk)
    at = tl.arange(0, BM)[:, None] * BK + tl.arange(0, BK)[None, :]
    tl.store(c_ptr + at, dk)
    tl.store(d_ptr + at, dv)


@triton.jit
def repeated_operand(a, b, c_ptr, table, count, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A tile loaded through pointers that every iteration multiplies with."""
    acc = tl.zeros((BM, BN), tl.float32)
    rows = tl.load(b + tl.arange(0, BN)[:, None] * BK + tl.arange(0, BK)[None, :])
    for i in range(count):
        acc += tl.dot(a.load([0, i * BK]), rows.T) * (i + 1)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def twice(a, b, c_ptr, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Two loops that load alike, the second over what the first left off at."""
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([0, k]), b.load([0, k]).T, acc)
    acc = acc * 2
    for k in range(BK, K, BK):
        acc = tl.dot(a.load([0, k]), b.load([0, k]).T, acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def inside(a, b, c_ptr, K, take, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A loop, and then one that holds its own tile while a loop in it loads alike."""
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([0, k]), b.load([0, k]).T, acc)
    for k in range(0, K, BK):
        x = a.load([0, k])
        y = b.load([0, k])
        for j in range(take, K, BK):
            acc = tl.dot(a.load([0, j]), b.load([0, j]).T, acc)
        acc = tl.dot(x, y.T, acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def read_twice(a, b, c_ptr, d_ptr, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A tile is multiplied, and its rows are added up in registers."""
    acc = tl.zeros((BM, BN), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    for k in range(0, K, BK):
        x = a.load([0, k])
        acc = tl.dot(x, b.load([0, k]).T, acc)
        total += tl.sum(x.to(tl.float32), 1)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)
    tl.store(d_ptr + tl.arange(0, BM), total)


@triton.jit
def some_blocks(a, b, c_ptr, wanted, count, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Blocks chosen by a mask, and the one after it, too, where its number is even."""
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(count):
        if (wanted >> i) & 1:
            acc = tl.dot(a.load([0, i * BK]), b.load([0, i * BK]).T, acc)
            if i % 2 == 0:
                acc = tl.dot(a.load([0, (i + 1) * BK]), b.load([0, (i + 1) * BK]).T, acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def wide(a, b, c_ptr, low, high, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Blocks counted in 64 bits, from the last to the first."""
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(high.to(tl.int64) - 1, low.to(tl.int64) - 1, -1):
        k = (i * BK).to(tl.int32)
        acc = tl.dot(a.load([0, k]), b.load([0, k]).T, acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def spinning(a, b, c_ptr, flag, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Waits until another program has raised its flag."""
    while tl.atomic_add(flag, 0) == 0:
        pass
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([0, k]), b.load([0, k]).T, acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def swapping(a, b, c_ptr, flag, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tl.atomic_cas(flag, 0, 1)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([0, k]), b.load([0, k]).T, acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def watching(a, b, c_ptr, flag, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    tl.store(c_ptr, tl.load(flag, volatile=True).to(tl.float32))
    for k in range(0, K, BK):
        acc = tl.dot(a.load([0, k]), b.load([0, k]).T, acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def after_assembly(a, b, c_ptr, flag, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """What the programs of the kernel before this one wrote is there after the wait only."""
    tl.inline_asm_elementwise("griddepcontrol.wait; mov.u32 $0, 0;", "=r", [], tl.int32, is_pure=False, pack=1)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([0, k]), b.load([0, k]).T, acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit(noinline=True)
def far_away(x):
    return x + 1


@triton.jit
def calling(a, b, c_ptr, flag, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([0, k]), b.load([0, k]).T, acc)
    tl.store(c_ptr + far_away(K) + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def one_table(table, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Inputs and output listed in one table."""
    a_ptr = tl.load(table).to(tl.pointer_type(tl.bfloat16))
    b_ptr = tl.load(table + 1).to(tl.pointer_type(tl.bfloat16))
    c_ptr = tl.load(table + 2).to(tl.pointer_type(tl.bfloat16))
    a = tl.make_tensor_descriptor(a_ptr, [BM, K], [K, 1], [BM, BK])
    b = tl.make_tensor_descriptor(b_ptr, [BN, K], [K, 1], [BN, BK])
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([0, k]), b.load([0, k]).T, acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc.to(tl.bfloat16))


@triton.jit
def its_own_output(a_ptr, b, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    a = tl.make_tensor_descriptor(a_ptr, [BM, K], [K, 1], [BM, BK])
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([0, k]), b.load([0, k]).T, acc)
    tl.store(a_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc.to(tl.bfloat16))


@triton.jit
def no_loop(a, b, c_ptr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    acc = tl.dot(a.load([0, 0]), b.load([0, 0]).T)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def thin_rows(a, b, c_ptr, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A block whose first dimension is dropped, and which is read in registers only."""
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = a.load([0, 0, k]).reshape(BM, BK)
        acc += tl.sum(x.to(tl.float32), 1)[:, None]
        acc = tl.dot(b.load([0, k]), b.load([0, k]).T, acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def until_loaded(a, b, c_ptr, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """What a tile holds says whether the loop goes on."""
    acc = tl.zeros((BM, BN), tl.float32)
    k = 0
    while tl.max(tl.max(a.load([0, k]).to(tl.float32), 1), 0) > 0.5:
        acc = tl.dot(a.load([0, k]), b.load([0, k]).T, acc)
        k += BK
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def its_own_input(a_ptr, b, c_ptr, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A descriptor made once."""
    a = tl.make_tensor_descriptor(a_ptr, [BM, K], [K, 1], [BM, BK])
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([0, k]), b.load([0, k]).T, acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def searching(a, b, c_ptr, flag, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Where to begin is looked up in a list that goes up."""
    first = 0
    while tl.load(flag + first) < K:
        first += 1
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(first, first + 3):
        acc = tl.dot(a.load([0, i * BK]), b.load([0, i * BK]).T, acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def looking(a, b, c_ptr, flag, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Looks at the same place until it changes."""
    k = 0
    while tl.load(flag) < K:
        k += 1
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(k, k + 3):
        acc = tl.dot(a.load([0, i * BK]), b.load([0, i * BK]).T, acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def made_between(a_ptr, b_ptr, c_ptr, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Each iteration makes a descriptor, loads, makes another, loads."""
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        a = tl.make_tensor_descriptor(a_ptr + k, [BM, BK], [K, 1], [BM, BK])
        x = a.load([0, 0])
        b = tl.make_tensor_descriptor(b_ptr + k, [BN, BK], [K, 1], [BN, BK])
        acc = tl.dot(x, b.load([0, 0]).T, acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def early(a, b, c_ptr, count, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Programs beyond ``count`` have nothing to do."""
    block = tl.program_id(0)
    if block >= count:
        return
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([0, k]), b.load([block * BN, k]).T, acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * 4 * BN + block * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def early_stored(a, b, c, count, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """What is stored by TMA beyond an early way out, and a tile that is loaded once there."""
    block = tl.program_id(0)
    if block >= count:
        return
    first = a.load([0, 0])
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(first, b.load([block * BN, k]).T, acc)
    c.store([0, block * BN], acc.to(tl.bfloat16))


@triton.jit
def early_twice(a, b, c_ptr, flag, count, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Two ways out, the second after a look into memory, with a store of its own."""
    block = tl.program_id(0)
    place = c_ptr + tl.arange(0, BM)[:, None] * 4 * BN + block * BN + tl.arange(0, BN)[None, :]
    if block >= count:
        return
    if tl.load(flag + block) > 20:
        tl.store(place, tl.zeros((BM, BN), tl.float32) + 7)
        return
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([0, k]), b.load([block * BN, k]).T, acc)
    tl.store(place, acc)


@triton.jit
def either(a, b, c_ptr, count, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Both ways load and multiply, and end by themselves."""
    block = tl.program_id(0)
    place = c_ptr + tl.arange(0, BM)[:, None] * 4 * BN + block * BN + tl.arange(0, BN)[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    if block >= count:
        for k in range(0, K, 2 * BK):
            acc = tl.dot(a.load([0, k]), b.load([block * BN, k]).T, acc)
        tl.store(place, acc * 2)
        return
    for k in range(0, K, BK):
        acc = tl.dot(a.load([0, k]), b.load([block * BN, k]).T, acc)
    tl.store(place, acc)


@triton.jit
def one_tile_twice(q, k, c_ptr, count, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Keys that are the values, too."""
    acc = tl.zeros((BM, BK), tl.float32)
    x = q.load([0, 0])
    for i in range(count):
        y = k.load([i * BN, 0])
        acc = tl.dot(tl.dot(x, y.T).to(tl.bfloat16), y, acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BK + tl.arange(0, BK)[None, :], acc)


@triton.jit
def weighted_scores(q, k, v, a, c_ptr, count, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The product times a tile of weights, in registers; the sum so far is scaled by what the loop carries."""
    acc = tl.zeros((BM, BK), tl.float32)
    scale = tl.full((BM,), 1.0, tl.float32)
    x = q.load([0, 0])
    for i in range(count):
        s = tl.dot(x, k.load([i * BN, 0]).T) * a.load([0, i * BN]).to(tl.float32)
        acc = tl.dot(s.to(tl.bfloat16), v.load([i * BN, 0]), acc * scale[:, None])
        scale = tl.sum(s, 1) / 1024
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BK + tl.arange(0, BK)[None, :], acc + scale[:, None])


@triton.jit
def loaded_left(q, k, v, a, c_ptr, d_ptr, count, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The last product's left operand is loaded, and doubled in registers; the first product is only added up."""
    acc = tl.zeros((BM, BK), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    x = q.load([0, 0])
    for i in range(count):
        total += tl.sum(tl.dot(x, k.load([i * BN, 0]).T), 1)
        acc = tl.dot(a.load([0, i * BN]) * 2, v.load([i * BN, 0]), acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BK + tl.arange(0, BK)[None, :], acc)
    tl.store(d_ptr + tl.arange(0, BM), total)


@triton.jit
def residual(a, b, r, c_ptr, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """What is added at the end is loaded through a block of three dimensions."""
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([0, k]), b.load([0, k]).T, acc)
    acc += tl.reshape(r.load([1, 0, 0]), (BM, BN)).to(tl.float32)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def promoted(a, b, c_ptr, d_ptr, low, high, STEP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Each block's product is scaled before it is added: by a vector over the rows and by a number."""
    rows = tl.arange(0, BM)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(low, high, STEP):
        s = tl.dot(a.load([0, i * BK]), b.load([0, i * BK]).T)
        acc += s * (tl.load(d_ptr + (rows + i) % BM) * tl.load(d_ptr + i))[:, None]
    tl.store(c_ptr + rows[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def promoted_by_pointer(a, b, c_ptr, d_ptr, low, high, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The same with a pointer that is carried, and a product of the tiles that another iteration's scale follows."""
    rows = tl.arange(0, BM)
    acc = tl.zeros((BM, BN), tl.float32)
    scales = d_ptr + rows % 64
    for i in range(low, high):
        scale = tl.load(scales, mask=rows < 100, other=2.0)
        acc = acc * 0.5 + tl.dot(a.load([0, i * BK]), b.load([0, i * BK]).T) * scale[:, None]
        scales += 8
    tl.store(c_ptr + rows[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def promoted_in_place(a, b, c_ptr, d_ptr, low, high, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A scale that the iteration before has written."""
    rows = tl.arange(0, BM)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(low, high):
        scale = tl.load(d_ptr + i)
        acc += tl.dot(a.load([0, i * BK]), b.load([0, i * BK]).T) * scale
        tl.store(d_ptr + i + 1, scale * 0.5)
    tl.store(c_ptr + rows[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@triton.jit
def relay(flag, out):
    """The first program waits for the second."""
    if tl.program_id(0) == 0:
        while tl.atomic_add(flag, 0) == 0:
            pass
        tl.store(out, 7)
    else:
        tl.atomic_xchg(flag, 1)


@triton.jit
def masked_scores(q, k, v, c_ptr, count, first, L, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Causal attention of rows from ``first`` on in one loop, with all masks in each iteration."""
    rows = first + tl.arange(0, BM)
    highest = tl.full((BM,), -1.0e30, tl.float32)
    acc = tl.zeros((BM, BK), tl.float32)
    a = q.load([0, 0])
    for i in range(count):
        keys = i * BN + tl.arange(0, BN)
        s = tl.dot(a, k.load([i * BN, 0]).T)
        s = tl.where(keys[None, :] < L, s, -1.0e30)
        s = tl.where(rows[:, None] < keys[None, :], -1.0e30, s)
        new = tl.maximum(highest, tl.max(s, 1))
        p = tl.where((rows[:, None] >= keys[None, :]) & (keys < L)[None, :], tl.exp2(s - new[:, None]), 0.0)
        acc = acc * tl.exp2(highest - new)[:, None]
        acc = tl.dot(p.to(tl.bfloat16), v.load([i * BN, 0]), acc)
        highest = new
    offsets = tl.arange(0, BM)[:, None] * BK + tl.arange(0, BK)[None, :]
    tl.store(c_ptr + offsets, acc)


@triton.jit
def online_softmax(q, k, v, c_ptr, d_ptr, count, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Attention with ``tl.exp``: weights below a running maximum, summed and multiplied."""
    m = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BK), tl.float32)
    a = q.load([0, 0])
    for i in range(count):
        s = tl.dot(a, k.load([i * BN, 0]).T)
        new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - new[:, None])
        factor = tl.exp(m - new)
        total = total * factor + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.bfloat16), v.load([i * BN, 0]), acc * factor[:, None])
        m = new
    at = tl.arange(0, BM)
    tl.store(d_ptr + at, m + tl.log(total))
    tl.store(c_ptr + at[:, None] * BK + tl.arange(0, BK)[None, :], acc / total[:, None])
