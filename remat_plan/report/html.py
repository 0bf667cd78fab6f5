"""Plans, analyses, curves and comparisons as HTML: inline style and SVG, no script, no network.

In: ``Plan``, ``Analysis``, ``Tradeoff``, ``Comparison``. Out: one ``<div>`` for notebooks, which takes text and
background from the page, light or dark; or a whole page around it, which follows the reader's theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from remat_plan.report.points import comparison_cells, comparison_title, share_header, tradeoff_title
from remat_plan.report.rows import (
    Entry,
    Fact,
    analysis_facts,
    analysis_title,
    budget_text,
    memory_high,
    number_of,
    plan_entries,
    plan_facts,
    plan_title,
    residual_groups,
    shares,
)
from remat_plan.report.svg import Axis, Line, line_chart
from remat_plan.report.tables import Table
from remat_plan.units import format_bytes

if TYPE_CHECKING:
    from remat_plan.results.analysis import Analysis
    from remat_plan.results.comparison import Comparison
    from remat_plan.results.plan import Plan
    from remat_plan.results.trace import MemoryTrace
    from remat_plan.results.tradeoff import Tradeoff

ENTRIES = 60
"""Most lines of a table."""
BEFORE, AFTER = "#d97706", "#3b82f6"
_COLUMNS = 100
_ACTION = 60
_NUMBERS = (
    "bytes",
    "saves",
    "recomputes",
    "peak",
    "of plain",
    "of written",
    "overhead",
    "compiled",
    "FLOPs",
    "budget",
    "as written",
    "planned",
    "seconds",
    "spread",
)
_COLOURS = ("#3b82f6", "#d97706", "#10b981", "#ec4899", "#8b5cf6", "#14b8a6", "#ef4444", "#a3a308")
"""One for each strategy, in turn; all can be told from white and from black."""
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>:root {{ color-scheme: light dark; }} body {{ margin: 24px; }}</style>
</head>
<body>
{fragment}
</body>
</html>
"""
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
    largest = max((e.decision.saved_bytes or 0 for e in entries if e.decision), default=0)
    rows = [_entry_row(e, largest) for e in entries[:ENTRIES]]
    header = ["", "equations", "what is done", "saves", "", "recomputes", "source"]
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
            f'<td title="{escape(g.hint)}">{escape(g.place)}</td>',
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
    share = share_header(curve.written is not None)
    largest, written = max((p.peak_bytes for p in points), default=1) or 1, curve.written_peak_bytes
    rows = [
        [
            _number(format_bytes(p.peak_bytes)),
            _bar(p.peak_bytes, largest, f"{p.peak_bytes / written:.1%} {share}"),
            _number(f"{p.peak_bytes / written:.1%}"),
            _number(f"{p.overhead:.1%}"),
        ]
        for p in points
    ]
    title = tradeoff_title(curve)
    parts = [_table(["peak", "", share, "overhead"], rows, 0)]
    if points:
        parts.insert(0, _curve(curve, title))
    return _fragment(title, *parts)


def comparison_html(comparison: Comparison) -> str:
    """Strategies and budgets as a table, and as points in one chart."""
    written = comparison.written_peak_bytes
    rows = []
    for row in comparison.rows:
        strategy, budget, peak, share, overhead, compiled, flops, remark = comparison_cells(comparison, row)
        bar = _cell("") if row.peak_bytes is None else _bar(row.peak_bytes, written, f"{row.peak_bytes} bytes")
        told = f'<td title="{escape(row.problem)}">{escape(remark)}</td>'
        numbers = [_number(peak), bar, _number(share), _number(overhead), _number(compiled), _number(flops)]
        rows.append([_cell(escape(strategy)), _number(budget), *numbers, told])
    of = share_header(comparison.has_own_remat)
    header = ["strategy", "budget", "peak", "", of, "overhead", "compiled", "FLOPs", ""]
    notes = [f'<div class="small">{escape(text)}</div>' for text in comparison.footnotes]
    chart = _scatter(comparison) if any(row.plan is not None for row in comparison.rows) else []
    return _fragment(
        comparison_title(comparison, number_of(len(rows), "plan")), *chart, _table(header, rows, 0), *notes
    )


def table_html(table: Table) -> str:
    """A table: figures, notes, rows."""
    kinds = [_number if column.align == ">" else lambda text: _cell(escape(text)) for column in table.columns]
    rows = [[make(cell) for make, cell in zip(kinds, line.cells, strict=True)] for line in table.lines]
    notes = [f'<div class="small">{escape(text)}</div>' for text in (*table.notes, *table.footnotes)]
    return _fragment(table.title, _facts(table.facts), *notes, _table([c.header for c in table.columns], rows, 0))


def page(title: str, fragment: str) -> str:
    """Return a whole HTML page around a fragment: light or dark as the reader prefers, nothing from the network.

    Args:
        title: of the page, plain text.
        fragment: what ``_repr_html_`` of a plan, analysis, curve or comparison returned.

    >>> page("a < b", "<div>...</div>").splitlines()[5]
    '<title>a &lt; b</title>'
    """
    return _PAGE.format(title=escape(title), fragment=fragment)


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
    saved = None if d is None else d.saved_bytes
    values = "" if entry.names_value(_ACTION) else entry.saved_values()
    action = escape(entry.action(_ACTION))
    codes = "; ".join(f"<code>{escape(value)}</code>" for value in values.split("; "))
    detail = f'<div class="small">{codes}</div>' if values else ""
    return [
        _number(f"{entry.count} x" if entry.count > 1 and d is not None else ""),
        _cell(escape(entry.equations)),
        f'<td class="what" style="padding-left:{20 * entry.indent}px">{action}{detail}</td>',
        _number(entry.saved),
        _cell("") if saved is None else _bar(saved, largest, f"{saved} bytes saved by one"),
        _number(entry.recomputed),
        f'<td class="source">{escape(d.source) if d is not None else ""}</td>',
    ]


def _legend(plan: Plan) -> str:
    items = [
        (f"background:{BEFORE}", f"plain: peak {format_bytes(plan.plain_timeline.peak_bytes)}"),
        (f"background:{AFTER}", f"planned: peak {format_bytes(plan.planned_timeline.peak_bytes)}"),
        ("border-top:2px dashed currentColor;height:0", f"budget: {budget_text(plan)}"),
        (
            "background:currentColor;opacity:.25;height:10px",
            f"arguments and results: {format_bytes(plan.planned_timeline.owned_bytes)}",
        ),
    ]
    return _keys(items)


def _keys(items: Sequence[tuple[str, str]]) -> str:
    """A legend of (style of the key, text)."""
    keys = "".join(f'<span><i class="key" style="{style}"></i>{escape(text)}</span>' for style, text in items)
    return f'<div class="legend">{keys}</div>'


def _timeline(plan: Plan) -> str:
    before, after = plan.plain_timeline, plan.planned_timeline
    high = memory_high(plan)
    rule = float(plan.budget_bytes) if plan.budget_bytes is not None and plan.budget_bytes <= high else None
    one, two = _highest(before), _highest(after)
    hover = [
        f"at {n * 100 // _COLUMNS} % of the step: plain {format_bytes(a)}, planned {format_bytes(b)}, "
        f"budget {budget_text(plan)}"
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


def _scatter(comparison: Comparison) -> list[str]:
    """Peak and overhead of all plans, a colour for each strategy: legend and chart."""
    names = list(dict.fromkeys(row.strategy for row in comparison.rows if row.plan is not None))
    lines, keys = [], []
    for number, name in enumerate(names):
        colour = _COLOURS[number % len(_COLOURS)]
        points = sorted(
            (row.peak_bytes, row.plan.overhead)
            for row in comparison.rows
            if row.strategy == name and row.plan is not None and row.peak_bytes is not None
        )
        titles = [f"{name}: peak {format_bytes(peak)}, overhead {overhead:.1%}" for peak, overhead in points]
        lines.append(Line(colour, [p for p, _ in points], [o for _, o in points], titles))
        keys.append((f"background:{colour}", name))
    most = max([1, comparison.written_peak_bytes, *(x for line in lines for x in line.xs)])
    high = max([1e-3, *(y for line in lines for y in line.ys)])
    word = "compiled" if comparison.verified else "predicted"
    chart = line_chart(
        "peak and overhead of the plans compared",
        lines,
        Axis(f"peak memory ({word})", 0, 1.04 * most, format_bytes),
        Axis("overhead (predicted)", 0, 1.08 * high, lambda v: f"{100 * v:.3g} %"),
    )
    return [_keys(keys), chart]
