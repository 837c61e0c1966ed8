"""An explanation as one page that needs nothing else: tables, the time line, memory over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from warpplan.service.views.sections import Section

STYLE = """
:root { color-scheme: light; }
body { font: 14px/1.5 ui-sans-serif, system-ui, sans-serif; color: #24292f; background: #f3f5f7; margin: 0; }
main { max-width: 1200px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 15px; margin: 0 0 10px; }
.lead { color: #57606a; margin: 0 0 20px; }
section { background: #fff; border: 1px solid #d8dee4; border-radius: 8px; padding: 16px 18px; margin: 0 0 16px;
  overflow-x: auto; }
table { border-collapse: collapse; } th, td { padding: 3px 16px 3px 0; text-align: left; white-space: nowrap; }
th { color: #57606a; font-weight: 600; border-bottom: 1px solid #d8dee4; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
p.note { color: #57606a; margin: 8px 0 0; } .picture svg { display: block; max-width: 100%; height: auto; }
.hint { color: #57606a; font-size: 12px; margin: 6px 0 0; } .picture svg { cursor: grab; }
#tip { position: fixed; display: none; pointer-events: none; background: #24292f; color: #fff; padding: 4px 8px;
  border-radius: 4px; font-size: 12px; max-width: 420px; z-index: 9; }
"""
SCRIPT = """
const tip = document.getElementById("tip");
for (const rect of document.querySelectorAll("svg rect.bar")) {
  const title = rect.querySelector("title");
  if (!title) continue;
  const text = title.textContent;
  title.remove();
  rect.addEventListener("pointermove", e => {
    tip.textContent = text;
    tip.style.display = "block";
    tip.style.left = Math.min(e.clientX + 12, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = e.clientY + 16 + "px";
  });
  rect.addEventListener("pointerleave", () => { tip.style.display = "none"; });
}
const make = (name, attributes, text) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  return node;
};
for (const svg of document.querySelectorAll("svg[data-cycles]")) {
  const left = +svg.dataset.left, width = +svg.dataset.width, cycles = +svg.dataset.cycles, top = +svg.dataset.top;
  const plot = svg.querySelector(".plot"), axis = svg.querySelector(".ticks");
  svg.querySelectorAll("text.in").forEach(text => text.remove());
  const bars = [...svg.querySelectorAll("rect.bar")].map(rect => ({
    rect, x: +rect.getAttribute("x") - left, w: +rect.getAttribute("width"), label: rect.dataset.label, text: null }));
  const lines = [...svg.querySelectorAll("line.grid")].map(line => ({ line, x: +line.getAttribute("x1") - left }));
  let from = 0, zoom = 1;  // pixels of the whole picture that lie to the left of what is shown, and how wide it is
  const draw = () => {
    zoom = Math.min(200, Math.max(1, zoom));
    from = Math.min(width * (zoom - 1), Math.max(0, from));
    const at = x => left + x * zoom - from;
    for (const bar of bars) {
      const x = at(bar.x), w = bar.w * zoom;
      bar.rect.setAttribute("x", x);
      bar.rect.setAttribute("width", w);
      const shown = bar.label && w > 7 * bar.label.length + 6;
      if (shown && !bar.text) {
        const y = +bar.rect.getAttribute("y") + 13;
        bar.text = plot.appendChild(make("text", { class: "in", y, "text-anchor": "middle" }, bar.label));
      }
      if (bar.text) {
        bar.text.style.display = shown ? "" : "none";
        bar.text.setAttribute("x", x + w / 2);
      }
    }
    for (const { line, x } of lines) {
      const here = at(x);
      line.style.display = here < left || here > left + width ? "none" : "";
      line.setAttribute("x1", here);
      line.setAttribute("x2", here);
    }
    const least = cycles / zoom / 10, power = 10 ** Math.floor(Math.log10(least));
    const step = Math.max(1, [1, 2, 5, 10].map(n => n * power).find(n => n >= least));
    axis.replaceChildren();
    const place = n => at(n / cycles * width);
    for (let n = Math.ceil(from / zoom / width * cycles / step) * step; place(n) <= left + width; n += step)
      axis.append(make("text", { class: "axis", x: place(n), y: top - 8, "text-anchor": "middle" }, n));
  };
  const pixel = e => (e.clientX - svg.getBoundingClientRect().left) * svg.viewBox.baseVal.width
    / svg.getBoundingClientRect().width - left;
  svg.addEventListener("wheel", e => {
    e.preventDefault();
    const here = pixel(e), before = zoom;
    zoom = Math.min(200, Math.max(1, zoom * Math.exp(-e.deltaY / 400)));
    from = (from + here) * zoom / before - here;
    draw();
  }, { passive: false });
  let held = null;
  svg.addEventListener("pointerdown", e => { held = { x: pixel(e), from }; svg.setPointerCapture(e.pointerId); });
  svg.addEventListener("pointermove", e => { if (held) { from = held.from + held.x - pixel(e); draw(); } });
  svg.addEventListener("pointerup", () => { held = null; });
  svg.addEventListener("dblclick", () => { from = 0; zoom = 1; draw(); });
  draw();
}
"""


def page(title: str, lead: Sequence[str], pictures: Sequence[str], sections: Sequence[Section]) -> str:
    """``pictures`` are SVG; nothing is fetched from anywhere."""
    parts = [*_pictures(pictures), *(_section(section) for section in sections)]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body><main>'
        f'<h1>{escape(title)}</h1><p class="lead">{"<br>".join(map(escape, lead))}</p>'
        + "\n".join(parts)
        + f'</main><div id="tip"></div><script>{SCRIPT}</script></body></html>\n'
    )


def _pictures(pictures: Sequence[str]) -> Iterator[str]:
    for n, picture in enumerate(pictures):
        hint = '<p class="hint">Wheel zooms, dragging moves, a double click shows all.</p>' if n == 0 else ""
        yield f'<section class="picture">{picture}{hint}</section>'


def _section(section: Section) -> str:
    numbers = [
        bool(section.rows) and all(isinstance(row[i], int | float) for row in section.rows)
        for i in range(len(section.head))
    ]
    mark = [' class="n"' if number else "" for number in numbers]
    head = "".join(f"<th{m}>{escape(name)}</th>" for name, m in zip(section.head, mark, strict=True))
    rows = "".join(
        "<tr>" + "".join(f"<td{m}>{escape(str(cell))}</td>" for cell, m in zip(row, mark, strict=True)) + "</tr>"
        for row in section.rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if section.rows else ""
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in section.notes)
    return f"<section><h2>{escape(section.title)}</h2>{table}{notes}</section>"
