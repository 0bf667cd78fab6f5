"""Training steps for eight devices that are not here: bytes of one device against the budget.

In: GPT-2 with SGD and momentum as shapes, laid over the eight devices of an absent host in the ways of
``benchmarks.devices``. Out: ``results/devices_absent.md``, and what is in it as ``devices_absent.json``: a row that is
kept there is not made again. Nothing runs. Needs the extras ``cuda12`` and ``tpu``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding

import remat_plan as rp
from benchmarks.common import Options, Report, mb, percent, versions
from benchmarks.devices import spec, train_step_of
from benchmarks.kept import Kept
from benchmarks.models import gpt2
from remat_plan.verify.targets import resolve

TARGETS = ("gpu:h100:8", "tpu:v5e:2x4")
LAYOUTS = ("copies", "fsdp", "tensor")
BUDGET = "70%"
SIZES: dict[str, Any] = {"layers": 4, "batch": 128, "sequence": 512, "vocab": 2048, "dtype": "bfloat16"}
QUICK: dict[str, Any] = {"layers": 1, "width": 64, "heads": 8, "batch": 16, "sequence": 64, "vocab": 256}
_COLUMNS = tuple("target|layout|budget MB|plain MB|planned MB|slack %|overhead %|compiles|seconds".split("|"))
_INTRO = f"""GPT-2 (4 layers of width 768, 128 x 512 tokens, vocabulary of 2048) in bfloat16, with SGD and momentum,
state donated, loss marked by `rp.remat`, the whole step fitted by `rp.fit` in {BUDGET} of the peak that it has as
written, for eight devices of a host that is not here. Layouts are those of `devices`; axes of the mesh are automatic.
MB: compiled peaks of one device. Overhead: predicted. Compiles, seconds: of that call, with the step as written."""


@dataclass(frozen=True)
class Row:
    """One call of ``rp.fit``: what was asked for, bytes of one device, what it cost."""

    target: str
    layout: str
    budget_bytes: int
    plain_bytes: int
    planned_bytes: int
    overhead: float
    compiles: int
    seconds: float
    made: str

    @property
    def title(self) -> str:
        """What the row is of."""
        return f"{self.target} {self.layout}"

    @property
    def slack(self) -> float:
        """The share of the budget that is left."""
        return 1 - self.planned_bytes / self.budget_bytes

    def cells(self) -> tuple[str, ...]:
        """As text."""
        return (
            *(self.target, self.layout, mb(self.budget_bytes), mb(self.plain_bytes), mb(self.planned_bytes)),
            *(percent(self.slack), percent(self.overhead), str(self.compiles), f"{self.seconds:.0f}"),
        )


def fit_row(target: str, layout: str, sizes: dict[str, Any]) -> Row:
    """Fit the step for eight devices of a target."""
    model, sgd = gpt2(**sizes), optax.sgd(0.1, momentum=0.9)
    grid = (4, 2) if layout == "tensor" else (8, 1)
    devices = np.array(resolve(target).devices).reshape(grid)
    mesh = Mesh(devices, ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def laid(tree: Any, is_batch: bool) -> Any:
        def lay(x: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec(layout, x.shape, is_batch)))

        return jax.tree.map(lay, tree)

    state = laid((model.params, jax.eval_shape(sgd.init, model.params)), False)
    started = time.perf_counter()
    train_step, batch = train_step_of(model, sgd, rp.remat), laid(model.batch, True)
    report = rp.fit(train_step, state, batch, budget=BUDGET, donate_argnums=(0,), target=target).report
    return Row(
        *(target, layout, report.budget_bytes, report.plain.peak_bytes, report.planned.peak_bytes),
        *(report.overhead, report.compiles, time.perf_counter() - started, versions()),
    )


def run(options: Options) -> Report:
    """Make what is missing; write and return the table."""
    report = Report("devices_absent", _INTRO, _COLUMNS, options.results)
    kept = Kept(options.results / "devices_absent.json", Row, lambda row: row.title)
    rows: list[Row] = []
    for target in options.targets or TARGETS:
        for layout in LAYOUTS:
            found = kept.find(f"{target} {layout}")
            rows.append(found or kept.put(fit_row(target, layout, QUICK if options.quick else SIZES)))
            report.facts = facts(rows)
            report.add(*rows[-1].cells())
    report.finish(facts(rows))
    return report


def facts(rows: list[Row]) -> list[str]:
    """What must hold, checked."""
    over = [row.title for row in rows if row.planned_bytes > row.budget_bytes]
    many = [f"{row.title} ({row.compiles})" for row in rows if row.compiles > 5]
    return [
        f"over the budget: {', '.join(over) or 'none'} ({len(rows)} fitted steps)",
        f"more than five compiles: {', '.join(many) or 'none'}",
        *(f"made with {made}" for made in dict.fromkeys(row.made for row in rows)),
    ]
