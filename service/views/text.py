"""A plan as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap

from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.plan import Outcome
from warpplan.service.views import sections
from warpplan.service.views.lanes import WAIT, Bar, Lane, end_of
from warpplan.service.views.sections import Section


def outcome_lines(graph: DependenceGraph, outcome: Outcome) -> Iterator[str]:
    """The answer to one graph: status, interval, proof, and the plan's tables."""
    yield f"{graph.name}: {len(graph.ops)} operations, {len(graph.edges)} dependences"
    yield f"  status        {outcome.status}"
    if outcome.plan is None:
        yield f"  proven bound  {f'{outcome.bound} cycles' if outcome.bound else 'none'}"
        yield f"  reason        {outcome.reason}"
        return
    schedule, gap = outcome.plan.schedule, outcome.gap_cycles or 0
    share = f" ({100 * gap / outcome.bound:.1f} %)" if gap and outcome.bound else ""
    yield f"  II            {schedule.ii_cycles} cycles, {schedule.stages} stages"
    yield f"  proven bound  {outcome.bound} cycles, gap {gap}{share}"
    yield f"  binds         {outcome.reason}"
    for section in sections.plan(graph, outcome.plan):
        yield ""
        yield from section_lines(section)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Columns as wide as their widest cell; a column of numbers stands to the right, text to the left."""
    lines = [head, *([str(cell) for cell in row] for row in rows)]
    aligned = [">" if all(isinstance(row[i], int | float) for row in rows) else "<" for i in range(len(head))]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        yield "  ".join(f"{c:{a}{w}}" for c, a, w in zip(line, aligned, widths, strict=True)).rstrip()


def section_lines(section: Section) -> Iterator[str]:
    """A title, its table, and its notes."""
    yield section.title
    if section.rows:
        yield from (f"  {line}" for line in table(section.head, section.rows))
    yield from (f"  {note}" for note in section.notes)


NARROWEST, WIDEST = 80, 120
LETTERS = "abcdefghijklmnopqrstuvwxyzαβγδεζηθικλμνξοπρστυφχψω"
WAITING = "·"
TIED = "\0"
"""A blank at which no line ends."""


def gantt(lanes: Sequence[Lane], width: int = 100) -> Iterator[str]:
    """Rows of lanes over a common axis of cycles, 80 to 120 columns in all.

    An operation has a letter, capital in odd iterations; waits are dots. A column shows the operation that fills most
    of it, so that short ones stay visible among long waits.
    """
    width = min(max(width, NARROWEST), WIDEST)
    margin = 2 + max((len(lane.name) for lane in lanes), default=0)
    columns = width - margin
    step = max(1, -(-int(end_of(lanes)) // columns))
    labels = list(dict.fromkeys(b.label for lane in lanes for b in lane.bars if b.kind != WAIT))
    letters = {label: LETTERS[i % len(LETTERS)] for i, label in enumerate(labels)}
    apart = max(10, len(str(columns * step)) + 1)
    ticks = [f"{column * step:<{apart}}" for column in range(0, columns - apart + 1, apart)]
    yield f"{'':<{margin}}{''.join(ticks).rstrip()}"
    group = ""
    for lane in lanes:
        if lane.group != group:
            group = lane.group
            yield group
        yield f"{lane.name:<{margin}}{_row(lane.bars, letters, step, columns)}".rstrip()
    used = ", ".join(f"{letter}{TIED}{label}" for label, letter in letters.items())
    legend = f"{step} cycles a column; {WAITING} waits; capitals in odd iterations; {used}"
    yield from (line.replace(TIED, " ") for line in wrap(legend, width, break_on_hyphens=False))


def _row(bars: Sequence[Bar], letters: Mapping[str, str], step: int, columns: int) -> str:
    most = [(0, 0.0)] * columns  # (not a wait, cycles) of what each column shows
    shown = [" "] * columns
    for bar in bars:
        works = bar.kind != WAIT
        letter = letters[bar.label] if works else WAITING
        letter = letter.upper() if bar.iteration is not None and bar.iteration % 2 else letter
        for column in range(max(0, int(bar.start // step)), min(columns, int(-(-bar.end // step)))):
            covered = min(bar.end, (column + 1) * step) - max(bar.start, column * step)
            if covered > 0 and (works, covered) > most[column] and (works or 2 * covered >= step):
                most[column], shown[column] = (works, covered), letter
    return "".join(shown)
