"""The rates of an attached device, measured: what ``cost="measured"`` goes by.

In: a ``Target`` that is attached, its ``Hardware`` of the table. Out: ``Hardware`` with rates by class of work.

Each rate is that of the fastest of several calls: what else the machine does only makes calls slower. On an idle
machine of two cores it takes about 20 seconds.

Fresh memory is the difference between writing an array over itself and writing it to memory that the program is
given anew. XLA:CPU takes the memory of a program's temporaries from the system in each run and gives it back, so that
every page is mapped and zeroed again, on first touch. Below 32 MiB the C library keeps it.

Limits: rates are of the shapes of ``probes``; a machine that is busy while it is measured is measured as a slow one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from remat_plan.clock.probes import add_one, chain, loop, probes, turned
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.work import ELEMENTWISE
from remat_plan.verify.compile import compiler_options
from remat_plan.verify.targets import Target

LARGE_BYTES = 128 << 20
"""An array that no cache holds, for the bandwidth of memory."""

CACHED_BYTES = 1 << 20
"""An array that every cache holds; kernels that move up to four times as much go by the bandwidth of the cache."""

FRESH_LEAST_BYTES = 32 << 20
"""glibc gives memory from this size on back to the system at once (M_MMAP_THRESHOLD grows no further)."""

_CHAIN, _LOOP = 64, 1000
"""Kernels in a row, and steps of a loop, that are long enough to tell one of them from the call."""

_OPERANDS = 8
"""Operands of a kernel that turns what it computes with them, about as many as in the gradient of a layer."""

_PROBE_SECONDS = 0.15
"""Each probe is called for about so long."""

_LEAST_CALLS = 3


def calibrate(target: Target, table: Hardware, say: Callable[[str], None] = lambda stage: None) -> Hardware:
    """Measure the rates of an attached device; those of the ``table`` stand for work that is not measured."""
    scale = 1 if target.platform == "cpu" else 8
    seconds = partial(_fastest, target)
    say("measuring kernels and loops")
    call, many = seconds(chain(1), (8,)), seconds(chain(_CHAIN), (8,))
    kernel = max(many - call, 0.0) / (_CHAIN - 1)
    step = max(seconds(loop(_LOOP), (8,)) - call, 0.0) / _LOOP
    say("measuring memory")
    large, small = LARGE_BYTES * min(scale, 4) // 4, CACHED_BYTES // 4
    over = seconds(add_one, (large,), donate=True)
    fresh = seconds(add_one, (large,))
    cached = seconds(add_one, (small,), donate=True)
    shape = 1024 * scale, 768
    alone, among = seconds(turned, shape), seconds(turned, *[shape] * (1 + _OPERANDS))
    one = 4 * shape[0] * shape[1]
    hardware = replace(
        table,
        step_seconds=kernel,
        loop_seconds=max(step - kernel, 0.0),
        bytes_per_second=8 * large / over,
        cache_bytes=4 * CACHED_BYTES,
        cache_bytes_per_second=8 * small / max(cached - call, 1e-9),
        turned_bytes_per_second=2 * one / alone,
        turned_operand_bytes_per_second=(2 + _OPERANDS) * one / among,
        fresh_seconds_per_byte=max(fresh - over, 0.0) / (4 * large),
        fresh_least_bytes=FRESH_LEAST_BYTES,
        measured=True,
    )
    rates: dict[str, float] = {}
    for probe in probes(scale):
        work, flops = probe.rate_key()
        say(f"measuring {work}")
        rates[work] = flops / max(seconds(probe.fn, *probe.shapes, dtype=probe.dtype) - call, 1e-9)
    return replace(
        hardware,
        rates=rates,
        vector_flops=rates[f"{ELEMENTWISE} float32"],
        matrix_flops=rates["product large float32"],
    )


def _fastest(
    target: Target, fn: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = jnp.float32, donate: bool = False
) -> float:
    """Seconds of the fastest call of a program on numbers around one, for which no function is special."""
    key = jax.random.key(0)
    made = [1 + 0.1 * jax.random.normal(key, shape).astype(dtype) for shape in shapes]
    given = [jax.device_put(x, target.device) for x in made]
    jitted = jax.jit(fn, donate_argnums=0 if donate else (), compiler_options=compiler_options(target) or None)
    first = jax.block_until_ready(jitted(*given))
    given = [first] if donate else given
    del first
    found: list[float] = []
    until = time.perf_counter() + _PROBE_SECONDS
    while len(found) < _LEAST_CALLS or time.perf_counter() < until:
        begun = time.perf_counter()
        result = jax.block_until_ready(jitted(*given))
        found.append(time.perf_counter() - begun)
        if donate:
            given = [result]
        del result
    return min(found)
