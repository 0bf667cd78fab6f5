"""Training steps on eight devices: bytes of one device against the budget, gradients against those of one device.

In: GPT-2 with SGD and momentum, its state and batch laid over eight devices of the host in the usual ways. Out:
``results/devices.md``. The steps run; each layout in a process of its own, with eight devices.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from typing import Any

import jax
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import remat_plan as rp
from benchmarks.common import Options, Report, mb, percent
from benchmarks.models import Model, concrete, gpt2, mlp

DEVICES = 8
BUDGETS = ("75%", "50%", "minimum")
MODELS = {
    "gpt2": partial(gpt2, layers=4, width=256, heads=8, batch=32, sequence=256, vocab=2048),
    "mlp": partial(mlp, layers=8, width=512, batch=16384),
}
QUICK = {
    "gpt2": partial(gpt2, layers=2, width=64, heads=8, batch=16, sequence=64, vocab=256),
    "mlp": partial(mlp, layers=4, width=64, batch=1024),
}
_COLUMNS = tuple(
    "model|layout|axes|budget|budget MB|plain MB|planned MB|slack %|overhead %|compiles|gradient error".split("|")
)
_CASES = (
    *(("gpt2", layout, "auto") for layout in ("copies", "fsdp", "tensor")),
    *(("mlp", layout, "explicit") for layout in ("copies", "fsdp")),
)
_INTRO = """GPT-2 (4 layers of width 256, 32 x 256 tokens) and an MLP (8 layers of width 512, 16384 rows), float32, with
SGD and momentum, loss marked by `rp.remat`, the whole step fitted by `rp.fit` on eight devices of the host. `copies`:
parameters and momentum on every device, the batch spread; `fsdp`: the first axis of every matrix that eight divides is
spread too; `tensor`: a mesh of 4 x 2, matrices spread by their last axis over the second. Axes of the mesh: automatic,
or explicit (where a model has to be written for them; the MLP needs nothing).

MB: compiled peaks of one device. Slack: of the budget; the minimum, and a budget below it, is the least peak that
`BudgetError` reports.
Overhead: predicted. Gradient error: the largest difference from the gradients of the same step as written, run on one
device, over the largest gradient of that array; the worst array."""


def spec(layout: str, shape: tuple[int, ...], batch: bool) -> P:
    """How an array lies on the mesh."""
    if batch:
        return P("data")
    if layout == "copies" or len(shape) < 2:
        return P()
    if layout == "fsdp":
        axis = next((i for i, n in enumerate(shape) if n % DEVICES == 0), None)
        return P() if axis is None else P(*[None] * axis, "data")
    return P(*[None] * (len(shape) - 1), "model")


def train_step_of(model: Model, sgd: Any, wrap: Any) -> Any:
    """The training step of a model, its loss wrapped by ``wrap``."""

    def train_step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        params, opt_state = state
        value, grads = jax.value_and_grad(wrap(model.loss))(params, batch)
        updates, opt_state = sgd.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), value

    return train_step


def _error(found: Any, wanted: Any) -> float:
    """The largest difference between two trees of arrays, each over the largest entry of its array."""
    pairs = zip(jax.tree.leaves(jax.device_get(found)), jax.tree.leaves(jax.device_get(wanted)), strict=True)
    return max(float(abs(a - b).max() / max(abs(b).max(), 1e-30)) for a, b in pairs)


def measure(name: str, layout: str, kind: str, quick: bool) -> list[list[str]]:
    """The rows of one model in one layout; needs eight devices."""
    model = (QUICK if quick else MODELS)[name]()
    params, batch = concrete(model)
    sgd = optax.sgd(0.1, momentum=0.9)
    (_, (wanted, *_)), _ = jax.jit(train_step_of(model, sgd, lambda f: f))((params, sgd.init(params)), batch)
    axis_type = AxisType.Explicit if kind == "explicit" else AxisType.Auto
    mesh = jax.make_mesh((4, 2) if layout == "tensor" else (8, 1), ("data", "model"), axis_types=(axis_type,) * 2)

    def put(tree: Any, is_batch: bool) -> Any:
        return jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, spec(layout, x.shape, is_batch))), tree)

    state, spread = put((params, sgd.init(params)), False), put(batch, True)
    rows = []
    for budget in BUDGETS:
        try:
            step = rp.fit(
                train_step_of(model, sgd, rp.remat), state, spread, budget=1 if budget == "minimum" else budget
            )
        except rp.BudgetError as error:
            step = rp.fit(train_step_of(model, sgd, rp.remat), state, spread, budget=error.minimum_bytes)
        (_, (momentum, *_)), _ = step(state, spread)
        report = step.report
        plain, planned = report.plain.peak_bytes, report.planned.peak_bytes
        rows.append([
            *(name, layout, kind, budget, mb(report.budget_bytes), mb(plain), mb(planned)),
            *(percent(1 - planned / report.budget_bytes), percent(report.overhead)),
            *(str(report.compiles), f"{_error(momentum, wanted):.1e}"),
        ])  # fmt: skip
    return rows


def run(options: Options) -> Report:
    """Measure every layout; write and return the table."""
    report = Report("devices", _INTRO, _COLUMNS, options.results)
    for case in _CASES:
        command = [sys.executable, "-m", "benchmarks.devices", *case, *(["quick"] if options.quick else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{case} failed:\n{done.stderr[-4000:]}")
        for row in json.loads(done.stdout.splitlines()[-1]):
            report.add(*row)
    report.finish(facts(report.rows))
    return report


def facts(rows: list[tuple[str, ...]]) -> list[str]:
    """What must hold, checked."""
    slack = [float(row[7]) for row in rows]
    over = [" ".join(row[:4]) for row, share in zip(rows, slack, strict=True) if share < 0]
    loose = [" ".join(row[:4]) for row, share in zip(rows, slack, strict=True) if share > 3]
    wrong = [" ".join(row[:4]) for row in rows if float(row[-1]) > 1e-4]
    return [
        f"over the budget: {', '.join(over) or 'none'} ({len(rows)} fitted steps)",
        f"more than 3 % under it: {', '.join(loose) or 'none'}",
        f"gradients off by more than 1e-4: {', '.join(wrong) or 'none'}",
    ]


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", DEVICES)
    print(json.dumps(measure(sys.argv[1], sys.argv[2], sys.argv[3], "quick" in sys.argv[4:])))
