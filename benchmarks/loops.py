"""Long loops: ``rp.scan`` against Equinox's checkpointed scan and against the theory; memory against length.

In: a tanh RNN, and an element-wise recurrence of up to a million steps; both run. Out: ``results/loops.md`` and
``results/loops_length.md``, the picture ``results/loops.png``.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import remat_plan as rp
from benchmarks.common import Options, Report
from remat_plan.solve.binomial import advances

Scan = Callable[..., tuple[Any, Any]]

ROUNDS = 15
SLOTS = (64, 32, 16)
_COLUMNS = (
    *("slots", "evaluations run", "optimum", "of Equinox", "temporaries", "of Equinox", "of plain"),
    *("seconds", "of Equinox", "of plain", "CPU seconds", "of Equinox", "of plain", "largest difference"),
)
_INTRO = """A tanh RNN of 1024 steps, carry (64, 256) float32: gradients of weights, first carry and inputs. Slots:
carries that may be stored (Equinox: `checkpoints`). Evaluations of the body are counted while it runs; the optimum is
that of Griewank and Walther 2000 for so many slots, the forward pass included. Temporaries: those of the compiled
step, in carries of 64 KiB (arguments and gradients are not among them). Seconds: median of steps that take turns in
one process, on the clock and of the processor (which other work on the machine disturbs less). Difference: of any
gradient from plain `jax.lax.scan`, relative to its largest entry."""
_LENGTH_COLUMNS = ("steps", "schedule", "slots", "compile seconds", "temporaries", "run seconds", "evaluations")
_LENGTH_INTRO = """h -> a h + x (1 - h h) / 100 on a carry of 64 KiB, one number x a step; gradients of a, of the first
carry and of all x. Temporaries: those of the compiled step, in carries. With slots = 2 log2(steps) they are a
straight line over the logarithm of the length."""


def rnn(scan: Scan, w: jax.Array, h: jax.Array, xs: jax.Array) -> jax.Array:
    """A recurrent network: (width, width), (batch, width), (steps, batch, width) float32 to a scalar."""

    def body(h: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(h @ w + x), None

    return (scan(body, h, xs)[0] ** 2).sum()


def equinox_scan(slots: int) -> Scan:
    """Equinox's checkpointed scan (its internal one: there is no public one)."""
    from equinox.internal import scan

    return partial(scan, kind="checkpointed", checkpoints=slots)


def compile_gradient(scan: Scan, *args: Any) -> Any:
    """Compile the gradient step of the network."""
    return jax.jit(jax.grad(partial(rnn, scan), (0, 1, 2))).lower(*args).compile()


def temporaries(compiled: Any, carry_bytes: int) -> float:
    """Temporaries of a compiled step in carries."""
    return compiled.memory_analysis().temp_size_in_bytes / carry_bytes


class Counting:
    """A scan that counts how often its body is evaluated while it runs."""

    def __init__(self, scan: Scan) -> None:
        self.scan, self.count = scan, 0

    def __call__(self, body: Callable[..., Any], init: Any, xs: Any) -> tuple[Any, Any]:
        def counted(carry: Any, x: Any) -> Any:
            jax.debug.callback(self.tell, x.ravel()[0])
            return body(carry, x)

        return self.scan(counted, init, xs)

    def tell(self, _: Any) -> None:
        """Called by the running program."""
        self.count += 1


def evaluations(scan: Scan, *args: Any) -> int:
    """Run a gradient step of the network and count the evaluations of its body."""
    counting = Counting(scan)
    jax.block_until_ready(compile_gradient(counting, *args)(*args))
    jax.effects_barrier()
    return counting.count


def interleaved_seconds(steps: list[Any], args: tuple[Any, ...], rounds: int) -> list[tuple[float, float]]:
    """Time compiled steps in turn, so that other work on the machine hits all alike; return medians.

    Of each step: seconds on the clock, and seconds of the processor.
    """
    taken: list[list[tuple[float, float]]] = [[] for _ in steps]
    for number in range(rounds + 1):
        # Every other round backwards: a step that follows a large one finds its caches cold.
        for step, took in list(zip(steps, taken, strict=True))[:: 1 - 2 * (number % 2)]:
            began = time.perf_counter(), time.process_time()
            jax.block_until_ready(step(*args))
            took.append((time.perf_counter() - began[0], time.process_time() - began[1]))
    clock, processor = ([statistics.median(t[k] for t in took[1:]) for took in taken] for k in (0, 1))
    return list(zip(clock, processor, strict=True))  # the first run of each warms up


def difference(found: Any, right: Any) -> float:
    """The largest difference of any gradient, relative to its largest entry."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True)
    return max(float(jnp.max(jnp.abs(f - r)) / jnp.max(jnp.abs(r))) for f, r in pairs)


def run_rnn(options: Options) -> Report:
    """Compare with Equinox and with the optimum."""
    length, batch, width = (48, 4, 8) if options.quick else (1024, 64, 256)
    slots_list = (8, 3) if options.quick else SLOTS
    keys = jax.random.split(jax.random.key(0), 2)
    w = jax.random.normal(keys[0], (width, width)) / math.sqrt(width)
    args = w, jnp.zeros((batch, width)), 0.1 * jax.random.normal(keys[1], (length, batch, width))
    carry_bytes = 4 * batch * width
    report = Report("loops", _INTRO, _COLUMNS, options.results)
    plain = compile_gradient(jax.lax.scan, *args)
    right = plain(*args)
    exact = smaller = 0
    faster = [0, 0]
    for slots in slots_list:
        scan, other = partial(rp.scan, schedule="binomial", slots=slots), equinox_scan(slots)
        ran, optimum = evaluations(scan, *args), advances(length, slots) + length
        steps = [compile_gradient(s, *args) for s in (scan, other)]
        mine, theirs = (temporaries(s, carry_bytes) for s in steps)
        seconds = interleaved_seconds([*steps, plain], args, 2 if options.quick else ROUNDS)
        exact, smaller = exact + (ran == optimum), smaller + (mine < theirs)
        faster = [n + (a < b) for n, a, b in zip(faster, *seconds[:2], strict=True)]
        report.add(
            *(slots, ran, optimum, evaluations(other, *args)),
            *(f"{mine:.1f}", f"{theirs:.1f}", f"{temporaries(plain, carry_bytes):.0f}"),
            *(f"{s[k]:.3f}" for k in (0, 1) for s in seconds),
            f"{difference(steps[0](*args), right):.0e}",
        )
    total = len(slots_list)
    report.finish([
        f"evaluations equal to the optimum: {exact} of {total}",
        f"temporaries below Equinox's: {smaller} of {total}",
        f"seconds below Equinox's: {faster[0]} of {total} on the clock, {faster[1]} of {total} of the processor",
    ])  # fmt: skip
    return report


def recurrence(options: dict[str, Any], a: jax.Array, h: jax.Array, xs: jax.Array) -> jax.Array:
    """A cheap loop: (n,), (n,), (steps,) float32 to a scalar."""

    def body(h: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        return h * a + x * (1 - h * h) * 0.01, None

    return (rp.scan(body, h, xs, **options)[0] ** 2).sum()


def run_length(options: Options) -> Report:
    """Compile loops of growing length under each schedule; run the longest."""
    size, lengths = (64, (30, 200)) if options.quick else (16384, (100, 1000, 10_000, 100_000, 1_000_000))
    most = {"plain": 10_000, "sqrt": 100_000}
    report = Report("loops_length", _LENGTH_INTRO, _LENGTH_COLUMNS, options.results)
    points: dict[str, list[tuple[int, float]]] = {}
    a, h = jnp.full(size, 0.99), jnp.full(size, 0.1)
    for schedule in ("plain", "sqrt", "log", "binomial"):
        for length in lengths:
            if length > most.get(schedule, length):
                continue
            slots = round(2 * math.log2(length))
            words = {"schedule": schedule} | ({"slots": slots} if schedule == "binomial" else {})
            xs = jnp.full(length, 0.5)
            began = time.perf_counter()
            step = jax.jit(jax.grad(partial(recurrence, words), (0, 1, 2))).lower(a, h, xs).compile()
            compiled_seconds = time.perf_counter() - began
            carries = temporaries(step, 4 * size)
            points.setdefault(schedule, []).append((length, carries))
            seconds, count = "-", "-"
            if schedule == "binomial" and length == lengths[-1]:
                began = time.perf_counter()
                found = jax.block_until_ready(step(a, h, xs))
                seconds, count = f"{time.perf_counter() - began:.1f}", str(advances(length, slots) + length)
                assert all(bool(jnp.isfinite(g).all()) for g in found)
            shown = slots if schedule == "binomial" else "-"
            report.add(f"{length:,}", schedule, shown, f"{compiled_seconds:.1f}", f"{carries:.1f}", seconds, count)
    last = points["binomial"][-1]
    draw(points, options.results / "loops.png")
    report.finish([f"{last[0]:,} steps: {last[1]:.1f} carries of temporaries", "picture: `loops.png`"])
    return report


def draw(points: dict[str, list[tuple[int, float]]], path: Path) -> None:
    """Draw memory against length: all schedules, and the two that grow with the logarithm by themselves."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for schedule, line in points.items():
        left.loglog(*zip(*line, strict=True), marker="o", label=schedule)
        if schedule in ("log", "binomial"):
            right.semilogx(*zip(*line, strict=True), marker="o", label=schedule)
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.set(xlabel="steps", ylabel="temporaries (carries)")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def run(options: Options) -> Report:
    """Run both; write and return the first table."""
    report = run_rnn(options)
    run_length(options)
    return report
