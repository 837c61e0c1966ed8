"""A picture of speed over cuBLAS by shape, as SVG: a point a shape, FLOP to the right, the ratio upwards."""

from __future__ import annotations

import math
from collections.abc import Sequence

from many_shapes import COUNTS, DrawnShape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 52, 12, 34, 44
COLOURS = {"dense": "#0072b2", "moe": "#d55e00", "vision": "#009e73", "recommender": "#cc79a7"}
"""Okabe and Ito's colours, told apart by all readers."""
RATIOS = (0.7, 1.5)
"""The range shown; a point beyond it stands at its edge, as a triangle."""
RULES = (0.7, 0.8, 0.9, 0.95, 1.0, 1.1, 1.25, 1.5)


def picture(points: Sequence[tuple[DrawnShape, float]]) -> str:
    """``points`` are shapes with cuBLAS's time over the chosen plan's."""
    flops = [2.0 * math.prod(shape.sizes) for shape, _ in points]
    low, high = math.floor(math.log10(min(flops))), math.ceil(math.log10(max(flops)))

    def x(value: float) -> float:
        return LEFT + (math.log10(value) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(ratio: float) -> float:
        first, last = (math.log(r) for r in RATIOS)
        return HEIGHT - BOTTOM - (math.log(ratio) - first) / (last - first) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f"<title>Speed over cuBLAS of {len(points)} shapes</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for ratio in RULES:
        colour = "#333333" if ratio == 1.0 else "#dddddd"
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(ratio):.1f}" y2="{y(ratio):.1f}" stroke="{colour}"/>'
            f'<text x="{LEFT - 6}" y="{y(ratio) + 4:.1f}" text-anchor="end">{ratio:g}</text>'
        )
    for power in range(low, high + 1):
        parts.append(f'<text x="{x(10.0**power):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">1e{power}</text>')
    for (shape, ratio), value in zip(points, flops, strict=True):
        parts.append(_point(x(value), y(min(max(ratio, RATIOS[0]), RATIOS[1])), shape, ratio))
    for index, kind in enumerate(COUNTS):
        left = LEFT + 8 + index * 120
        parts.append(
            f'<circle cx="{left}" cy="16" r="4" fill="{COLOURS[kind]}"/><text x="{left + 9}" y="20">{kind}</text>'
        )
    parts.append(f'<text x="{LEFT + 8 + len(COUNTS) * 120}" y="20">hollow: rows of no whole 16 bytes</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 8}" text-anchor="middle">FLOP of the product; '
        "upwards: cuBLAS's time over the chosen plan's</text></svg>"
    )
    return "\n".join(parts) + "\n"


def _point(x: float, y: float, shape: DrawnShape, ratio: float) -> str:
    colour = COLOURS[shape.kind]
    look = f'fill="none" stroke="{colour}"' if shape.odd_width else f'fill="{colour}" fill-opacity="0.6"'
    m, n, k = shape.sizes
    title = f"<title>{shape.model} {shape.product} {m}x{n}x{k}: {ratio:.3f}</title>"
    if RATIOS[0] <= ratio <= RATIOS[1]:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" {look}>{title}</circle>'
    tip = -4 if ratio > RATIOS[1] else 4
    path = f"M{x - 3.5:.1f} {y - tip / 2:.1f}h7l-3.5 {tip}z"
    return f'<path d="{path}" {look}>{title}</path>'
