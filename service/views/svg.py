"""A time line, and memory over time, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from warpplan.planner.values.plan import Plan
from warpplan.service.views.lanes import EPILOGUE, OTHER, WAIT, Bar, Lane, end_of

WIDTH, MARGIN, TOP, ROW, BAR = 1160, 130, 44, 26, 18
PLOT, HIGH = WIDTH - MARGIN - 70, 300
COLOURS = {
    "TMA": "#3b7dd8",
    "TENSOR": "#e0872f",
    "ALU": "#3f9f63",
    "SFU": "#9a5fc0",
    "LSU": "#2fa3a8",
    EPILOGUE: "#b0564e",
    OTHER: "#7d8590",
    WAIT: "url(#wait)",
}
PALETTE = ("#3b7dd8", "#e0872f", "#3f9f63", "#9a5fc0", "#2fa3a8", "#b0564e", "#b99a1f", "#7d8590")
STYLE = """
text { font: 12px ui-sans-serif, system-ui, sans-serif; fill: #24292f; }
.axis, .group { fill: #57606a; } .group { font-weight: 600; } .in { fill: #fff; font-size: 11px; pointer-events: none; }
.grid { stroke: #d8dee4; stroke-width: 1; } .base { fill: #f6f8fa; }
.bar { stroke: #fff; stroke-width: .5; } .thin { stroke: none; }
"""


def timeline(lanes: Sequence[Lane], title: str, ii_cycles: int | None = None) -> str:
    """A stand-alone picture: a row a lane, hover text a bar, faint lines every ``ii_cycles``."""
    height, rows = _layout(lanes)
    body = [f'<text x="8" y="20" style="font-size:14px;font-weight:600">{escape(title)}</text>']
    body += _legend(lanes, height - 14)
    scale = _Scale(end_of(lanes))
    body += [f'<rect class="base" x="{MARGIN}" y="{y}" width="{PLOT}" height="{BAR}"/>' for y, _ in rows]
    body += scale.axis(height - 40, ii_cycles)
    body.append('<g class="plot" clip-path="url(#inside)">')
    body += [_bar(bar, y, scale) for y, lane in rows for bar in lane.bars if bar.end > bar.start]
    body.append("</g>")
    for y, lane in rows:
        body.append(f'<text x="{MARGIN - 8}" y="{y + 13}" text-anchor="end">{escape(lane.name)}</text>')
    group = ""
    for y, lane in rows:
        if lane.group != group:
            group = lane.group
            body.append(f'<text class="group" x="8" y="{y - 6}">{escape(group)}</text>')
    return _document(height, body, scale)


def memory(plan: Plan, smem_bytes: int) -> str:
    """Shared memory by address over as many intervals as the deepest ring has slots (2 to 8): who holds which bytes
    when.

    Slot s of a ring of D holds the value of every iteration i ≡ s (mod D), from its producer's start for as long as
    the channel says.
    """
    ii = plan.schedule.ii_cycles
    rings = {c.name: c for c in plan.channels}
    span = ii * min(max([2, *(c.depth for c in plan.channels)]), 8)
    space = _Space(_Scale(span), max(plan.smem_bytes, 1))
    start = {p.op: p.cycle for p in plan.schedule.placements}
    title = f"Shared memory over time: {plan.smem_bytes} of {smem_bytes} B"
    body = [f'<text x="8" y="20" style="font-size:14px;font-weight:600">{title}</text>']
    body.append(f'<rect class="base" x="{MARGIN}" y="{TOP}" width="{PLOT}" height="{HIGH}"/>')
    body += space.scale.axis(TOP + HIGH + 6, ii)
    labels = []
    body.append('<g class="plot" clip-path="url(#inside)">')
    buffers = sorted((b for b in plan.buffers if b.memory == "smem"), key=lambda b: (b.offset, -b.size))
    for number, buffer in enumerate(buffers):
        colour, ring = PALETTE[number % len(PALETTE)], rings.get(buffer.name)
        if buffer.shares_with is None and HIGH * buffer.size / space.top >= 11:
            y = space.y(buffer.offset + buffer.size / 2) + 4
            labels.append(f'<text x="{MARGIN - 8}" y="{y:.1f}" text-anchor="end">{escape(buffer.name)}</text>')
        if ring is None:
            style = "stroke-dasharray:4 3;fill-opacity:.15" if buffer.shares_with else "fill-opacity:.55"
            body.append(space.held(buffer.name, buffer.offset, buffer.size, (0, span), colour, style))
            continue
        slot_bytes = buffer.size // ring.depth
        for i in _iterations(start[ring.name], ring.live_cycles, ii, span):
            slot, begin = i % ring.depth, start[ring.name] + i * ii
            during = (max(begin, 0), min(begin + ring.live_cycles, span))
            style = f"fill-opacity:{0.85 if i // ring.depth % 2 else 0.6}"
            name = f"{buffer.name} slot {slot}"
            body.append(space.held(name, buffer.offset + slot * slot_bytes, slot_bytes, during, colour, style))
    body += ["</g>", *labels]
    for at in (0, space.top):
        y = space.y(at) + (10 if at else 0)
        body.append(f'<text class="axis" x="{MARGIN + PLOT + 6}" y="{y:.0f}">{at} B</text>')
    return _document(HIGH + 62, body, space.scale)


def _iterations(start: int, live: int, ii: int, span: int) -> range:
    """The iterations whose hold meets [0, ``span``) cycles of the steady state."""
    return range((-start - live) // ii + 1, (span - start - 1) // ii + 1)


@dataclass(frozen=True)
class _Scale:
    cycles: float

    def x(self, cycle: float) -> float:
        return MARGIN + (PLOT) * cycle / self.cycles

    def axis(self, bottom: float, ii_cycles: int | None) -> Iterator[str]:
        step = _round_step(self.cycles / 10)
        yield '<g class="ticks">'
        for n in range(int(self.cycles // step) + 1):
            x = self.x(n * step)
            yield f'<text class="axis" x="{x:.1f}" y="{TOP - 8}" text-anchor="middle">{n * step:g}</text>'
        yield "</g>"
        if ii_cycles and self.cycles / ii_cycles <= 200:
            for n in range(int(self.cycles // ii_cycles) + 1):
                x = self.x(n * ii_cycles)
                yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>'


@dataclass(frozen=True)
class _Space:
    """Addresses upwards, [0, ``top``) bytes over the picture's height."""

    scale: _Scale
    top: int

    def y(self, byte: float) -> float:
        return TOP + HIGH * (1 - byte / self.top)

    def held(
        self, name: str, offset: int, size: int, during: tuple[float, float], colour: str, style: str
    ) -> str:  # fmt: skip
        x, right = self.scale.x(during[0]), self.scale.x(during[1])
        y, high = self.y(offset + size), max(HIGH * size / self.top, 1)
        hover = f"{name}: bytes {offset} to {offset + size}, cycles {during[0]:.0f} to {during[1]:.0f}"
        return (
            f'<rect class="bar" x="{x:.2f}" y="{y:.2f}" width="{max(right - x, 0.6):.2f}" height="{high:.2f}" '
            f'fill="{colour}" stroke="{colour}" style="{style}"><title>{escape(hover)}</title></rect>'
        )


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten, no less than ``least``."""
    power = 10.0 ** len(str(int(max(least, 1) - 1e-9)))
    return next(step for step in (power / 10, power / 5, power / 2, power) if step >= min(least, power))


def _layout(lanes: Sequence[Lane]) -> tuple[int, list[tuple[int, Lane]]]:
    y, group, rows = TOP, "", []
    for lane in lanes:
        if lane.group != group:
            group = lane.group
            y += 22
        rows.append((y, lane))
        y += ROW
    return y + 40, rows


def _bar(bar: Bar, y: int, scale: _Scale) -> str:
    x, right = scale.x(bar.start), scale.x(bar.end)
    width = max(right - x, 0.6 if bar.kind == WAIT else 1.5)  # a short issue among long waits must stay visible
    turn = "" if bar.iteration is None else f", iteration {bar.iteration}"
    hover = f"{bar.label}{turn}: cycles {bar.start:.0f} to {bar.end:.0f} ({bar.end - bar.start:.0f})"
    hover += f", {bar.note}" if bar.note else ""
    shade = ' fill-opacity="0.72"' if bar.kind != WAIT and bar.iteration is not None and bar.iteration % 2 else ""
    label = f' data-label="{escape(bar.label)}"' if bar.kind != WAIT else ""
    drawn = (
        f'<rect class="{"bar" if width > 4 else "bar thin"}" x="{x:.2f}" y="{y}" width="{width:.2f}" height="{BAR}" '
        f'fill="{COLOURS[bar.kind]}"'
        f"{shade}{label}><title>{escape(hover)}</title></rect>"
    )
    if bar.kind != WAIT and width > 7 * len(bar.label) + 6:
        drawn += (
            f'<text class="in" x="{x + width / 2:.2f}" y="{y + 13}" text-anchor="middle">{escape(bar.label)}</text>'
        )
    return drawn


def _legend(lanes: Sequence[Lane], y: int) -> Iterator[str]:
    kinds = [kind for kind in COLOURS if any(bar.kind == kind for lane in lanes for bar in lane.bars)]
    for n, kind in enumerate(kinds):
        x = MARGIN + 100 * n
        yield f'<rect x="{x}" y="{y - 10}" width="14" height="12" fill="{COLOURS[kind]}"/>'
        yield f'<text x="{x + 20}" y="{y}">{kind}</text>'


def _document(height: int, body: Sequence[str], scale: _Scale) -> str:
    """The data attributes tell a page's script where the plot is."""
    wait = (
        '<defs><pattern id="wait" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" fill="#eceff2"/><rect width="2" height="6" fill="#c3cad1"/></pattern>'
        f'<clipPath id="inside"><rect x="{MARGIN}" y="0" width="{PLOT}" height="10000"/></clipPath></defs>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'data-left="{MARGIN}" data-width="{PLOT}" data-top="{TOP}" data-cycles="{scale.cycles:g}">'
        f'<style>{STYLE}</style>{wait}<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
        + "\n".join(body)
        + "</svg>\n"
    )
