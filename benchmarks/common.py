"""What the benchmarks share: sessions that know what plans cost, tables, and the files they are written to.

In: models of ``benchmarks.models``. Out: ``Session``, ``Report``.
"""

from __future__ import annotations

import importlib.metadata
import math
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from benchmarks.models import MODELS, Model, small
from remat_plan.cost.memory import Timeline, evaluate
from remat_plan.planning.constraints import NO_CONSTRAINTS
from remat_plan.planning.strategies.registry import lookup
from remat_plan.plans.one_program import make_plan
from remat_plan.results.plan import Plan
from remat_plan.search.candidates import Candidates, Request
from remat_plan.search.judge import Judge
from remat_plan.search.known import forget
from remat_plan.small.budget import BudgetError, parse_budget
from remat_plan.small.progress import Progress
from remat_plan.traced.programs import trace_program
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.step import GradientStep
from remat_plan.verify.targets import resolve

RESULTS = Path(__file__).parent / "results"
ZOO = ("gpt2", "mlp", "vit", "unet", "resnet50", "densenet", "gpt2_scan")


@dataclass(frozen=True)
class Options:
    """What the command line said.

    Attributes:
        models: names in ``benchmarks.models.MODELS``; empty for the benchmark's own list.
        quick: tiny models.
        timeout_seconds: for one child process, where a benchmark starts them.
        results: the folder to write to.
        size: of the models of ``benchmarks.authors``.
        policies: names of their policies; empty for all.
        targets: devices to compile for; empty for the benchmark's own list.
        without: rules of the backends that `predict` leaves out, one at a time; empty for all.
    """

    models: tuple[str, ...] = ()
    quick: bool = False
    timeout_seconds: float = 600.0
    results: Path = RESULTS
    size: str = "small"
    policies: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def choose(self, default: Sequence[str]) -> tuple[str, ...]:
        """The models to run, in the order asked for, of those that a benchmark runs by default."""
        return tuple(n for n in self.models if n in default) if self.models else tuple(default)

    def model(self, name: str, **changes: Any) -> Model:
        """A model at the size that was asked for."""
        return small(name, **changes) if self.quick else MODELS[name](**changes)


@dataclass(frozen=True)
class Planned:
    """A plan, with what making it alone would have cost."""

    plan: Plan
    compiles: int
    seconds: float


class Session:
    """Many budgets of one program, each with what it would have cost by itself.

    The solve and every compile are made once; their time is added to every plan that asks for them. ``solved`` says
    whether to solve at once; a session that is not solved is for strategies by name.
    """

    def __init__(self, model: Model, target: str | None = "cpu", solved: bool = True, cost: str = "table"):
        started = time.perf_counter()
        self.program = trace_program(model.loss, (model.params, model.batch), {}, 0, False, (), "replan")
        self.judge = Judge(self.program, resolve(target), Progress("benchmarks", False), cost)
        self.candidates = Candidates(self.judge.rules, self.judge.progress)
        if solved:
            self.candidates.planner(NO_CONSTRAINTS)
        self.solve_seconds = time.perf_counter() - started

    def plan(self, budget: int | str, verify: bool = True) -> Planned:
        """What ``rp.plan(model.loss, ..., budget=budget)`` returns, and its compiles and seconds."""
        known, begun = dict(self.judge.compile_seconds), len(self.judge.asked)
        forget()  # a plan by itself, which does not know of others
        started = time.perf_counter()
        plan = self.make_plan(budget, Request(lookup("auto"), verify, (0,), False, (), "replan"))
        asked = set(self.judge.asked[begun:])
        cached_seconds = sum(known[key] for key in asked & known.keys())
        seconds = time.perf_counter() - started + cached_seconds + self.solve_seconds
        return Planned(plan, len(asked), seconds)

    def make_plan(self, budget: int | str | None, request: Request) -> Plan:
        """The plan that a request comes to."""
        parsed = None if budget is None else parse_budget(budget)
        return make_plan(self.judge, self.candidates, parsed, request, time.perf_counter())

    def minimum_bytes(self, verify: bool = True) -> int:
        """The least peak that ``BudgetError`` reports."""
        try:
            self.plan(1, verify)
        except BudgetError as error:
            return error.minimum_bytes
        raise AssertionError("a budget of one byte was met")


def raw_step(model: Model, loss: Callable[..., Any]) -> tuple[GradientStep, tuple[Any, ...]]:
    """The gradient step of a loss as its author wrote it, on flat values, and their shapes."""
    leaves, tree = jax.tree.flatten((model.params, model.batch))
    moving = len(jax.tree.leaves(model.params))

    def run(*values: Any) -> Sequence[Any]:
        return [loss(*jax.tree.unflatten(tree, values))]

    return GradientStep(run, [i < moving for i in range(len(leaves))]), tuple(leaves)


def measure(model: Model, loss: Callable[..., Any], judge: Judge) -> tuple[int, Timeline]:
    """Compiled peak and timeline of a loss as its author wrote it, on the target and hardware of a judge."""
    step, structs = raw_step(model, loss)
    timeline = evaluate(jax.make_jaxpr(step)(*structs), judge.hardware)
    return compile_memory(step, structs, judge.target).total_bytes, timeline


@dataclass
class Report:
    """A table that grows, with facts below it; written to a file after every row.

    Attributes:
        name: of the benchmark, and of the file.
        intro: what the columns mean.
        columns: their heads.
        path: the folder.
        tables: further tables, below this one in the same file.
        top: for such a table, the report whose file it is in.
    """

    name: str
    intro: str
    columns: tuple[str, ...]
    path: Path
    rows: list[tuple[str, ...]] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    done: bool = False
    tables: list[Report] = field(default_factory=list)
    top: Report | None = None

    def table(self, name: str, intro: str, columns: tuple[str, ...]) -> Report:
        """Put another table below, in the same file; ``finish`` of this report finishes both."""
        self.tables.append(Report(name, intro, columns, self.path, top=self))
        return self.tables[-1]

    def add(self, *cells: Any) -> None:
        """Add a row, print it, write the file."""
        assert len(cells) == len(self.columns), (cells, self.columns)
        if not self.rows:
            print(" | ".join(self.columns))
        self.rows.append(tuple(str(c) for c in cells))
        print(" | ".join(self.rows[-1]), flush=True)
        self.write()

    def finish(self, facts: Sequence[str]) -> None:
        """Add what was found, print it, write the file."""
        self.facts, self.done = list(facts), True
        print("\n".join(self.facts), flush=True)
        self.write()

    def write(self) -> None:
        """Write the file as far as it goes."""
        if self.top is not None:
            self.top.write()
            return
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / f"{self.name}.md").write_text(self.text(), encoding="utf-8")

    def text(self) -> str:
        """The file."""
        lines = [f"# {self.name}", "", self.intro, "", f"{versions()}. Command: `python -m benchmarks`.", ""]
        if not self.done:
            lines += ["**Not finished**: rows are missing, and facts are of what was there after the last model.", ""]
        lines += self._lines()
        for table in self.tables:
            lines += ["", f"## {table.name}", "", table.intro, "", *table._lines()]
        return "\n".join(lines).rstrip() + "\n"

    def _lines(self) -> list[str]:
        head = [_row(self.columns), _row(["---"] * len(self.columns))]
        return [*head, *map(_row, self.rows), "", *(f"* {fact}" for fact in self.facts)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def versions() -> str:
    """What this was measured with, and when."""
    jaxlib = importlib.metadata.version("jaxlib")
    numbers = f"jax {jax.__version__}, jaxlib {jaxlib}, python {platform.python_version()}"
    day = time.strftime("%Y-%m-%d")
    return f"{numbers}, 2-core CPU (shared with other work), {day}"


def mb(size_bytes: float) -> str:
    """Decimal megabytes.

    >>> mb(1_234_000)
    '1.2'
    """
    return f"{size_bytes / 1e6:.0f}" if size_bytes >= 1e8 else f"{size_bytes / 1e6:.3g}"


def percent(share: float, digits: int = 2) -> str:
    """A share as per cent, without the sign."""
    return f"{100 * share:.{digits}f}"


def mean(values: Sequence[float]) -> float:
    """The mean; not a number for none."""
    return math.fsum(values) / len(values) if values else math.nan
