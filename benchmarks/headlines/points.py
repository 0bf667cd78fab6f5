"""One schedule of one network as the compiler has it, and the rows of tables that are made of such points.

In: a ``Session``, what is asked for. Out: ``Point``s, the cells of a row.

A peak is that of the gradient step: arguments (parameters and the batch), outputs (the gradients) and temporaries. What
is left without arguments and outputs (by the evaluator, who counts them) is called temporaries here; the sources count
feature maps, which are most of those. Limits: nothing is run; seconds are predicted, or read from the compiled module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.common import Report, Session
from remat_plan.graph.schedule import Schedule
from remat_plan.planning.strategies.records import NO_SETTINGS, Settings
from remat_plan.planning.strategies.registry import lookup
from remat_plan.results.plan import Plan
from remat_plan.search.candidates import Request
from remat_plan.small.budget import BudgetError

COLUMNS = (
    *("schedule", "peak GB", "peak, times less", "temporaries GB", "temporaries, times less"),
    *("FLOPs +%", "predicted +%", "compiled +%", "compile s"),
)
COLUMNS_TEXT = """GB (10^9 bytes) by XLA's `memory_analysis()`: the peak of the gradient step with its arguments and
outputs (parameters, batch, gradients), and temporaries, which is the peak without those. Times less: than the plain
step. What is recomputed is given in FLOPs of the step, in seconds as predicted, and in seconds by the compiled module,
each above the plain step. Compile s: tracing and XLA's work on that step, beside other work on the machine. `sqrt` is
the strategy `memory`; `ours` is `auto` with a budget. Nothing was run."""


@dataclass(frozen=True)
class Point:
    """A schedule as it was compiled; shares are above the plain step.

    Attributes:
        name: of the schedule, in the table.
        peak_bytes: of the gradient step, compiled.
        temporary_bytes: the same without arguments and outputs.
        flops_share: of the step, predicted.
        overhead: of its seconds, predicted.
        compiled_overhead: of its seconds by the compiled module; None where that does not tell.
        compile_seconds: that its compilation took; None where it is not known.
    """

    name: str
    peak_bytes: int
    temporary_bytes: int
    flops_share: float = 0.0
    overhead: float = 0.0
    compiled_overhead: float | None = 0.0
    compile_seconds: float | None = None

    def cells(self, plain: Point) -> tuple[str, ...]:
        """As text, beside the plain step."""
        compiled, seconds = self.compiled_overhead, self.compile_seconds
        return (
            *(self.name, f"{self.peak_bytes / 1e9:.4g}", f"{plain.peak_bytes / self.peak_bytes:.2f}"),
            *(f"{self.temporary_bytes / 1e9:.4g}", f"{plain.temporary_bytes / max(self.temporary_bytes, 1):.2f}"),
            *(f"{100 * self.flops_share:.1f}", f"{100 * self.overhead:.1f}"),
            "" if compiled is None else f"{100 * compiled:.1f}",
            "" if seconds is None else f"{seconds:.1f}",
        )


@dataclass(frozen=True)
class Ask:
    """What a row is asked for.

    Attributes:
        name: in the table.
        budget: bytes for a plan by ``auto``, given the plain step.
        strategy: where there is no budget.
        settings: of the strategy.
    """

    name: str
    budget: Callable[[Point], float] | None = None
    strategy: str = "memory"
    settings: Settings = NO_SETTINGS


SQRT, LOG = Ask("sqrt"), Ask("log", strategy="log")


def peak_over(times: float) -> Ask:
    """A plan within the plain peak over a number."""
    return Ask(f"ours, peak / {times:g}", lambda plain: plain.peak_bytes / times)


def temporaries_over(times: float) -> Ask:
    """A plan with the plain temporaries over a number."""

    def budget(plain: Point) -> float:
        return plain.peak_bytes - plain.temporary_bytes * (1 - 1 / times)

    return Ask(f"ours, temporaries / {times:g}", budget)


def plain_point(session: Session) -> Point:
    """The step as it is."""
    judge = session.judge
    peak = judge.compiled_bytes(judge.baseline)
    return Point("plain", peak, peak - judge.owned_bytes, compile_seconds=_seconds(session, judge.baseline))


def _seconds(session: Session, schedule: Schedule) -> float | None:
    return session.judge.compile_seconds.get(schedule)


def plan_of(session: Session, ask: Ask, plain: Point) -> Plan:
    """The plan that is asked for.

    Raises:
        BudgetError: nothing fits.
    """
    if ask.budget is not None:
        return session.plan(int(ask.budget(plain))).plan
    request = Request(lookup(ask.strategy), True, (0,), False, (), "replan", settings=ask.settings)
    return session.make_plan(None, request)


def point_of(session: Session, name: str, plan: Plan) -> Point:
    """A plan as a point."""
    assert plan.compiled_peak_bytes is not None
    flops = plan.step_flops / plan.plain_flops - 1
    peak, seconds = plan.compiled_peak_bytes, _seconds(session, plan.schedule)
    return Point(name, peak, peak - session.judge.owned_bytes, flops, plan.overhead, plan.compiled_overhead, seconds)


def add_rows(
    report: Report, labels: Sequence[str], session: Session, asks: Sequence[Ask], theirs: Sequence[str] = ()
) -> list[Point]:
    """Add a row for the plain step and one for each ask; return what could be had, the plain step first.

    Args:
        report: with the columns of ``labels``, ``COLUMNS`` and those of ``theirs``.
        labels: what the network is.
        session: of the network.
        asks: what is wanted.
        theirs: what a source reports, for the last columns.
    """
    points = [plain_point(session)]
    plain = points[0]
    report.add(*labels, *plain.cells(plain), *theirs)
    for ask in asks:
        try:
            points.append(point_of(session, ask.name, plan_of(session, ask, plain)))
        except BudgetError as error:
            least = f"least {error.minimum_bytes / 1e9:.4g}"
            report.add(*labels, ask.name, least, *[""] * (len(COLUMNS) - 2), *theirs)
            continue
        report.add(*labels, *points[-1].cells(plain), *theirs)
    return points


def resume(report: Report, wanted: Mapping[str, int]) -> set[str]:
    """Take over the networks that an unfinished table of before has in full; return their labels.

    Args:
        report: with no rows yet; gets those rows and the facts.
        wanted: how many rows each network is to have, by its label in the first column.
    """
    path = report.path / f"{report.name}.md"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    if not any(line.startswith("**Not finished**") for line in lines):
        return set()
    cells = [tuple(cell.strip() for cell in line[1:-1].split("|")) for line in lines if line.startswith("| ")]
    counts = Counter(row[0] for row in cells)
    whole = {label for label, count in counts.items() if count == wanted.get(label)}
    report.rows = [row for row in cells if row[0] in whole and len(row) == len(report.columns)]
    report.facts = [line.removeprefix("* ") for line in lines if line.startswith("* ")]
    return {row[0] for row in report.rows}


def least_overhead(points: Sequence[Point], times: float, size: Callable[[Point], int]) -> Point | None:
    """The point with the least predicted overhead among those of so many times less memory than the first, plain one.

    Args:
        points: the plain step first.
        times: how many times less.
        size: the bytes that count.
    """
    fits = [p for p in points if size(p) * times <= size(points[0])]
    return min(fits, key=lambda p: p.overhead, default=None)


def bar(what: str, points: Sequence[Point], times: float, most: float) -> list[str]:
    """Lines on whether so many times less memory is had for less than so many per cent."""
    sizes: dict[str, Callable[[Point], int]] = {
        "of the peak": lambda p: p.peak_bytes,
        "of temporaries": lambda p: p.temporary_bytes,
    }
    lines = []
    for memory, size in sizes.items():
        best = least_overhead(points, times, size)
        found = "in no row" if best is None else f"+{100 * best.overhead:.1f} % ({best.name})"
        met = "met" if best is not None and 100 * best.overhead < most else "missed"
        lines.append(f"{what}, {times:g} times less {memory}: {found}; the bar is +{most:g} %: {met}")
    return lines
