"""Our plans against every stock policy of ``jax.checkpoint``, at the memory that each of them needs.

In: models at full size, compiled for the CPU and never run. Out: ``results/stock.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from benchmarks.common import ZOO, Options, Planned, Report, Session, mb, measure
from benchmarks.models import Model
from remat_plan.cost.memory import Timeline
from remat_plan.small.budget import BudgetError

POLICIES = (
    "nothing_saveable",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "everything_saveable",
)
EQUAL = 1e-3
_COLUMNS = tuple(
    "model|placement|policy|stock MB|our MB|stock TFLOP|our TFLOP|FLOPs %|stock s|our s|seconds %|ours is".split("|")
)
_INTRO = """Each policy is put on every block of a model, as people write it by hand, and on the whole function. Our
budget is the compiled peak of that. FLOPs and predicted seconds are the evaluator's for both, on the same `Hardware`.
FLOPs %, seconds %: ours above theirs (negative: ours is faster). Differences up to 0.1 % count as equal."""


@dataclass(frozen=True)
class Row:
    """One policy at one placement, and our plan at its memory."""

    model: str
    placement: str
    policy: str
    stock_bytes: int
    stock: Timeline
    ours: Timeline
    planned: Planned

    @property
    def more_flops(self) -> float:
        """Ours above theirs, as a share."""
        return self.ours.flops / self.stock.flops - 1

    @property
    def more_seconds(self) -> float:
        """Ours above theirs, as a share."""
        return self.ours.seconds / self.stock.seconds - 1

    @property
    def verdict(self) -> str:
        """Slower, faster, or equal within ``EQUAL``, in seconds; FLOPs where they say something else."""
        if self.more_seconds > EQUAL:
            return "SLOWER"
        word = "faster" if self.more_seconds < -EQUAL else "equal"
        return f"{word}, more FLOPs" if self.more_flops > EQUAL else word

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        compiled = self.planned.plan.compiled_peak_bytes or 0
        return (
            *(self.model, self.placement, self.policy, mb(self.stock_bytes), mb(compiled)),
            *(f"{self.stock.flops / 1e12:.4g}", f"{self.ours.flops / 1e12:.4g}", f"{100 * self.more_flops:+.2f}"),
            *(f"{self.stock.seconds:.4g}", f"{self.ours.seconds:.4g}", f"{100 * self.more_seconds:+.2f}"),
            self.verdict,
        )


def variants(model: Model) -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """Every policy on the blocks, then on the whole function: (placement, policy, loss)."""
    for policy in POLICIES:
        wrap = partial(jax.checkpoint, policy=getattr(jax.checkpoint_policies, policy))
        yield "each block", policy, model.loss_with(wrap)
    for policy in POLICIES:
        wrap = partial(jax.checkpoint, policy=getattr(jax.checkpoint_policies, policy))
        yield "whole", policy, wrap(model.loss)


def run(options: Options) -> Report:
    """Measure all; write and return the table."""
    report = Report("stock", _INTRO, _COLUMNS, options.results)
    rows: list[Row] = []
    failed: list[str] = []
    for name in options.choose(ZOO):
        model = options.model(name)
        session = Session(model)
        for placement, policy, loss in variants(model):
            size, stock = measure(model, loss, session.judge)
            try:
                planned = session.plan(size)
            except BudgetError as error:
                failed.append(f"{name}, {policy}, {placement}")
                report.add(name, placement, policy, mb(size), f"least {mb(error.minimum_bytes)}", *[""] * 6, "ABOVE")
                continue
            ours = session.judge.timeline(planned.plan.schedule)
            rows.append(Row(name, placement, policy, size, stock, ours, planned))
            report.add(*rows[-1].cells())
        report.facts = facts(rows, failed)
    report.finish(facts(rows, failed))
    return report


def facts(rows: list[Row], failed: list[str]) -> list[str]:
    """What must hold, checked."""
    slower = [_named(r, r.more_seconds) for r in rows if r.more_seconds > EQUAL]
    more = [_named(r, r.more_flops) for r in rows if r.more_flops > EQUAL]
    over = [f"{r.model} {r.policy} {r.placement}" for r in rows if not _fits(r)]
    return [
        f"{len(rows) + len(failed)} rows; ours needs more memory than stock: {', '.join(over + failed) or 'none'}",
        f"ours slower (predicted seconds, by more than 0.1 %): {', '.join(slower) or 'none'}",
        f"ours with more FLOPs (by more than 0.1 %): {', '.join(more) or 'none'}",
        f"ours faster by more than 0.1 %: {sum(r.more_seconds < -EQUAL for r in rows)} rows",
    ]


def _named(row: Row, share: float) -> str:
    return f"{row.model} {row.policy} on {row.placement} ({100 * share:+.2f} %)"


def _fits(row: Row) -> bool:
    compiled = row.planned.plan.compiled_peak_bytes
    return compiled is not None and compiled <= row.stock_bytes
