"""What the grouped GEMM's tests run on a GPU, in child processes: each check yields one line a case, empty where right.

Operands are small whole numbers, so that every sum is exact in fp32 and a result is right to the bit or wrong.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from warpplan.kernels.gemm.space import GemmConfig
from warpplan.kernels.grouped_gemm import autograd
from warpplan.kernels.grouped_gemm.launch import prepare, result_shape
from warpplan.kernels.grouped_gemm.reference import bounds, reference, scaled

NAN = float("nan")
MARGIN = 8


def operands(product, rows, n, k, groups, dtype, make):
    a, dc, b = (make(*shape).to(dtype) for shape in ((rows, k), (rows, n), (groups, n, k)))
    return {"forward": (a, b), "dgrad": (dc, b), "wgrad": (dc, a)}[product]


def whole(*shape):
    return torch.randint(-4, 5, shape, device="cuda")


def normal(*shape):
    return torch.randn(*shape, device="cuda")


def launched(product, left, right, ends, config):
    """(the result, how many elements around it were written); what nobody wrote is NaN."""
    shape = result_shape(product, left, right, ends)
    buffer = torch.full((*shape[:-2], shape[-2] + 2, shape[-1] + MARGIN), NAN, device="cuda", dtype=left.dtype)
    out = buffer[..., 1:-1, : shape[-1]]
    prepare(product, left, right, ends, config, out)()
    torch.cuda.synchronize()
    written = buffer.numel() - int(buffer.isnan().sum())
    return out, written - (out.numel() - int(out.isnan().sum()))


def compared(product, left, right, ends, config, found=None):
    """What is wrong with a launch, empty where nothing is."""
    out, around = launched(product, left, right, ends, config) if found is None else (found, 0)
    wanted = reference(product, left, right, ends).to(left.dtype)
    if product != "wgrad":
        wanted[bounds(ends, left.shape[0])[-1][1] :] = NAN
    wrong = ~((out == wanted) | (out.isnan() & wanted.isnan()))
    if around:
        return f"{around} elements around the result were written"
    if wrong.any():
        first = wrong.nonzero()[0].tolist()
        return f"{int(wrong.sum())} of {wrong.numel()} elements wrong, first {first}: {out[tuple(first)]}"
    return ""


def ends_of(sizes):
    return torch.tensor(sizes, device="cuda").cumsum(0).int()


def distributions(tile):
    many = random.Random(tile)
    return (
        [1],
        [tile],
        [1, tile - 1, tile, tile + 1, 7, 131],
        [0, 5, 0, 0, 130, 0],
        [0, 0, 1000, 0],
        [3001],
        [0, 0, 0],
        [64] * 33,
        [many.choice((0, 0, 1, 13, 64, 100)) for _ in range(300)],
    )


def check_sizes(config: dict, product: str, dtype: str) -> Iterator[str]:
    """Groups of every kind of size, by matrices of every kind of size, with rows of no group at the end."""
    plan = GemmConfig(**config)
    for sizes in distributions(plan.block_m):
        for n, k in ((8, 8), (264, 72), (136, 1096)):
            rows = sum(sizes) + 11
            left, right = operands(product, rows, n, k, len(sizes), getattr(torch, dtype), whole)
            wrong = compared(product, left, right, ends_of(sizes), plan)
            yield f"{sizes[:8]} N={n} K={k}: {wrong}" if wrong else ""


def check_neighbours(config: dict, product: str, dtype: str) -> Iterator[str]:
    """NaN and infinity in every other group's rows and matrices, and in rows of no group, reach no group."""
    plan = GemmConfig(**config)
    sizes = [37, 0, 130, 5, 64]
    ends = ends_of(sizes)
    for kept, (first, end) in enumerate(bounds(ends, sum(sizes))):
        for poison in (NAN, float("inf")):
            left, right = operands(product, sum(sizes) + 9, 200, 72, len(sizes), getattr(torch, dtype), whole)
            clean = reference(product, left, right, ends).to(left.dtype)
            for rows in (left, right) if product == "wgrad" else (left,):
                rows[:first] = rows[end:] = poison
            if product != "wgrad":
                right[:kept] = right[kept + 1 :] = poison
            out, _ = launched(product, left, right, ends, plan)
            part = kept if product == "wgrad" else slice(first, end)
            yield "" if torch.equal(out[part], clean[part]) else f"{poison} leaks into group {kept}"


def check_nan_propagates(config: dict, product: str, dtype: str) -> Iterator[str]:
    """A NaN within a group reaches what it reaches in torch."""
    left, right = operands(product, 200, 72, 136, 2, getattr(torch, dtype), whole)
    left[150, 3] = NAN
    ends = ends_of([100, 100])
    out, _ = launched(product, left, right, ends, GemmConfig(**config))
    wanted = reference(product, left, right, ends)
    yield "" if torch.equal(out.isnan(), wanted.isnan()) else "NaN elsewhere than in torch"


def check_ends(config: dict, product: str, dtype: str) -> Iterator[str]:
    """Ends that fall, are negative or lie beyond the rows are taken as documented, and nothing else is touched."""
    limits = 2**31 - 1
    for ends in ([50, 20, 300, -5, 10], [-1, -7, 40, limits, 3], [500, 500, 500], [-limits, 0, 129], [299, 1, 2, 300]):
        left, right = operands(product, 300, 136, 72, len(ends), getattr(torch, dtype), whole)
        there = torch.tensor(ends, device="cuda", dtype=torch.int32)
        wrong = compared(product, left, right, there, GemmConfig(**config))
        yield f"{ends}: {wrong}" if wrong else ""


def check_rounding(config: dict, product: str, dtype: str) -> Iterator[str]:
    """Random numbers: close to float64, and the same bits every time."""
    plan = GemmConfig(**config)
    sizes = [700, 3, 0, 900, 445]
    left, right = operands(product, sum(sizes), 520, 1096, len(sizes), getattr(torch, dtype), normal)
    ends = ends_of(sizes)
    out, _ = launched(product, left, right, ends, plan)
    wanted = reference(product, left, right, ends)
    error = float((out.double() - wanted).norm() / wanted.norm())
    yield "" if error < 3e-3 else f"relative error {error:.1e}"
    for _ in range(5):
        again, _ = launched(product, left, right, ends, plan)
        yield "" if torch.equal(again, out) else "other bits on another run"


def check_graph(config: dict, product: str, dtype: str) -> Iterator[str]:
    """A captured launch reads the ends of its replay: nothing waits for the host."""
    left, right = operands(product, 1000, 264, 136, 4, getattr(torch, dtype), whole)
    ends = ends_of([250, 250, 250, 250])
    out = torch.full(result_shape(product, left, right, ends), NAN, device="cuda", dtype=left.dtype)
    run = prepare(product, left, right, ends, GemmConfig(**config), out)
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for sizes in ([250, 250, 250, 250], [1, 0, 990, 3], [0, 0, 0, 5]):
        ends.copy_(ends_of(sizes))
        out.fill_(NAN)
        graph.replay()
        torch.cuda.synchronize()
        yield compared(product, left, right, ends, None, out)


CHECKS = (check_sizes, check_neighbours, check_nan_propagates, check_ends, check_rounding, check_graph)


def check_product(config: dict, product: str, dtype: str) -> Iterator[str]:
    """All of the above."""
    for check in CHECKS:
        for wrong in check(config, product, dtype):
            yield f"{check.__name__}: {wrong}" if wrong else ""


def check_scaled(config: dict) -> Iterator[str]:
    """fp8 operands with scales of rows, or of blocks where the sums are promoted, against float64 of the same numbers;
    NaN in other groups' rows, matrices and scales reaches no group."""
    plan = GemmConfig(**config)
    for sizes in ([1, 63, 0, 64, 131, 700], [0, 0, 300], [64] * 40):
        for n, k in ((8, 16), (264, 144), (136, 2048)):
            a, b = operands("forward", sum(sizes) + 5, n, k, len(sizes), torch.float8_e4m3fn, normal)
            ends = ends_of(sizes)
            rows, groups, bands, blocks = len(a), len(sizes), -(-n // 128), -(-k // 128)
            forms = ((rows, blocks), (groups, bands, blocks)) if plan.promoted else ((rows,), (groups, n))
            scales = [torch.rand(form, device="cuda") + 0.5 for form in forms]
            if plan.promoted:
                # As DeepSeek's kernels keep the scales of A: one block of K after another.
                scales[0] = scales[0].T.contiguous().T
            out = torch.full((rows, n), NAN, device="cuda", dtype=torch.bfloat16)
            prepare("forward", a, b, ends, plan, out, *scales)()
            end = sum(sizes)
            wanted = reference("forward", scaled(a, scales[0]), scaled(b, scales[1]), ends)[:end]
            error = float((out[:end].double() - wanted).norm() / wanted.norm())
            where = f"{sizes[:8]} N={n} K={k}"
            yield "" if error < 3e-3 else f"{where}: relative error {error:.1e}"
            yield "" if bool(out[end:].isnan().all()) else f"{where}: rows of no group were written"
            again = torch.empty_like(out)
            prepare("forward", a, b, ends, plan, again, *scales)()
            yield "" if torch.equal(again[:end], out[:end]) else f"{where}: other bits on another run"
            kept = max(range(groups), key=lambda g, sizes=sizes: sizes[g])
            first, last = bounds(ends, rows)[kept]
            for tensor, part in (
                (a, slice(first, last)),
                (scales[0], slice(first, last)),
                (b, kept),
                (scales[1], kept),
            ):
                clean = tensor[part].clone()
                tensor.fill_(NAN)
                tensor[part] = clean
            prepare("forward", a, b, ends, plan, again, *scales)()
            same = torch.equal(again[first:last], out[first:last])
            yield "" if same else f"{where}: NaN leaks into group {kept}"


def check_gradients() -> Iterator[str]:
    """Gradients against a loop of torch's own products in float64, eager and compiled whole."""
    ends = ends_of([300, 0, 77, 640, 7])
    rows = int(ends[-1])
    for name in ("eager", "compiled", "expanded"):
        a, b = (normal(*s).bfloat16().requires_grad_() for s in ((rows, 264), (5, 136, 264)))

        def loss(a, b, form=name):
            c = autograd.grouped_gemm(a, b, ends)
            # The gradient of a plain sum is one element, expanded: no matrix that TMA can address.
            return c.float().sum() if form == "expanded" else c.float().sin().sum()

        run = torch.compile(loss, fullgraph=True) if name == "compiled" else loss
        run(a, b).backward()
        wide = [t.detach().double().requires_grad_() for t in (a, b)]
        first = 0
        products = []
        for g, end in enumerate(ends.tolist()):
            products.append(wide[0][first:end] @ wide[1][g].T)
            first = end
        c = torch.cat(products)
        (c.sum() if name == "expanded" else c.bfloat16().double().sin().sum()).backward()
        for tensor, right in zip((a, b), wide, strict=True):
            error = float((tensor.grad.double() - right.grad).norm() / right.grad.norm())
            yield "" if error < 2e-2 else f"{name} {tuple(tensor.shape)}: relative error {error:.1e}"
