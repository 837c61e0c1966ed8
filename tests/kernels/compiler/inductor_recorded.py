# ruff: noqa: F841
"""Kernels as Inductor of torch 2.13.0 generated them for an H200: [4096, 4096] by [8192, 4096]ᵀ in bfloat16.

From its persistent TMA template, block 128 × 256 × 64, 8 warps, 3 stages, PyTorch's (BSD-3-Clause). Only
the functions' names, the layout of the lines and the import of libdevice are not Inductor's.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

WARPS, STAGES, GRID = 8, 3, (132, 1, 1)
CONFIG = {"fixed_grid": ["_grid_0", "_grid_1", "_grid_2"], "grid_type": "FixedGrid"}
CONFIG["extra_launcher_args"] = CONFIG["fixed_grid"]


@triton.jit
def mm(arg_A, arg_B, out_ptr0, ws_ptr):
    EVEN_K: tl.constexpr = True
    USE_FAST_ACCUM: tl.constexpr = False
    ACC_TYPE: tl.constexpr = tl.float32
    BLOCK_M: tl.constexpr = 128
    BLOCK_N: tl.constexpr = 256
    BLOCK_K: tl.constexpr = 64
    GROUP_M: tl.constexpr = 8
    A_ROW_MAJOR: tl.constexpr = True
    B_ROW_MAJOR: tl.constexpr = False
    NUM_SMS: tl.constexpr = 132
    TMA_SIZE: tl.constexpr = 128
    TMA_EXPERIMENTAL_API: tl.constexpr = False
    ALLOW_TF32: tl.constexpr = False
    INDEX_DTYPE: tl.constexpr = tl.int32
    A = arg_A
    B = arg_B

    M = 4096
    N = 8192
    K = 4096

    if (M == 0) or (N == 0):
        # early exit due to zero-size input(s)
        return

    start_pid = tl.program_id(0).to(INDEX_DTYPE)
    grid_m = tl.cdiv(M, BLOCK_M)
    grid_n = tl.cdiv(N, BLOCK_N)
    num_tiles = grid_m * grid_n
    width = GROUP_M * grid_n
    stride_am = 4096
    stride_ak = 1
    stride_bk = 1
    stride_bn = 4096

    a_desc = triton.language.make_tensor_descriptor(
        base=A,
        shape=[M, K] if A_ROW_MAJOR else [K, M],
        strides=[stride_am, 1] if A_ROW_MAJOR else [stride_ak, 1],
        block_shape=[BLOCK_M, BLOCK_K] if A_ROW_MAJOR else [BLOCK_K, BLOCK_M],
    )
    b_desc = triton.language.make_tensor_descriptor(
        base=B,
        shape=[K, N] if B_ROW_MAJOR else [N, K],
        strides=[stride_bk, 1] if B_ROW_MAJOR else [stride_bn, 1],
        block_shape=[BLOCK_K, BLOCK_N] if B_ROW_MAJOR else [BLOCK_N, BLOCK_K],
    )

    for tile_id in tl.range(start_pid, num_tiles, NUM_SMS):
        # re-order program ID for better L2 performance
        group_id = tile_id // width
        group_size = min(grid_m - group_id * GROUP_M, GROUP_M)
        pid_m = group_id * GROUP_M + (tile_id % group_size)
        pid_n = (tile_id % width) // (group_size)

        rm = pid_m * BLOCK_M
        rn = pid_n * BLOCK_N
        rm_desc = rm.to(tl.int32)
        rn_desc = rn.to(tl.int32)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_TYPE)

        for rk in tl.range(0, K, BLOCK_K):
            rk_desc = rk.to(tl.int32)
            a = tl.load_tensor_descriptor(
                a_desc,
                [rm_desc, rk_desc] if A_ROW_MAJOR else [rk_desc, rm_desc],
            )
            b = tl.load_tensor_descriptor(
                b_desc,
                [rk_desc, rn_desc] if B_ROW_MAJOR else [rn_desc, rk_desc],
            )
            if USE_FAST_ACCUM:
                acc = tl.dot(
                    a if A_ROW_MAJOR else a.T,
                    b if B_ROW_MAJOR else b.T,
                    acc,
                    allow_tf32=ALLOW_TF32,
                )
            else:
                acc += tl.dot(
                    a if A_ROW_MAJOR else a.T,
                    b if B_ROW_MAJOR else b.T,
                    allow_tf32=ALLOW_TF32,
                )

        # rematerialize rm and rn to save registers
        rm = pid_m * BLOCK_M
        rn = pid_n * BLOCK_N

        # inductor generates a suffix
        _tmp_var1 = rm
        _tmp_var0 = (_tmp_var1 + tl.arange(0, BLOCK_M))[:, None]
        _tmp_var2 = _tmp_var0 < 4096
        _tmp_var4 = rn
        _tmp_var3 = (_tmp_var4 + tl.arange(0, BLOCK_N))[
            None,
            :,
        ]
        _tmp_var5 = _tmp_var3 < 8192
        _tmp_var6 = _tmp_var2 & _tmp_var5
        xindex = _tmp_var3 + 8192 * _tmp_var0
        tl.store(out_ptr0 + (tl.broadcast_to(_tmp_var3 + 8192 * _tmp_var0, [BLOCK_M, BLOCK_N])), acc, _tmp_var6)


@triton.jit
def addmm(in_ptr0, arg_A, arg_B, out_ptr0, ws_ptr):
    EVEN_K: tl.constexpr = True
    USE_FAST_ACCUM: tl.constexpr = False
    ACC_TYPE: tl.constexpr = tl.float32
    BLOCK_M: tl.constexpr = 128
    BLOCK_N: tl.constexpr = 256
    BLOCK_K: tl.constexpr = 64
    GROUP_M: tl.constexpr = 8
    A_ROW_MAJOR: tl.constexpr = True
    B_ROW_MAJOR: tl.constexpr = False
    NUM_SMS: tl.constexpr = 132
    TMA_SIZE: tl.constexpr = 128
    TMA_EXPERIMENTAL_API: tl.constexpr = False
    ALLOW_TF32: tl.constexpr = False
    INDEX_DTYPE: tl.constexpr = tl.int32
    A = arg_A
    B = arg_B

    M = 4096
    N = 8192
    K = 4096

    if (M == 0) or (N == 0):
        # early exit due to zero-size input(s)
        return

    start_pid = tl.program_id(0).to(INDEX_DTYPE)
    grid_m = tl.cdiv(M, BLOCK_M)
    grid_n = tl.cdiv(N, BLOCK_N)
    num_tiles = grid_m * grid_n
    width = GROUP_M * grid_n
    stride_am = 4096
    stride_ak = 1
    stride_bk = 1
    stride_bn = 4096

    a_desc = triton.language.make_tensor_descriptor(
        base=A,
        shape=[M, K] if A_ROW_MAJOR else [K, M],
        strides=[stride_am, 1] if A_ROW_MAJOR else [stride_ak, 1],
        block_shape=[BLOCK_M, BLOCK_K] if A_ROW_MAJOR else [BLOCK_K, BLOCK_M],
    )
    b_desc = triton.language.make_tensor_descriptor(
        base=B,
        shape=[K, N] if B_ROW_MAJOR else [N, K],
        strides=[stride_bk, 1] if B_ROW_MAJOR else [stride_bn, 1],
        block_shape=[BLOCK_K, BLOCK_N] if B_ROW_MAJOR else [BLOCK_N, BLOCK_K],
    )

    for tile_id in tl.range(start_pid, num_tiles, NUM_SMS):
        # re-order program ID for better L2 performance
        group_id = tile_id // width
        group_size = min(grid_m - group_id * GROUP_M, GROUP_M)
        pid_m = group_id * GROUP_M + (tile_id % group_size)
        pid_n = (tile_id % width) // (group_size)

        rm = pid_m * BLOCK_M
        rn = pid_n * BLOCK_N
        rm_desc = rm.to(tl.int32)
        rn_desc = rn.to(tl.int32)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_TYPE)

        for rk in tl.range(0, K, BLOCK_K):
            rk_desc = rk.to(tl.int32)
            a = tl.load_tensor_descriptor(
                a_desc,
                [rm_desc, rk_desc] if A_ROW_MAJOR else [rk_desc, rm_desc],
            )
            b = tl.load_tensor_descriptor(
                b_desc,
                [rk_desc, rn_desc] if B_ROW_MAJOR else [rn_desc, rk_desc],
            )
            if USE_FAST_ACCUM:
                acc = tl.dot(
                    a if A_ROW_MAJOR else a.T,
                    b if B_ROW_MAJOR else b.T,
                    acc,
                    allow_tf32=ALLOW_TF32,
                )
            else:
                acc += tl.dot(
                    a if A_ROW_MAJOR else a.T,
                    b if B_ROW_MAJOR else b.T,
                    allow_tf32=ALLOW_TF32,
                )

        # rematerialize rm and rn to save registers
        rm = pid_m * BLOCK_M
        rn = pid_n * BLOCK_N

        # inductor generates a suffix
        _tmp_var1 = rm
        _tmp_var0 = (_tmp_var1 + tl.arange(0, BLOCK_M))[:, None]
        _tmp_var2 = _tmp_var0 < 4096
        _tmp_var4 = rn
        _tmp_var3 = (_tmp_var4 + tl.arange(0, BLOCK_N))[
            None,
            :,
        ]
        _tmp_var5 = _tmp_var3 < 8192
        _tmp_var6 = _tmp_var2 & _tmp_var5
        xindex = _tmp_var3 + 8192 * _tmp_var0
        tmp0 = tl.load(
            in_ptr0 + (tl.broadcast_to(_tmp_var3, [BLOCK_M, BLOCK_N])), _tmp_var6, eviction_policy="evict_last"
        ).to(tl.float32)
        tmp1 = acc + tmp0
        tl.store(out_ptr0 + (tl.broadcast_to(_tmp_var3 + 8192 * _tmp_var0, [BLOCK_M, BLOCK_N])), tmp1, _tmp_var6)


@triton.jit
def addmm_silu(in_ptr0, arg_A, arg_B, out_ptr1, ws_ptr):
    EVEN_K: tl.constexpr = True
    USE_FAST_ACCUM: tl.constexpr = False
    ACC_TYPE: tl.constexpr = tl.float32
    BLOCK_M: tl.constexpr = 128
    BLOCK_N: tl.constexpr = 256
    BLOCK_K: tl.constexpr = 64
    GROUP_M: tl.constexpr = 8
    A_ROW_MAJOR: tl.constexpr = True
    B_ROW_MAJOR: tl.constexpr = False
    NUM_SMS: tl.constexpr = 132
    TMA_SIZE: tl.constexpr = 128
    TMA_EXPERIMENTAL_API: tl.constexpr = False
    ALLOW_TF32: tl.constexpr = False
    INDEX_DTYPE: tl.constexpr = tl.int32
    A = arg_A
    B = arg_B

    M = 4096
    N = 8192
    K = 4096

    if (M == 0) or (N == 0):
        # early exit due to zero-size input(s)
        return

    start_pid = tl.program_id(0).to(INDEX_DTYPE)
    grid_m = tl.cdiv(M, BLOCK_M)
    grid_n = tl.cdiv(N, BLOCK_N)
    num_tiles = grid_m * grid_n
    width = GROUP_M * grid_n
    stride_am = 4096
    stride_ak = 1
    stride_bk = 1
    stride_bn = 4096

    a_desc = triton.language.make_tensor_descriptor(
        base=A,
        shape=[M, K] if A_ROW_MAJOR else [K, M],
        strides=[stride_am, 1] if A_ROW_MAJOR else [stride_ak, 1],
        block_shape=[BLOCK_M, BLOCK_K] if A_ROW_MAJOR else [BLOCK_K, BLOCK_M],
    )
    b_desc = triton.language.make_tensor_descriptor(
        base=B,
        shape=[K, N] if B_ROW_MAJOR else [N, K],
        strides=[stride_bk, 1] if B_ROW_MAJOR else [stride_bn, 1],
        block_shape=[BLOCK_K, BLOCK_N] if B_ROW_MAJOR else [BLOCK_N, BLOCK_K],
    )

    for tile_id in tl.range(start_pid, num_tiles, NUM_SMS):
        # re-order program ID for better L2 performance
        group_id = tile_id // width
        group_size = min(grid_m - group_id * GROUP_M, GROUP_M)
        pid_m = group_id * GROUP_M + (tile_id % group_size)
        pid_n = (tile_id % width) // (group_size)

        rm = pid_m * BLOCK_M
        rn = pid_n * BLOCK_N
        rm_desc = rm.to(tl.int32)
        rn_desc = rn.to(tl.int32)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_TYPE)

        for rk in tl.range(0, K, BLOCK_K):
            rk_desc = rk.to(tl.int32)
            a = tl.load_tensor_descriptor(
                a_desc,
                [rm_desc, rk_desc] if A_ROW_MAJOR else [rk_desc, rm_desc],
            )
            b = tl.load_tensor_descriptor(
                b_desc,
                [rk_desc, rn_desc] if B_ROW_MAJOR else [rn_desc, rk_desc],
            )
            if USE_FAST_ACCUM:
                acc = tl.dot(
                    a if A_ROW_MAJOR else a.T,
                    b if B_ROW_MAJOR else b.T,
                    acc,
                    allow_tf32=ALLOW_TF32,
                )
            else:
                acc += tl.dot(
                    a if A_ROW_MAJOR else a.T,
                    b if B_ROW_MAJOR else b.T,
                    allow_tf32=ALLOW_TF32,
                )

        # rematerialize rm and rn to save registers
        rm = pid_m * BLOCK_M
        rn = pid_n * BLOCK_N

        # inductor generates a suffix
        _tmp_var1 = rm
        _tmp_var0 = (_tmp_var1 + tl.arange(0, BLOCK_M))[:, None]
        _tmp_var2 = _tmp_var0 < 4096
        _tmp_var4 = rn
        _tmp_var3 = (_tmp_var4 + tl.arange(0, BLOCK_N))[
            None,
            :,
        ]
        _tmp_var5 = _tmp_var3 < 8192
        _tmp_var6 = _tmp_var2 & _tmp_var5
        xindex = _tmp_var3 + 8192 * _tmp_var0
        tmp0 = tl.load(
            in_ptr0 + (tl.broadcast_to(_tmp_var3, [BLOCK_M, BLOCK_N])), _tmp_var6, eviction_policy="evict_last"
        ).to(tl.float32)
        tmp1 = acc + tmp0
        tmp2 = tmp1.to(tl.bfloat16)
        tmp3 = tmp2.to(tl.float32)
        tmp4 = tmp3.to(tl.float32)
        tmp5 = -tmp4
        tmp6 = libdevice.exp(tmp5)
        tmp7 = tl.full([1], 1.0, tl.float32)
        tmp8 = tmp6 + tmp7
        tmp9 = tmp4 / tmp8
        tmp10 = tmp9.to(tl.float32)
        tl.store(out_ptr1 + (tl.broadcast_to(xindex, [BLOCK_M, BLOCK_N])), tmp10, _tmp_var6)


KERNELS = {"mm": mm, "addmm": addmm, "addmm_silu": addmm_silu}
