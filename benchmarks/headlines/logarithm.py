"""Chen et al. 2016, section 4.4: O(log n) memory for O(n log n) forward steps, unrolled and scanned.

In: chains of equal layers that share their weights, compiled for the CPU and never run. Out:
``results/headlines/logarithm.md``.

Forward runs are read from FLOPs: a layer of matrix products costs twice as much backward as forward, so a step with n
layers costs (runs + 2 n) layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.authors.record import f32
from benchmarks.common import Options, Report, Session
from benchmarks.headlines.points import LOG, Ask, plain_point, plan_of, point_of
from benchmarks.models import Model
from remat_plan.planning.strategies.records import Settings
from remat_plan.solve.binomial import advances

LAYERS, QUICK_LAYERS = (4, 16, 64, 256, 1024), (4, 8)
MOST_UNROLLED = 64
"""Longer chains are compiled scanned only: the code of `log` grows with n log n."""

WIDTH, HIDDEN, ROWS = 64, 64, 4096
_COLUMNS = ("layers", "written", "schedule", "temporaries", "theory: states", "forward runs", "theory: runs")
_INTRO = f"""A chain of n layers `x + tanh(x @ a) @ b` with shared weights, x of {ROWS} x {WIDTH} float32, unrolled
or as one `lax.scan`. Temporaries of the compiled gradient step (the peak without arguments and outputs) in states, that
is, in units of x. Forward runs: how often a layer is run forward, the first pass included, by the FLOPs of the step.
Theory: of `log`, log2 n states and n (1 + log2(n) / 2) runs (Chen et al. 2016, section 4.4, equation 3 with k = 1: at
each level of the recursion half of the layers are run once more); of `binomial`, revolve with log2 n states and its
optimum (Griewank and Walther 2000); of `plain`, n and n. Nothing was run."""


def chain(layers: int, scanned: bool, rows: int) -> Model:
    """Equal layers that share their weights, so that arguments and gradients are the same at any length."""

    def layer(params: Any, x: jax.Array) -> jax.Array:
        return x + jnp.tanh(x @ params["a"]) @ params["b"]

    def loss(params: Any, x: jax.Array) -> jax.Array:
        if scanned:
            x = lax.scan(lambda x, _: (layer(params, x), None), x, length=layers)[0]
        else:
            for _ in range(layers):
                x = layer(params, x)
        return jnp.sum(x**2)

    params = {"a": f32(WIDTH, HIDDEN), "b": f32(HIDDEN, WIDTH)}
    return Model("chain", loss, params, f32(rows, WIDTH), lambda wrap: loss, 1)


def forward_runs(layers: int, flops_share: float) -> float:
    """How many layers are run forward in a step with so much more FLOPs than the plain one.

    >>> forward_runs(8, 1 / 3)
    16.0
    """
    return layers * (1 + 3 * flops_share)


def theory(name: str, layers: int) -> tuple[float, float]:
    """States kept and layers run forward."""
    if name == "plain":
        return layers, layers
    if name == "log":
        return math.log2(layers), layers * (1 + math.log2(layers) / 2)
    return slots_of(layers), advances(layers, slots_of(layers)) + layers


def slots_of(layers: int) -> int:
    """How many states the binomial schedule is given."""
    return max(round(math.log2(layers)), 2)


def run(options: Options) -> Report:
    """Measure all; write and return the table."""
    report = Report("logarithm", _INTRO, _COLUMNS, options.results)
    rows = 64 if options.quick else ROWS
    for scanned in (True, False):
        lengths = QUICK_LAYERS if options.quick else LAYERS
        for layers in lengths if scanned else [n for n in lengths if n <= MOST_UNROLLED]:
            add_chain(report, layers, scanned, rows)
    report.finish(facts(report.rows))
    return report


def add_chain(report: Report, layers: int, scanned: bool, rows: int) -> None:
    """Add the rows of one chain."""
    session = Session(chain(layers, scanned, rows), solved=False)
    state_bytes = 4 * rows * WIDTH
    binomial = Ask("binomial", strategy="binomial", settings=Settings(slots=slots_of(layers)))
    plain = plain_point(session)
    points = [plain, *(point_of(session, ask.name, plan_of(session, ask, plain)) for ask in (LOG, binomial))]
    for point in points:
        states, runs = theory(point.name, layers)
        report.add(
            *(layers, "scanned" if scanned else "unrolled", point.name),
            *(f"{point.temporary_bytes / state_bytes:.1f}", f"{states:.1f}"),
            *(f"{forward_runs(layers, point.flops_share):.0f}", f"{runs:.0f}"),
        )


def facts(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """By how many states memory grows for each doubling, and how the runs stand to n log2 n."""
    lines = []
    for written in ("scanned", "unrolled"):
        for name in ("log", "binomial"):
            found = [row for row in rows if row[1:3] == (written, name)]
            first, last = found[0], found[-1]
            doublings = math.log2(int(last[0]) / int(first[0]))
            growth = (float(last[3]) - float(first[3])) / doublings
            runs = float(last[5]) / (int(last[0]) * math.log2(int(last[0])))
            found_in = f"{name}, {written}: {growth:.1f} states more for each doubling"
            lines.append(f"{found_in}; at {last[0]} layers {runs:.2f} n log2(n) forward runs")
    return lines
