"""Whole training steps: ``rp.fit`` at budgets down to the least, and the largest batches of ``rp.max_batch``.

In: the steps of ``benchmarks.steps`` at full size, compiled for this CPU, and for an H100 and TPUs that are not here.
Out: ``results/fit.md``, two tables, and what is in them as ``fit.json`` and ``fit_batches.json``: a row that is kept
there is not made again. Needs the extras ``cuda12`` and ``tpu`` for the devices that are not here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import remat_plan as rp
from benchmarks.common import Options, Report, mb, mean, percent, versions
from benchmarks.kept import Kept
from benchmarks.steps import STEPS, Step
from remat_plan.results.steps import LargestSize
from remat_plan.small.budget import parse_budget
from remat_plan.verify.targets import resolve

TARGETS = ("cpu", "gpu:h100", "tpu:v5e:1x1")
LARGER = {("llama", "tpu:v5e:1x1"): "tpu:v5p:1x1x1"}
"""The chip that a step is compiled for where its state alone is more than the first one has."""

BATCH_TARGETS = ("cpu", "gpu:h100")
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
    """One call of ``rp.fit``.

    Attributes:
        step, target, budget: what was asked for.
        budget_bytes: the budget on one device.
        plain_bytes: the peak of the step as written; of a budget below the least peak, that peak.
        planned_bytes: the peak of the fitted step; None where the budget is below the least peak.
        overhead: recomputed seconds over plain seconds.
        compiles, seconds: of the call.
        made: with which versions, and when.
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
    made: str = ""

    @property
    def title(self) -> str:
        """What the row is of."""
        return f"{self.step} {self.target} {self.budget}"

    @property
    def slack(self) -> float:
        """The share of the budget that is left; none of a budget that was refused."""
        return 0.0 if self.planned_bytes is None else 1 - self.planned_bytes / self.budget_bytes

    @property
    def is_over(self) -> bool:
        """Whether the budget was not kept."""
        return self.planned_bytes is not None and self.planned_bytes > self.budget_bytes

    def is_refusal_of(self, step: str, target: str) -> bool:
        """Whether the row says what a step needs at least."""
        return self.planned_bytes is None and (self.step, self.target) == (step, target)

    def cells(self) -> tuple[str, ...]:
        """As text."""
        head = self.step, self.target, self.budget, mb(self.budget_bytes)
        if self.planned_bytes is None:
            return *head, "", f"minimum is {mb(self.plain_bytes)}", "", "", "", f"{self.seconds:.0f}"
        slack = percent(self.slack)
        return (
            *(*head, mb(self.plain_bytes), mb(self.planned_bytes), f"**FAILED: {slack}**" if self.is_over else slack),
            *(percent(self.overhead), str(self.compiles), f"{self.seconds:.0f}"),
        )


@dataclass(frozen=True)
class Batches:
    """One call of ``rp.max_batch``.

    Attributes:
        step, target, budget: what was asked for.
        budget_bytes: the budget on one device.
        rows: the step as written, then one for each limit on overhead.
        compiles, seconds: of the call.
        made: with which versions, and when.
    """

    step: str
    target: str
    budget: str
    budget_bytes: int
    rows: tuple[LargestSize, ...]
    compiles: int
    seconds: float
    made: str = ""

    @staticmethod
    def restore(rows: Sequence[dict[str, float]], **fields: object) -> Batches:
        """Make one of what was kept as JSON."""
        return Batches(rows=tuple(LargestSize(**row) for row in rows), **fields)  # pyright: ignore[reportArgumentType]

    @property
    def title(self) -> str:
        """What the row is of."""
        return f"{self.step} {self.target} {self.budget}"

    def cells(self) -> tuple[str, ...]:
        """As text."""
        plain = self.rows[0].size
        pairs = [(str(row.size), f"{row.size / plain:.2f}" if plain else "") for row in self.rows[1:]]
        return (
            *(self.step, self.target, self.budget, str(plain), *(cell for pair in pairs for cell in pair)),
            *(percent(self.rows[-1].overhead), str(self.compiles), f"{self.seconds:.0f}"),
        )


def fit_row(step: Step, target: str, budget: str, least_bytes: int | None = None) -> Row:
    """Fit a step in a budget; ``MINIMUM`` is the least that can be had, ``least_bytes`` where a refusal told it."""
    wanted: int | str = budget
    if budget == MINIMUM:
        wanted = minimum_bytes(step, target) if least_bytes is None else least_bytes
    started = time.perf_counter()
    try:
        fitted = rp.fit(step.run, *step.make_args(step.batch), budget=wanted, donate_argnums=step.donate, target=target)
    except rp.BudgetError as error:
        seconds = time.perf_counter() - started
        least = error.minimum_bytes
        return Row(step.name, target, budget, error.budget_bytes, least, None, seconds=seconds, made=versions())
    seconds, report = time.perf_counter() - started, fitted.report
    return Row(
        *(step.name, target, budget, report.budget_bytes, report.plain.peak_bytes, report.planned.peak_bytes),
        *(report.overhead, report.compiles, seconds, versions()),
    )


def minimum_bytes(step: Step, target: str) -> int:
    """The least peak that ``BudgetError`` reports."""
    try:
        rp.fit(step.run, *step.make_args(step.batch), budget=1, donate_argnums=step.donate, target=target)
    except rp.BudgetError as error:
        return error.minimum_bytes
    raise AssertionError("a budget of one byte was met")


def batch_row(step: Step, target: str, memory: str) -> Batches:
    """The largest batches of a step in a memory."""
    started = time.perf_counter()
    sizes = rp.max_batch(
        *(step.run, step.make_args),
        budget=memory, multiple_of=step.multiple_of, overheads=OVERHEADS, donate_argnums=step.donate, target=target,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    return Batches(step.name, target, memory, sizes.budget_bytes, sizes.rows, sizes.compiles, seconds, versions())


def run(options: Options) -> Report:
    """Make what is missing; write and return the tables."""
    report = Report("fit", _INTRO, _COLUMNS, options.results)
    below = report.table("max batch", _BATCH_INTRO, _BATCH_COLUMNS)
    kept = Kept(options.results / "fit.json", Row, lambda row: row.title)
    kept_batches = Kept(options.results / "fit_batches.json", Batches.restore, lambda row: row.title)
    steps = [STEPS[name](options.quick) for name in options.choose(tuple(STEPS))]
    missing, rows, batches = [], list[Row](), list[Batches]()
    for wanted in options.targets or TARGETS:
        if problem := _is_missing(wanted):
            missing.append(f"{wanted} ({problem})")
            continue
        for step in steps:
            target = LARGER.get((step.name, wanted), wanted)
            for budget in (*(QUICK_SHARES if options.quick else SHARES), MINIMUM):
                title = f"{step.name} {target} {budget}"
                least = next((r.plain_bytes for r in kept.read() if r.is_refusal_of(step.name, target)), None)
                rows.append(kept.find(title) or kept.put(fit_row(step, target, budget, least)))
                report.facts = fit_facts(rows, missing)
                report.add(*rows[-1].cells())
        for memory in (QUICK_MEMORIES if options.quick else MEMORIES) if wanted in BATCH_TARGETS else ():
            for step in steps:
                if parse_budget(memory).resolve(0, None) >= step.state_bytes:
                    title = f"{step.name} {wanted} {memory}"
                    batches.append(kept_batches.find(title) or kept_batches.put(batch_row(step, wanted, memory)))
                    below.facts = batch_facts(batches)
                    below.add(*batches[-1].cells())
    report.finish(fit_facts(rows, missing))
    return report


def _is_missing(target: str) -> str:
    """Why a target cannot be compiled for here; empty where it can."""
    try:
        resolve(target)
    except (ImportError, RuntimeError) as error:
        return f"no compiler here: {type(error).__name__}"
    return ""


def fit_facts(rows: Sequence[Row], missing: Sequence[str]) -> list[str]:
    """What must hold of the first table, checked."""
    plans = [row for row in rows if row.planned_bytes is not None]
    over = [row.title for row in plans if row.is_over]
    below = [row.title for row in rows if row.planned_bytes is None]
    many = [f"{row.title} ({row.compiles})" for row in plans if row.compiles > 5]
    found = [
        f"over the budget: {', '.join(over) or 'none'} ({len(plans)} fitted steps)",
        f"refused, below the least peak: {', '.join(below) or 'none'}",
        f"more than five compiles: {', '.join(many) or 'none'}",
        f"targets not measured: {', '.join(missing) or 'none'}",
    ]
    for word, chosen in (("all", plans), ("those that recompute anything", [r for r in plans if r.overhead > 0])):
        if chosen:
            slack, compiles = mean([r.slack for r in chosen]), mean([r.compiles for r in chosen])
            found.append(f"{word}: {percent(slack)} % under the budget and {compiles:.1f} compiles on average")
    return found + [f"made with {made}" for made in dict.fromkeys(row.made for row in rows if row.made)]


def batch_facts(made: Sequence[Batches]) -> list[str]:
    """What must hold of the second table, checked."""
    over = [
        f"{found.title} batch {row.size}"
        for found in made
        for row in found.rows
        if (row.peak_bytes or 0) > found.budget_bytes or (row.limit is not None and row.overhead > row.limit)
    ]
    said = [f"over the budget or the overhead: {', '.join(over) or 'none'} ({len(made)} searches)"]
    return said + [f"made with {word}" for word in dict.fromkeys(found.made for found in made if found.made)]
