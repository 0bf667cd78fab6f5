"""Every strategy on models that differ, and the laws of ``memory`` and ``log`` on a chain.

In: models at full size, compiled for the CPU and never run; a chain of 16 to 1024 equal layers. Out:
``results/strategies.md``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.common import Options, Report, Session, mb, percent
from benchmarks.models import Model
from remat_plan.planning.constraints import NO_CONSTRAINTS
from remat_plan.planning.strategies.find import make_task
from remat_plan.planning.strategies.records import NEEDED, Settings, Strategy
from remat_plan.report.strategies import Strategies
from remat_plan.search.candidates import Request
from remat_plan.small.budget import BudgetError

MODELS = ("mlp", "gpt2", "unet", "densenet", "cyclegan")
SIZES = (16, 32, 64, 128, 256, 512, 1024)
COMPILED_SIZES = (16, 32, 64, 128, 256)
SLOTS = 4
_BUDGET_LIKE = "memory"
_COLUMNS = tuple(
    "model|strategy|budget|compiled MB|% of plain|predicted MB|overhead %|gap %|FLOPs %|planning s".split("|")
)
_INTRO = """Each strategy without a budget; those that need one get the compiled peak of `memory`. Overhead (recomputed
seconds over plain ones), gap (to a certified bound for that peak) and FLOPs (of the plain step) are the evaluator's;
bytes are the compiler's, arguments and gradients included. Nothing is run. `binomial` has 4 slots. `collection` and
`mirror` are left out: they keep what a user names. Planning seconds: with the compiles of the plan and of the plain
step, where nobody had made them before.

Rows `chain n`: n layers `x + tanh(x @ a) @ b` that share their weights, x 16384 x 4; temporaries in units of x,
predicted and (up to 256 layers) compiled."""


def run(options: Options) -> Report:
    """Measure all; write and return the table."""
    report = Report("strategies", _INTRO, _COLUMNS, options.results)
    over: list[str] = []
    for name in options.choose(MODELS):
        over += measure_model(report, options.model(name))
    sizes = SIZES[:3] if options.quick else SIZES
    facts = [f"peaks above the plain one: {', '.join(over) or 'none'}"]
    for name in ("memory", "log"):
        facts += list(law(name, sizes))
    report.finish(facts)
    return report


def measure_model(report: Report, model: Model) -> list[str]:
    """Add the rows of a model; return the strategies that need more than the plain step."""
    session = Session(model)
    limit: int | None = None
    above = []
    for row in sorted(Strategies(), key=lambda row: row.name != _BUDGET_LIKE):
        if row.settings in ("Collection", "Mirror"):
            continue
        budget = limit if row.budget == NEEDED else None
        try:
            plan, seconds = plan_by(session, row, budget)
        except (BudgetError, ValueError) as error:
            least = f"least {mb(error.minimum_bytes)}" if isinstance(error, BudgetError) else "refused"
            report.add(model.name, row.name, mb(budget or 0), least, *[""] * 6)
            continue
        assert plan.compiled_peak_bytes is not None
        limit = plan.compiled_peak_bytes if row.name == _BUDGET_LIKE else limit
        share = plan.compiled_peak_bytes / plan.written_peak_bytes
        if share > 1.001:
            above.append(f"{model.name} {row.name}")
        report.add(
            *(model.name, row.name, mb(budget) if budget else "none", mb(plan.compiled_peak_bytes), percent(share, 1)),
            *(mb(plan.predicted_peak_bytes), percent(plan.overhead, 1), percent(plan.gap, 1)),
            *(percent(plan.step_flops / plan.plain_flops, 1), f"{seconds:.1f}"),
        )
    return above


def plan_by(session: Session, row: Strategy, budget: int | None) -> tuple[Any, float]:
    """The plan of a strategy, and how long it took."""
    settings = Settings(slots=SLOTS if row.settings == "Binomial" else None)
    request = Request(row, True, (0,), False, (), "replan", NO_CONSTRAINTS, settings)
    started = time.perf_counter()
    plan = session.make_plan(budget, request)
    return plan, time.perf_counter() - started


def chain(layers: int) -> Model:
    """Equal layers that share their weights, so that arguments and gradients stay the same."""

    def loss(params: Any, batch: Any) -> jax.Array:
        x = batch
        for _ in range(layers):
            x = x + jnp.tanh(x @ params["a"]) @ params["b"]
        return jnp.sum(x**2)

    shape = jax.ShapeDtypeStruct
    params = {"a": shape((4, 16), jnp.float32), "b": shape((16, 4), jnp.float32)}
    return Model("chain", loss, params, shape((16384, 4), jnp.float32), lambda wrap: loss, 1)


def law(name: str, sizes: tuple[int, ...]) -> Iterator[str]:
    """Temporaries of a strategy against the number of layers, as lines of text."""
    for layers in sizes:
        model = chain(layers)
        session = Session(model, solved=False)
        task = make_task(session.program.graph, session.judge.hardware, NO_CONSTRAINTS, Settings())
        find = Strategies()[name].find
        assert find is not None
        schedule = find(task).schedules[0]
        timeline = session.judge.timeline(schedule)
        owned = timeline.argument_bytes + timeline.output_bytes
        carry = model.batch.size * 4
        text = f"chain {layers}, {name}: predicted {(timeline.peak_bytes - owned) / carry:.1f}"
        if layers in COMPILED_SIZES:
            text += f", compiled {(session.judge.compiled_bytes(schedule) - owned) / carry:.1f}"
        flops = timeline.flops / session.judge.timeline(session.program.plain).flops
        yield f"{text} carries; FLOPs {percent(flops, 1)} % of plain"
