"""Plans, analyses and curves as HTML fragments for notebooks: inline style and SVG, no script, no network.

In: ``Plan``, ``Analysis``, ``Tradeoff``. Out: one ``<div>``; it takes text and background from the page,
light or dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from remat_plan.report.rows import (
    Entry,
    Fact,
    analysis_facts,
    analysis_title,
    memory_high,
    number_of,
    plan_entries,
    plan_facts,
    plan_title,
    residual_groups,
    shares,
)
from remat_plan.report.svg import Axis, Line, line_chart
from remat_plan.units import format_bytes

if TYPE_CHECKING:
    from remat_plan.plan import Plan
    from remat_plan.report.analysis import Analysis
    from remat_plan.report.trace import MemoryTrace
    from remat_plan.report.tradeoff import Tradeoff

ENTRIES = 60
"""Most lines of a table."""
BEFORE, AFTER = "#d97706", "#3b82f6"
_COLUMNS = 100
_ACTION = 60
_NUMBERS = ("bytes", "keeps", "recomputes", "peak", "of plain", "overhead")
_STYLE = """<style>
.remat-plan { font: 13px/1.45 system-ui, sans-serif; color: inherit; max-width: 1000px; }
.remat-plan .title { font-weight: 600; margin: 4px 0 6px; }
.remat-plan table { border-collapse: collapse; margin: 6px 0 10px; }
.remat-plan th, .remat-plan td { padding: 2px 10px 2px 0; text-align: left; vertical-align: top;
  background: transparent; border: 0; }
.remat-plan thead th { border-bottom: 1px solid rgba(128, 128, 128, .6); white-space: nowrap; }
.remat-plan tbody tr { border-bottom: 1px solid rgba(128, 128, 128, .18); background: transparent; }
.remat-plan .facts tbody tr { border: 0; }
.remat-plan .number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.remat-plan .what { min-width: 420px; }
.remat-plan .source { white-space: nowrap; }
.remat-plan .bar { width: 120px; min-width: 60px; }
.remat-plan .bar div { height: 10px; margin-top: 4px; border-radius: 2px; background: #3b82f6; }
.remat-plan .small { opacity: .75; font-size: 12px; }
.remat-plan code { font-size: 12px; white-space: nowrap; background: transparent;
  color: inherit; padding: 0; }
.remat-plan .legend span { margin-right: 16px; white-space: nowrap; }
.remat-plan .key { display: inline-block; width: 18px; height: 4px; margin-right: 5px;
  vertical-align: middle; }
.remat-plan .hover:hover { fill-opacity: .12; }
</style>"""


def plan_html(plan: Plan) -> str:
    """The plan: figures, memory over the step, table of decisions."""
    entries = plan_entries(plan)
    largest = max((e.decision.kept_bytes for e in entries if e.decision), default=0)
    rows = [_entry_row(e, largest) for e in entries[:ENTRIES]]
    header = ["", "equations", "what is done", "keeps", "", "recomputes", "source"]
    notes = [f'<div class="small">note: {escape(note)}</div>' for note in plan.notes]
    return _fragment(
        plan_title(plan),
        _facts(plan_facts(plan)),
        *notes,
        _legend(plan),
        _timeline(plan),
        _table(header, rows, len(entries) - ENTRIES),
    )


def analysis_html(analysis: Analysis) -> str:
    """Totals, and the residuals that take the most bytes."""
    made, owned = residual_groups(analysis)
    largest = made[0].size_bytes if made else 0
    rows = [
        [
            _number(format_bytes(g.size_bytes)),
            _bar(g.size_bytes, largest, f"{g.count} x {format_bytes(g.row.size_bytes)}"),
            _number(f"{g.count} x" if g.count > 1 else ""),
            _cell(f"<code>{escape(g.label)}</code>"),
            _cell(f"<code>{escape(g.type)}</code>"),
            _cell(escape(g.status)),
            f'<td title="{escape(f"{g.row.source} {g.row.function}".strip())}">{escape(g.place)}</td>',
        ]
        for g in made[:ENTRIES]
    ]
    header = ["bytes", "", "", "value", "type", "for the backward pass", "source"]
    parts = [_facts(analysis_facts(analysis)), _table(header, rows, len(made) - ENTRIES)]
    if owned:
        size_bytes = sum(g.size_bytes for g in owned)
        count = sum(g.count for g in owned)
        parts.append(
            f'<div class="small">Read as well: {count} of the arguments and constants '
            f"({format_bytes(size_bytes)})</div>"
        )
    return _fragment(analysis_title(analysis), *parts)


def tradeoff_html(curve: Tradeoff) -> str:
    """The curve, and its points as a table."""
    points = curve.points
    plain = max((p.peak_bytes for p in points), default=1) or 1
    rows = [
        [
            _number(format_bytes(p.peak_bytes)),
            _bar(p.peak_bytes, plain, f"{p.peak_bytes / plain:.1%} of plain"),
            _number(f"{p.peak_bytes / plain:.1%}"),
            _number(f"{p.overhead:.1%}"),
        ]
        for p in points
    ]
    title = f"Peak against overhead for {curve.target}: {number_of(len(points), 'schedule')}, predicted"
    parts = [_table(["peak", "", "of plain", "overhead"], rows, 0)]
    if points:
        parts.insert(0, _curve(curve, title))
    return _fragment(title, *parts)


def _fragment(title: str, *parts: str) -> str:
    return "\n".join(
        [f'<div class="remat-plan">{_STYLE}', f'<div class="title">{escape(title)}</div>', *parts, "</div>"]
    )


def _cell(inner: str) -> str:
    return f"<td>{inner}</td>"


def _number(text: str) -> str:
    return f'<td class="number">{escape(text)}</td>'


def _bar(size: float, largest: float, title: str) -> str:
    share = 100 * size / largest if largest else 0.0
    return f'<td class="bar" title="{escape(title)}"><div style="width:{share:.1f}%"></div></td>'


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    head = "".join(f'<th class="number">{h}</th>' if h in _NUMBERS else f"<th>{h}</th>" for h in header)
    body = "\n".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    more = f'<div class="small">... and {left} more rows</div>' if left > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>{more}"


def _facts(facts: Sequence[Fact]) -> str:
    rows = "\n".join(
        f"<tr><td>{escape(f.label)}</td>{_number(f.figure)}"
        f"{_number('' if f.share is None else f'{f.share:.1%}')}"
        f'<td><span class="small">{escape(f.remark)}</span></td></tr>'
        for f in facts
    )
    return f'<table class="facts"><tbody>\n{rows}\n</tbody></table>'


def _entry_row(entry: Entry, largest: int) -> list[str]:
    d = entry.decision
    values = "" if entry.names_value(_ACTION) else entry.kept_values()
    action = escape(entry.action(_ACTION))
    codes = "; ".join(f"<code>{escape(value)}</code>" for value in values.split("; "))
    detail = f'<div class="small">{codes}</div>' if values else ""
    return [
        _number(f"{entry.count} x" if entry.count > 1 and d is not None else ""),
        _cell(escape(entry.equations)),
        f'<td class="what" style="padding-left:{20 * entry.indent}px">{action}{detail}</td>',
        _number(entry.kept),
        _bar(d.kept_bytes, largest, f"{d.kept_bytes} bytes kept by one") if d is not None else _cell(""),
        _number(entry.recomputed),
        f'<td class="source">{escape(d.source) if d is not None else ""}</td>',
    ]


def _legend(plan: Plan) -> str:
    items = [
        (f"background:{BEFORE}", f"plain: peak {format_bytes(plan.before.peak_bytes)}"),
        (f"background:{AFTER}", f"planned: peak {format_bytes(plan.after.peak_bytes)}"),
        ("border-top:2px dashed currentColor;height:0", f"budget: {format_bytes(plan.budget_bytes)}"),
        (
            "background:currentColor;opacity:.25;height:10px",
            f"arguments and results: {format_bytes(plan.after.owned_bytes)}",
        ),
    ]
    keys = "".join(f'<span><i class="key" style="{style}"></i>{escape(text)}</span>' for style, text in items)
    return f'<div class="legend">{keys}</div>'


def _timeline(plan: Plan) -> str:
    before, after = plan.timeline()
    high = memory_high(plan)
    rule = float(plan.budget_bytes) if plan.budget_bytes <= high else None
    one, two = _highest(before), _highest(after)
    hover = [
        f"at {n * 100 // _COLUMNS} % of the step: plain {format_bytes(a)}, planned {format_bytes(b)}, "
        f"budget {format_bytes(plan.budget_bytes)}"
        for n, (a, b) in enumerate(zip(one, two, strict=True))
    ]
    return line_chart(
        "live memory over the gradient step, plain and planned (predicted)",
        [Line(BEFORE, shares(before), before.live_bytes), Line(AFTER, shares(after), after.live_bytes)],
        Axis("position in the gradient step (share of its instructions)", 0, 100, lambda v: f"{v:.0f} %"),
        Axis("live memory (predicted)", 0, high, format_bytes),
        floor=after.owned_bytes,
        rule=rule,
        columns=hover,
    )


def _highest(trace: MemoryTrace) -> list[int]:
    """The most live bytes in each of ``_COLUMNS`` stretches of the step."""
    highest = [0] * _COLUMNS
    for share, size in zip(shares(trace), trace.live_bytes, strict=True):
        column = min(int(share * _COLUMNS / 100), _COLUMNS - 1)
        highest[column] = max(highest[column], size)
    for n in range(1, _COLUMNS):
        highest[n] = highest[n] or highest[n - 1]  # a step that is longer than a column
    return highest


def _curve(curve: Tradeoff, title: str) -> str:
    points = curve.points
    xs, ys, titles = [], [], []  # stairs: a budget between two points is met by the one with the smaller peak
    for point, after in zip(points, [*points[1:], points[-1]], strict=True):
        xs += [point.peak_bytes, after.peak_bytes]
        ys += [point.overhead, point.overhead]
        titles += [f"peak {format_bytes(point.peak_bytes)}, overhead {point.overhead:.1%}", ""]
    low, high = points[0].peak_bytes, points[-1].peak_bytes
    margin = 0.04 * ((high - low) or high or 1)
    return line_chart(
        title,
        [Line(AFTER, xs, ys, titles)],
        Axis("peak memory (predicted)", low - margin, high + margin, format_bytes),
        Axis("overhead (predicted)", 0, 1.08 * max([*ys, 1e-3]), lambda v: f"{100 * v:.3g} %"),
    )
