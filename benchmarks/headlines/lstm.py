"""Chen et al. 2016, section 5.3: a long LSTM under ``lax.scan``; memory against its length.

In: nothing; networks are compiled for the CPU and never run. Out: ``results/headlines/lstm.md``.

Theirs: four layers of 1024 hidden states, batch 64, inputs of 50 numbers, a softmax over 5000 classes at every step, 64
steps; more than four times less memory. Here the same up to 16384 steps.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.authors.record import cross_entropy, f32, i32
from benchmarks.common import Options, Report, Session
from benchmarks.headlines.layers import dense, dense_params
from benchmarks.headlines.points import COLUMNS, COLUMNS_TEXT, LOG, SQRT, Ask, add_rows, bar, peak_over, resume
from benchmarks.models import Model
from remat_plan.planning.strategies.records import Settings

LENGTHS, QUICK_LENGTHS = (64, 1024, 16384), (16,)
BARS = ((4.0, 30.0), (10.0, 30.0))
_COLUMNS = ("steps", *COLUMNS)
_INTRO = f"""Chen et al. 2016, section 5.3: an LSTM of four layers with 1024 hidden states, batch 64, inputs of 50
numbers, a softmax over 5000 classes at every step, float32, as one `lax.scan` over the steps; gradients of the
parameters. The paper has 64 steps, and more than four times less memory for about 30 % more time. `binomial` is
revolve (Griewank and Walther 2000) with 2 log2(steps) carries. {COLUMNS_TEXT}"""


def lstm(
    steps: int, layers: int = 4, width: int = 1024, batch: int = 64, inputs: int = 50, classes: int = 5000
) -> Model:
    """The network: a scan over the steps, every layer and the loss of a step in its body."""
    sizes = [inputs] + [width] * (layers - 1)
    params = {
        "layers": [dense_params(n + width, 4 * width) for n in sizes],
        "head": dense_params(width, classes),
    }

    def cell(p: Any, state: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h, c = state
        forget, enter, leave, new = jnp.split(dense(p, jnp.concatenate([x, h], -1)), 4, -1)
        c = jax.nn.sigmoid(forget) * c + jax.nn.sigmoid(enter) * jnp.tanh(new)
        return jax.nn.sigmoid(leave) * jnp.tanh(c), c

    def loss(params: Any, data: Any) -> jax.Array:
        def step(carry: Any, row: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
            states, total = carry
            (x, label), found = row, []
            for p, state in zip(params["layers"], states, strict=True):
                found.append(cell(p, state, x))
                x = found[-1][0]
            return (found, total + cross_entropy(dense(params["head"], x), label)), None

        zeros = jnp.zeros((batch, width))
        first = [(zeros, zeros)] * layers, jnp.float32(0)
        return lax.scan(step, first, (data["inputs"], data["labels"]))[0][1] / steps

    data = {"inputs": f32(steps, batch, inputs), "labels": i32(steps, batch)}
    return Model("lstm", loss, params, data, lambda wrap: loss, classes)


def asks(steps: int) -> tuple[Ask, ...]:
    """What is asked for at a length."""
    slots = round(2 * math.log2(steps))
    binomial = Ask(f"binomial, {slots} carries", strategy="binomial", settings=Settings(slots=slots))
    return SQRT, LOG, binomial, peak_over(4), peak_over(10)


def run(options: Options) -> Report:
    """Measure all; write and return the table."""
    report = Report("lstm", _INTRO, _COLUMNS, options.results)
    lengths = QUICK_LENGTHS if options.quick else LENGTHS
    done = resume(report, {str(steps): len(asks(steps)) + 1 for steps in lengths})
    for steps in lengths:
        if str(steps) not in done:
            model = lstm(steps, 2, 16, 4, 3, 10) if options.quick else lstm(steps)
            points = add_rows(report, (str(steps),), Session(model), asks(steps))
            report.facts += [line for each in BARS for line in bar(f"{steps} steps", points, *each)]
            report.write()
    report.finish(report.facts)
    return report
