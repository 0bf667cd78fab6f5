"""What a plan says: in one line, as a table, as a chart.

In: ``Plan``. Out: text, ``Table``, ``Chart``. The decisions are folded in ``entries``.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

from remat_plan.report.charts import PLAIN, PLANNED, Axis, Chart, Look, Rule, Series, bytes_axis
from remat_plan.report.entries import Entry, plan_entries
from remat_plan.report.tables import Cell, Column, Fact, Line, Table, figures, format_flops, number_of, peak_fact, times
from remat_plan.results.plan import Plan
from remat_plan.small.budget import format_bytes, on_host
from remat_plan.small.wording import name_of

if TYPE_CHECKING:
    from remat_plan.results.evidence import MemoryTrace
    from remat_plan.results.steps import StepReport

ENTRIES = 40
"""Most lines that a terminal shows of the table of decisions."""
_ROOM = 52
"""Characters for what is done; a single saved value that does not fit in stands on a line of its own."""
_COLUMNS = 100
"""Stretches of the step whose figures are told when they are pointed at."""
_SIGHT = 1.5
"""A budget of more than so many times the peaks is left out of the chart, which it would flatten."""


def best_overhead(result: Plan | StepReport) -> tuple[float, str]:
    """The overhead that is known best, and whose it is: the clock's, the compiler's, or else the evaluator's."""
    rows = result.search.rows if isinstance(result, Plan) and not result.is_identity else ()  # else it is noise
    measured = next((row.measured_overhead for row in rows if row.chosen), None)
    known = ((measured, "measured"), (result.compiled_overhead, "compiled"), (result.overhead, "predicted"))
    return next((overhead, source) for overhead, source in known if overhead is not None)


def overhead_fact(overhead: float, source: str, recomputes: bool, of: str = "the plain step") -> Fact:
    """The one figure for time; where recomputing costs none, in words why that may be."""
    words = f"extra seconds relative to {of}"
    if f"{abs(overhead):.1%}" == "0.0%":
        words = "recomputing is free here, with less memory traffic" if recomputes else words
    elif overhead < 0:
        words = f"faster than {of}, with less memory traffic"
    return Fact("overhead", "", overhead, f"{source}: {words}")


def _known_peak(plan: Plan) -> tuple[int, str]:
    """The peak of the planned step, and whose it is."""
    if plan.compiled_peak_bytes is None:
        return plan.predicted_peak_bytes, "predicted"
    return plan.compiled_peak_bytes, "compiled"


def _budget(plan: Plan) -> str:
    return "none" if plan.budget_bytes is None else format_bytes(plan.budget_bytes)


def summary_line(plan: Plan) -> str:
    """One line: peak before and after, budget, overhead."""
    (peak, word), (overhead, source) = _known_peak(plan), best_overhead(plan)
    before = format_bytes(plan.written_peak_bytes)
    if plan.has_own_remat:
        before += f" as written, {format_bytes(plan.plain_peak_bytes)} plain"
    after = f"{format_bytes(peak)} {word}{on_host(plan.kept_on_host_bytes)}"
    return f"{before} -> {after}, budget {_budget(plan)}, overhead {overhead:.1%} {source}"


def status_line(
    fn: Any, written_bytes: int, peak_bytes: int, overhead: tuple[float, str], compiles: int, seconds: float
) -> str:
    """What became of a function, in one line.

    >>> status_line(sum, 81_200_000, 47_500_000, (0.041, "compiled"), 2, 3.1)
    'sum 81.2 MB -> 47.5 MB (58% of what it needs as written), +4.1% compiled, 2 compiles, 3.1 s'
    """
    share = f"{peak_bytes / max(written_bytes, 1):.0%} of what it needs as written"
    peaks = f"{format_bytes(written_bytes)} -> {format_bytes(peak_bytes)} ({share})"
    return f"{name_of(fn)} {peaks}, {overhead[0]:+.1%} {overhead[1]}, {number_of(compiles, 'compile')}, {seconds:.1f} s"


def plan_status(plan: Plan, fn: Any, compiles: int) -> str:
    """What became of a function that was planned, in one line."""
    peak, overhead = _known_peak(plan)[0], best_overhead(plan)
    return status_line(fn, plan.written_peak_bytes, peak, overhead, compiles, plan.planning_seconds)


def plan_line(plan: Plan) -> str:
    """A plan for the debugger."""
    return f"<Plan {plan.strategy} {plan.fingerprint}: {summary_line(plan)}>"


def plan_table(plan: Plan) -> Table:
    """The whole plan: figures, notes and decisions."""
    entries = plan_entries(plan)
    longest = max((e.decision.saved_bytes or 0 for e in entries if e.decision), default=0)
    moves = any(d.host_bytes for d in plan.decisions)
    seconds = f", planned in {plan.planning_seconds:.1f} s" if plan.planning_seconds else ""
    footnotes = []
    if not (plan.is_identity or plan.is_written):
        footnotes.append("Bytes and FLOPs are per block; block inputs are saved in addition.")
    if any(d.nested for d in plan.decisions):
        footnotes.append("What blocks below 'checkpoint around' save exists only while that part is recomputed.")
    if any(e.opens and e.decision and e.decision.structured for e in entries):
        footnotes.append("Rows below a loop, branch or split: figures of one step or run; its own row has the total.")
    return Table(
        f"Plan for {plan.target}: program {plan.fingerprint}, strategy {plan.strategy}{seconds}",
        (
            Column("", "figure"),
            Column("equations", "figure"),
            Column("what is done", flexible=True),
            Column("saves", "figure"),
            Column("", "bar", optional=True),
            *figures(*["on host"] * moves),
            Column("recomputes", "figure"),
            Column("source", most=26, keep_end=True),
        ),
        tuple(_entry_line(e, longest or 1, moves) for e in entries),
        tuple(_facts(plan)),
        tuple(f"note: {note}" for note in plan.notes),
        tuple(footnotes),
        ENTRIES,
    )


def _entry_line(entry: Entry, longest: int, moves: bool) -> Line:
    """A line of the table; ``moves``: there is a column for what is on the host."""
    room = _ROOM - 2 * entry.indent - len("  on host") * moves
    count, saves, bar, on_host, recomputes = "", "", Cell(), "", ""
    if (d := entry.decision) is not None:
        count, size = times(entry.count), d.saved_bytes
        recomputes = format_flops(d.recomputed_flops) if d.recomputed_flops else "-"
        saves, on_host = format_bytes(size), format_bytes(d.host_bytes or None)
        bar = bar if size is None else Cell(hint=f"{size} bytes saved by one", share=size / longest)
    told = Entry.saved_values if d is None or d.slicing is None else Entry.slicing
    below = None if entry.names_value(room) else functools.partial(told, entry)
    cells = (count, entry.equations, entry.action(room), saves, bar, *[on_host] * moves, recomputes, entry.source)
    return Line(cells, entry.indent, below)


def _facts(plan: Plan) -> list[Fact]:
    """The figures of a plan: peaks, overhead, gap, FLOPs."""
    word, plain_flops = _known_peak(plan)[1], plan.plain_flops
    peak = functools.partial(peak_fact, of_bytes=plan.written_peak_bytes)

    def flops(label: str, count: float) -> Fact:
        return Fact(f"FLOPs, {label}", format_flops(count), count / plain_flops if plain_flops else None)

    facts = [peak("plain peak", plan.plain_peak_bytes, remark=word)]
    if plan.has_own_remat:
        facts = [
            peak("peak as written", plan.written_peak_bytes, remark=f"{word}; with its own jax.checkpoint regions"),
            peak("plain peak", plan.plain_peak_bytes, remark=f"{word}; without them"),
        ]
    has_budget = plan.budget_bytes is not None
    asked, compiled = Fact("budget", "none"), Fact("compiled peak", "-", None, "not compiled (verify=False)")
    if has_budget:
        asked = peak("budget", plan.budget_bytes, remark=f"asked for: {plan.budget}")
    if plan.compiled_peak_bytes is not None:
        compiled = peak("compiled peak", plan.compiled_peak_bytes, remark=_spare(plan))
    overhead = overhead_fact(*best_overhead(plan), plan.step_flops > plain_flops)
    facts += [asked, peak("predicted peak", plan.predicted_peak_bytes), compiled, *_host_facts(plan), overhead]
    if plan.written_overhead is not None and plan.written_flops is not None:
        words = "predicted, for the function as written"
        facts += [
            Fact("overhead as written", "", plan.written_overhead, words),
            flops("as written", plan.written_flops),
        ]
    if plan.lower_bound > 0 and plan.overhead > 0:  # else the bound says nothing
        within = "within budget" if has_budget else "at this peak"
        facts.append(Fact("gap", "", plan.gap, f"predicted: beyond what any unsliced schedule {within} runs again"))
    return [*facts, flops("plain", plain_flops), flops("planned", plan.step_flops)]


def _host_facts(plan: Plan) -> list[Fact]:
    """What is kept on the host, where anything is."""
    predicted, compiled = plan.host_bytes, plan.compiled_host_bytes
    if not (predicted or compiled):
        return []
    words = "predicted" if compiled is None else "compiled"
    if compiled not in (None, predicted):
        words += f" (predicted: {format_bytes(predicted)})"
    return [Fact("host memory", format_bytes(plan.kept_on_host_bytes), None, f"{words}; in addition to the peak")]


def _spare(plan: Plan) -> str:
    """How far the compiled peak is from the budget, in words."""
    if plan.budget_bytes is None:
        return ""
    spare = plan.budget_bytes - plan.compiled_peak_bytes
    return f"{format_bytes(abs(spare))} {'to spare' if spare >= 0 else 'above the budget'}"


def plan_chart(plan: Plan) -> Chart:
    """Live memory over the gradient step, plain and planned, as predicted; compiled peaks as markers; the budget.

    The x axis is the share of the step's instructions, since the planned step has more of them.
    """
    both = (
        ("plain", plan.plain_timeline, PLAIN, plan.plain_peak_bytes),
        ("planned", plan.planned_timeline, PLANNED, plan.compiled_peak_bytes),
    )
    lines = [
        Series(f"{word}: predicted peak {format_bytes(trace.peak_bytes)}", look, _shares(trace), trace.live_bytes)
        for word, trace, look, _ in both
    ]
    if plan.compiled_peak_bytes is not None:
        for word, trace, look, size in both:
            told = f"{word}: compiled peak {format_bytes(size)}"
            place = _shares(trace)[trace.live_bytes.index(max(trace.live_bytes))]
            lines.append(Series(told, Look(look.colour, 0.0, "D", 9.0), [place], [size], [told]))
    peak = max(1, *(max(s.ys, default=0) for s in lines), *(trace.peak_bytes for _, trace, _, _ in both))
    budget, told = plan.budget_bytes, f"budget: {_budget(plan)}"
    rules = (Rule(told, budget),) if budget is not None and budget <= _SIGHT * peak else ()
    owned = plan.planned_timeline.owned_bytes
    overhead, source = best_overhead(plan)
    return Chart(
        f"Memory over a gradient step: {overhead:.1%} overhead ({source}){on_host(plan.kept_on_host_bytes)}",
        Axis("position in the gradient step (% of its instructions)", 0, 100, lambda value: f"{value:.0f}%"),
        bytes_axis("live memory (predicted)", [peak, *(rule.at for rule in rules)]),
        tuple(lines),
        rules,
        Rule(f"arguments and results: {format_bytes(owned)}", owned),
        _hints(plan),
        () if rules else (told,),
    )


def _shares(trace: MemoryTrace) -> tuple[float, ...]:
    """Where the points of a trace are in the step, 0 to 100: plain and planned steps differ in length."""
    return tuple(100.0 * p / max(trace.steps - 1, 1) for p in trace.positions)


def _hints(plan: Plan) -> tuple[str, ...]:
    """What each stretch of the step tells."""
    pairs = zip(_highest(plan.plain_timeline), _highest(plan.planned_timeline), strict=True)
    return tuple(
        f"at {n * 100 // _COLUMNS}% of the step: plain {format_bytes(plain)}, planned {format_bytes(planned)}, "
        f"budget {_budget(plan)}"
        for n, (plain, planned) in enumerate(pairs)
    )


def _highest(trace: MemoryTrace) -> list[int]:
    """The most live bytes in each of ``_COLUMNS`` stretches of the step."""
    highest = [0] * _COLUMNS
    for share, size in zip(_shares(trace), trace.live_bytes, strict=True):
        column = min(int(share * _COLUMNS / 100), _COLUMNS - 1)
        highest[column] = max(highest[column], size)
    return [*itertools.accumulate(highest, lambda before, here: here or before)]  # a step longer than a column
