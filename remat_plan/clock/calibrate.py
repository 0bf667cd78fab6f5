"""The rates of an attached device, measured: what ``cost="measured"`` goes by.

In: a ``Target`` that is attached, its ``Hardware`` of the table. Out: ``Hardware`` with rates by class of work.

Each rate is that of the fastest of several calls of a small program: what else the machine does only makes calls
slower. On an idle machine of two cores it takes about 20 seconds. A program is one equation that matters, and its class
is that of its equation with the most FLOPs, as the evaluator will ask for it, so a class and its rate cannot drift
apart.

Fresh memory is the difference between writing an array over itself and writing it to memory that the program is
given anew. XLA:CPU takes the memory of a program's temporaries from the system in each run and gives it back, so that
every page is mapped and zeroed again, on first touch. Below 32 MiB the C library keeps it.

Limits: rates are of the shapes of the programs; a machine that is busy while it is measured is measured as a slow one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import SingleDeviceSharding

from remat_plan.cost.hardware import Hardware
from remat_plan.cost.rules import eqn_flops, jaxpr_flops
from remat_plan.cost.work import ELEMENTWISE, REORDERED, SHALLOW, SMALL, with_type, work_class
from remat_plan.verify.compile import compiler_options
from remat_plan.verify.place import HOST
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

FUNCTIONS: tuple[Callable[[Any], Any], ...] = (
    *(jnp.exp, jnp.log, jnp.tanh, lax.logistic, lax.erf, lax.rsqrt, jnp.sqrt, jnp.sin),
    *(lambda x: 1 / x, lambda x: x**1.7),
)
"""Functions of one element, each a class of its own."""

CONVOLUTION = ("NHWC", "HWIO", "NHWC")


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
        link_bytes_per_second=link_rate(target) if table.link_bytes_per_second else 0.0,
        measured=True,
    )
    rates: dict[str, float] = {}
    for probe in probes(scale):
        work, flops = probe.rate_key()
        say(f"measuring {work}")
        rates[work] = flops / max(seconds(probe.fn, *probe.shapes, dtype=probe.dtype) - call, 1e-9)
    vector_flops, matrix_flops = rates[f"{ELEMENTWISE} float32"], rates["product large float32"]
    return replace(hardware, rates=rates, vector_flops=vector_flops, matrix_flops=matrix_flops)


def link_rate(target: Target) -> float:
    """Bytes a second between the memory of a device and its host's, the slower of the two ways."""
    here = SingleDeviceSharding(target.device)
    there = here.with_memory_kind(HOST)
    x = jax.device_put(jnp.ones(LARGE_BYTES // 4), here)
    out, back = [], []
    until = time.perf_counter() + _PROBE_SECONDS
    while len(out) < _LEAST_CALLS or time.perf_counter() < until:
        begun = time.perf_counter()
        moved = jax.block_until_ready(jax.device_put(x, there))
        half = time.perf_counter()
        x = jax.block_until_ready(jax.device_put(moved, here))
        out.append(half - begun)
        back.append(time.perf_counter() - half)
    return LARGE_BYTES / max(min(out), min(back))


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


@dataclass(frozen=True, slots=True)
class Probe:
    """A program, the shapes and types of its arguments, the class of its ``work`` where its equations do not tell."""

    fn: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: Any = jnp.float32
    work: str = ""

    def rate_key(self) -> tuple[str, float]:
        """The class of work that this is of, and its FLOPs."""
        structs = [jax.ShapeDtypeStruct(shape, self.dtype) for shape in self.shapes]
        jaxpr = jax.make_jaxpr(self.fn)(*structs)
        if self.work:
            return with_type(self.work, self.dtype.dtype), jaxpr_flops(jaxpr)
        eqn = max(jaxpr.jaxpr.eqns, key=eqn_flops)
        return work_class(eqn), jaxpr_flops(jaxpr)


def probes(scale: int) -> Iterator[Probe]:
    """All probes of work; ``scale`` multiplies the sizes that a CPU takes about ten milliseconds for."""
    n = 512 * scale
    for dtype in (jnp.float32, jnp.bfloat16):
        yield Probe(jnp.matmul, ((2 * n, n), (n, n)), dtype)
        yield Probe(jnp.matmul, ((16 * n, 64), (64, n)), dtype)
        yield Probe(one_by_one, ((32, 128 * scale, 128), (32, 128, 512)), dtype, SMALL)
        yield Probe(one_by_one, ((32, 128 * scale, 32), (32, 32, 512)), dtype, SHALLOW)
        yield Probe(jnp.matmul, ((16 * scale, 256, 64), (16 * scale, 64, 256)), dtype)
        yield from convolutions(scale, dtype)
    yield from elements(scale)


def convolutions(scale: int, dtype: Any) -> Iterator[Probe]:
    """Convolutions of a residual network: forward, of one element, strided gradient, gradient of the kernel."""
    image, kernel = (8 * scale, 32, 32, 64), (3, 3, 64, 64)
    half = (8 * scale, 16, 16, 64)

    convolution = partial(lax.conv_general_dilated, window_strides=(1, 1))
    window = partial(convolution, padding="SAME", dimension_numbers=CONVOLUTION)
    dilated = partial(window, padding=((1, 2), (1, 2)), lhs_dilation=(2, 2))
    gradient = partial(convolution, dimension_numbers=("CHWN", "IHWO", "HWNC"))
    yield Probe(window, (image, kernel), dtype)
    yield Probe(window, ((8 * scale, 32, 32, 256), (1, 1, 256, 64)), dtype)
    yield Probe(dilated, (half, kernel), dtype)
    yield Probe(partial(gradient, padding=((1, 1), (1, 1))), (image, image), dtype)
    yield Probe(partial(gradient, padding="VALID"), (image, image), dtype)
    yield Probe(window, ((8 * scale, 2, 2, 256), (3, 3, 256, 256)), dtype)

    def looped(images: Any, cotangents: Any) -> Any:
        return lax.map(lambda pair: gradient(*pair, padding=((1, 1), (1, 1))), (images, cotangents))

    yield Probe(looped, ((2, 8 * scale, 16, 16, 16),) * 2, dtype, REORDERED)


def elements(scale: int) -> Iterator[Probe]:
    """Functions of one element, and sums: of arrays that the cache of a CPU holds."""
    shape = (256 * scale, 1024)
    for fn in FUNCTIONS:
        yield Probe(fn, (shape,))
    yield Probe(many_additions, (shape,))
    yield Probe(lambda x: jnp.sum(x, axis=1), (shape,))
    yield Probe(lambda x: jnp.sum(x, axis=0), (shape,))


def one_by_one(left: Any, right: Any) -> Any:
    """Products one after another, added up, as the steps of a recurrent network have them."""
    first = jnp.zeros((left.shape[1], right.shape[2]), left.dtype)
    return lax.scan(lambda total, pair: (total + pair[0] @ pair[1], None), first, (left, right))[0]


def many_additions(x: Any) -> Any:
    """A kernel that computes much more than it reads."""
    for i in range(16):
        x = x * (1 + 1e-3 * i) + x
    return x


def turned(x: Any, *others: Any) -> Any:
    """Compute with operands, and write the result in another order."""
    x = 1.01 * x
    for other in others:
        x = 1.01 * x + other
    return x.T


def chain(count: int) -> Callable[[Any], Any]:
    """So many kernels that do next to nothing, one after another: barriers keep them apart."""

    def run(x: Any) -> Any:
        for _ in range(count):
            x = lax.optimization_barrier(x + 1)
        return x

    return run


def loop(count: int) -> Callable[[Any], Any]:
    """A loop of so many steps that do next to nothing."""

    def run(x: Any) -> Any:
        return lax.fori_loop(0, count, lambda _, x: x + 1, x)

    return run


def add_one(x: Any) -> Any:
    """Read and write all of an array."""
    return x + 1
