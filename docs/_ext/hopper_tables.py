"""Tables of what was measured on an H100: tile orders at a settled clock, clusters beside blocks of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping

from recorded_figures import Row, load


def order_table() -> str:
    """One line a tile and scheme: the settled time at each tile order over that of the shape's fastest reading, in the
    geometric mean of the training shapes that it was read on."""
    found: dict[str, dict[int, list[float]]] = {}
    for row in load("power_h100")["rows"]:
        read = [(c, r["us"]) for c, r in zip(row["configs"], row["readings"], strict=True) if isinstance(r, dict)]
        best = min(us for _, us in read)
        for config, us in read if row["split"] == "train" else ():
            kwargs = config["kwargs"]
            name = (
                f"{kwargs['BLOCK_M']}×{kwargs['BLOCK_N']} {kwargs['SCHEME']}{', swapped' * kwargs.get('SWAP', False)}"
            )
            found.setdefault(name, {}).setdefault(kwargs["GROUP_M"], []).append(us / best)
    lines = ["| tile and scheme | shapes | GROUP_M 4 | 8 | 16 |", "|---" + "|---:" * 4 + "|"]
    for name, orders in sorted(found.items()):
        cells = [f"{_mean(orders[g]):.3f}" if g in orders else "" for g in (4, 8, 16)]
        lines.append(f"| {name} | {max(map(len, orders.values()))} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cluster_table() -> str:
    """One line a shape: the best of the plain candidates, of their clusters, and cuBLAS."""
    lines = [
        "| shape | best plain, µs | best cluster, µs | plain over cluster | cuBLAS, µs |",
        "|---" + "|---:" * 4 + "|",
    ]
    for row in load("clusters_h100")["rows"]:
        plain, cluster = (_best(row, name) for name in ("plain_us", "cluster_us"))
        *sizes, layout = row["shape"]
        shape = f"{'×'.join(map(str, sizes))} {layout.removeprefix('layout=')}"
        lines.append(f"| {shape} | {plain:.1f} | {cluster:.1f} | {plain / cluster:.2f} | {row['peer_us']:.1f} |")
    return "\n".join(lines)


def _best(row: Mapping[str, Row], name: str) -> float:
    return min(us[0] for us in row[name] if isinstance(us, list))


def _mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))
