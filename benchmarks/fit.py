"""Whole training steps: ``rp.fit`` at budgets down to the least, and the largest batches of ``rp.max_batch``.

In: the steps of ``benchmarks.steps`` at full size, compiled for this CPU and for an H100 that is not here. Out:
``results/fit.md``, two tables. For the H100 it needs the extra ``cuda12``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import remat_plan as rp
from benchmarks.common import Options, Report, mb, percent
from benchmarks.steps import STEPS, Step
from remat_plan.results.batch_sizes import BatchSize, BatchSizes
from remat_plan.units import parse_budget
from remat_plan.verify.targets import resolve

TARGETS = ("cpu", "gpu:h100")
SHARES = ("75%", "50%", "35%")
MINIMUM = "minimum"
MEMORIES = ("80GB", "24GB", "16GB")
QUICK_SHARES, QUICK_MEMORIES = ("60%",), ("8MB",)
OVERHEADS = (0.1, 0.3)
_COLUMNS = tuple("step|target|budget|budget MB|plain MB|planned MB|slack %|overhead %|compiles|seconds".split("|"))
_BATCH_COLUMNS = tuple(
    "step|target|budget|plain|under 10 %|factor|under 30 %|factor|largest|factor|overhead %|compiles|seconds".split("|")
)
_INTRO = """Whole steps with their optimizer, state donated, loss marked by `rp.remat`, fitted by `rp.fit`: GPT-2 small
(`gpt2`: 12 layers, vocabulary of 8192, 8 x 512 tokens; AdamW), a Llama of 1.3 B parameters in one scan (`llama`: 24
layers of width 2048, 4 x 2048 tokens; AdamW), ResNet-50 in Flax Linen with running statistics (`resnet50`: 64 x 224 x
224; SGD with momentum), ViT-B/16 as a Flax NNX module with `nnx.Optimizer` (`vit`: 32 x 224 x 224; AdamW). Parameters
are float32; GPT-2 and Llama compute in bfloat16.

Nothing is run. MB: peaks of the whole compiled step on one device. Budgets: shares of the step as written, and the
least peak that `BudgetError` reports for a budget of one byte. Slack: of the budget. Overhead: recomputed seconds over
plain seconds of what is marked, predicted. Compiles, seconds: of that call of `rp.fit`, with the step as written."""
_BATCH_INTRO = """`rp.max_batch` of the same steps: the largest batch as written, with at most 10 % and 30 % of
predicted overhead, and with any. Factors are over the batch as written; the overhead is that of the largest. Every
batch named was compiled within the budget. Batches are multiples of 8, of the Llama of 1; where the state of a step
alone is above the budget it is left out."""


@dataclass(frozen=True)
class Row:
    """One call of ``rp.fit``; ``planned_bytes`` is None where the budget is below the least peak, ``plain_bytes`` then
    that peak.
    """

    step: str
    target: str
    budget: str
    budget_bytes: int
    plain_bytes: int
    planned_bytes: int | None
    overhead: float = 0.0
    compiles: int = 0
    seconds: float = 0.0

    @property
    def title(self) -> str:
        """What the row is of."""
        return f"{self.step} {self.target} {self.budget}"

    @property
    def is_over(self) -> bool:
        """Whether the budget was not kept."""
        return self.planned_bytes is not None and self.planned_bytes > self.budget_bytes

    def cells(self) -> tuple[str, ...]:
        """As text."""
        head = self.step, self.target, self.budget, mb(self.budget_bytes)
        if self.planned_bytes is None:
            return *head, "", f"minimum is {mb(self.plain_bytes)}", "", "", "", f"{self.seconds:.0f}"
        slack = percent(1 - self.planned_bytes / self.budget_bytes)
        return (
            *(*head, mb(self.plain_bytes), mb(self.planned_bytes), f"**FAILED: {slack}**" if self.is_over else slack),
            *(percent(self.overhead), str(self.compiles), f"{self.seconds:.0f}"),
        )


@dataclass
class _Made:
    """What was measured."""

    rows: list[Row] = field(default_factory=list)
    sizes: list[tuple[str, BatchSizes]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def fit_row(step: Step, target: str, budget: str) -> Row:
    """Fit a step in a budget; ``MINIMUM`` is the least that can be had."""
    wanted: int | str = minimum_bytes(step, target) if budget == MINIMUM else budget
    started = time.perf_counter()
    try:
        fitted = rp.fit(step.run, *step.make_args(step.batch), budget=wanted, donate_argnums=step.donate, target=target)
    except rp.BudgetError as error:
        seconds = time.perf_counter() - started
        return Row(step.name, target, budget, error.budget_bytes, error.minimum_bytes, None, seconds=seconds)
    seconds, report = time.perf_counter() - started, fitted.report
    return Row(
        *(step.name, target, budget, report.budget_bytes, report.plain.peak_bytes, report.planned.peak_bytes),
        *(report.overhead, report.compiles, seconds),
    )


def minimum_bytes(step: Step, target: str) -> int:
    """The least peak that ``BudgetError`` reports."""
    try:
        rp.fit(step.run, *step.make_args(step.batch), budget=1, donate_argnums=step.donate, target=target)
    except rp.BudgetError as error:
        return error.minimum_bytes
    raise AssertionError("a budget of one byte was met")


def batch_cells(name: str, sizes: BatchSizes, seconds: float) -> tuple[str, ...]:
    """One call of ``rp.max_batch`` as text."""

    def pair(row: BatchSize) -> tuple[str, str]:
        return str(row.batch), f"{row.batch / sizes.plain:.2f}" if sizes.plain else ""

    rows = [cell for row in sizes.rows[1:] for cell in pair(row)]
    last = percent(sizes.rows[-1].overhead)
    return name, sizes.target, sizes.budget, str(sizes.plain), *rows, last, str(sizes.compiles), f"{seconds:.0f}"


def run(options: Options) -> Report:
    """Measure all; write and return the tables."""
    report = Report("fit", _INTRO, _COLUMNS, options.results)
    batches = report.table("max batch", _BATCH_INTRO, _BATCH_COLUMNS)
    made = _Made()
    for target in options.targets or TARGETS:
        if problem := _is_missing(target):
            made.missing.append(f"{target} ({problem})")
            continue
        steps = [STEPS[name](options.quick) for name in options.choose(tuple(STEPS))]
        for step in steps:
            for budget in (*(QUICK_SHARES if options.quick else SHARES), MINIMUM):
                made.rows.append(fit_row(step, target, budget))
                report.facts = fit_facts(made.rows, made.missing)
                report.add(*made.rows[-1].cells())
        for memory in QUICK_MEMORIES if options.quick else MEMORIES:
            for step in steps:
                if parse_budget(memory).resolve(0, None) >= step.state_bytes:
                    cells = _largest(step, target, memory, made)
                    batches.facts = batch_facts(made.sizes)
                    batches.add(*cells)
    report.finish(fit_facts(made.rows, made.missing))
    return report


def _is_missing(target: str) -> str:
    """Why a target cannot be compiled for here; empty where it can."""
    try:
        resolve(target)
    except (ImportError, RuntimeError) as error:
        return f"no compiler here: {type(error).__name__}"
    return ""


def _largest(step: Step, target: str, memory: str, made: _Made) -> tuple[str, ...]:
    """A row of the second table."""
    started = time.perf_counter()
    sizes = rp.max_batch(
        *(step.run, step.make_args),
        budget=memory, multiple_of=step.multiple_of, overheads=OVERHEADS, donate_argnums=step.donate, target=target,
    )  # fmt: skip
    made.sizes.append((step.name, sizes))
    return batch_cells(step.name, sizes, time.perf_counter() - started)


def fit_facts(rows: Sequence[Row], missing: Sequence[str]) -> list[str]:
    """What must hold of the first table, checked."""
    plans = [row for row in rows if row.planned_bytes is not None]
    over = [row.title for row in plans if row.is_over]
    below = [row.title for row in rows if row.planned_bytes is None]
    many = [f"{row.title} ({row.compiles})" for row in plans if row.compiles > 5]
    return [
        f"over the budget: {', '.join(over) or 'none'} ({len(plans)} fitted steps)",
        f"refused, below the least peak: {', '.join(below) or 'none'}",
        f"more than five compiles: {', '.join(many) or 'none'}",
        f"targets not measured: {', '.join(missing) or 'none'}",
    ]


def batch_facts(made: Sequence[tuple[str, BatchSizes]]) -> list[str]:
    """What must hold of the second table, checked."""
    over = [
        f"{name} {sizes.target} {sizes.budget} batch {row.batch}"
        for name, sizes in made
        for row in sizes.rows
        if (row.peak_bytes or 0) > sizes.budget_bytes or (row.limit is not None and row.overhead > row.limit)
    ]
    return [f"over the budget or the overhead: {', '.join(over) or 'none'} ({len(made)} searches)"]
