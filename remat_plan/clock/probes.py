"""Small programs that a device is measured with: one or more for each class of work, and for memory.

In: how large they are to be. Out: ``Probe``s; ``rate_key`` tells the class of work that one is of, as the evaluator
will ask for it.

Every probe is one equation that matters. Its class is that of its equation with the most FLOPs, so a class and its rate
cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from remat_plan.cost.rules import eqn_flops, jaxpr_flops
from remat_plan.cost.work import work_class

FUNCTIONS: tuple[Callable[[Any], Any], ...] = (
    *(jnp.exp, jnp.log, jnp.tanh, lax.logistic, lax.erf, lax.rsqrt, jnp.sqrt, jnp.sin),
    *(lambda x: 1 / x, lambda x: x**1.7),
)
"""Functions of one element, each a class of its own."""

CONVOLUTION = ("NHWC", "HWIO", "NHWC")


@dataclass(frozen=True, slots=True)
class Probe:
    """A program and the shapes and types of its arguments."""

    fn: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: Any = jnp.float32

    def rate_key(self) -> tuple[str, float]:
        """The class of work that this is of, and its FLOPs."""
        structs = [jax.ShapeDtypeStruct(shape, self.dtype) for shape in self.shapes]
        jaxpr = jax.make_jaxpr(self.fn)(*structs)
        eqn = max(jaxpr.jaxpr.eqns, key=eqn_flops)
        return work_class(eqn), jaxpr_flops(jaxpr)


def probes(scale: int) -> Iterator[Probe]:
    """All probes of work; ``scale`` multiplies the sizes that a CPU takes about ten milliseconds for."""
    n = 512 * scale
    for dtype in (jnp.float32, jnp.bfloat16):
        yield Probe(jnp.matmul, ((2 * n, n), (n, n)), dtype)
        yield Probe(jnp.matmul, ((16 * n, 64), (64, n)), dtype)
        yield Probe(jnp.matmul, ((16 * scale, 256, 64), (16 * scale, 64, 256)), dtype)
        yield from convolutions(scale, dtype)
    yield from elements(scale)


def convolutions(scale: int, dtype: Any) -> Iterator[Probe]:
    """Convolutions of a residual network: forward, of one element, strided gradient, gradient of the kernel."""
    image, kernel = (8 * scale, 32, 32, 64), (3, 3, 64, 64)
    half = (8 * scale, 16, 16, 64)

    def window(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=CONVOLUTION)

    def dilated(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, (1, 1), ((1, 2), (1, 2)), lhs_dilation=(2, 2), dimension_numbers=CONVOLUTION
        )

    def kernel_gradient(x: Any, dy: Any) -> Any:
        return lax.conv_general_dilated(x, dy, (1, 1), ((1, 1), (1, 1)), dimension_numbers=("CHWN", "IHWO", "HWNC"))

    def pointwise_gradient(x: Any, dy: Any) -> Any:
        return lax.conv_general_dilated(x, dy, (1, 1), "VALID", dimension_numbers=("CHWN", "IHWO", "HWNC"))

    yield Probe(window, (image, kernel), dtype)
    yield Probe(window, ((8 * scale, 32, 32, 256), (1, 1, 256, 64)), dtype)
    yield Probe(dilated, (half, kernel), dtype)
    yield Probe(kernel_gradient, (image, image), dtype)
    yield Probe(pointwise_gradient, (image, image), dtype)
    yield Probe(window, ((8 * scale, 2, 2, 256), (3, 3, 256, 256)), dtype)


def elements(scale: int) -> Iterator[Probe]:
    """Functions of one element, and sums: of arrays that the cache of a CPU holds."""
    shape = (256 * scale, 1024)
    for fn in FUNCTIONS:
        yield Probe(fn, (shape,))
    yield Probe(many_additions, (shape,))
    yield Probe(lambda x: jnp.sum(x, axis=1), (shape,))
    yield Probe(lambda x: jnp.sum(x, axis=0), (shape,))


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
