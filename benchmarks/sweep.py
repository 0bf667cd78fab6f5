"""Our plans of fifty small models against every strategy by name, and against ``jax.checkpoint`` on each block.

In: thirty convolutional nets, twenty stacks of blocks with normalisations and dropout. Out: ``results/sweep.md``.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.authors.record import f32
from benchmarks.authors_remat import our_step, their_step
from benchmarks.common import Options, Planned, Report, Session, mb, percent
from benchmarks.models import Model
from remat_plan.planning.strategies.registry import lookup
from remat_plan.search.candidates import Request
from remat_plan.search.driver import MOST_COMPILES
from remat_plan.small.budget import BudgetError

Function = Callable[..., Any]
Wrap = Callable[[Function], Function]

_NAMES = ("memory", "each_block", "dots", "dots_no_batch", "log", "nothing")
_SCALARS_BYTES = 1000
_BEHIND = 0.01
_HEADS = "model|plain MB|least MB|of a name MB|name|compiles", "hand MB|our MB|hand FLOPs|our FLOPs|FLOPs %|compiles|is"
_COLUMNS = tuple("|".join(_HEADS).split("|"))
_INTRO = f"""The least peak that `auto` names against the least of the strategies {", ".join(f"`{n}`" for n in _NAMES)},
all compiled; and our plan at the compiled peak of `jax.checkpoint` on each block (and 1 kB, as in `hands`). FLOPs: of
the jaxpr of the gradient step without its dead code, over those of the plain step. Compiles: of the search for the
least, and for the hand's peak, the plain step among them. A row is behind where the least is above that of a name,
where ours at the hand's peak has over 1 % more FLOPs or is refused, or where a search compiled more than
{MOST_COMPILES} times."""


def _conv(x: jax.Array, w: jax.Array, stride: int = 1) -> jax.Array:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _means(x: jax.Array) -> jax.Array:
    return x.reshape(len(x), x.shape[1] // 2, 2, x.shape[2] // 2, 2, -1).mean((2, 4))


def _windows(x: jax.Array, start: float, reduce: Any, share: float) -> jax.Array:
    return lax.reduce_window(x, start, reduce, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") * share


_POOLS: Mapping[str, Function] = {
    "mean": _means,
    "avg": lambda x: _windows(x, 0.0, lax.add, 0.25),
    "max": lambda x: _windows(x, -jnp.inf, lax.max, 1.0),
    "stride": lambda x: x,
    "none": lambda x: x,
}


def _normal(x: jax.Array, axes: tuple[int, ...], mean: bool = True) -> jax.Array:
    x = x - x.mean(axes, keepdims=True) if mean else x
    return x * lax.rsqrt(jnp.mean(x * x, axes, keepdims=True) + 1e-5)


def _between(kind: str, x: jax.Array, scale: jax.Array) -> jax.Array:
    if kind == "batch norm":
        return jax.nn.relu(_normal(x, (0, 1, 2)) * scale)
    return jax.nn.gelu(x) if kind == "gelu" else jax.nn.relu(x)


def convolutional(pool: str, kind: str, layers: int, size: tuple[int, int, int]) -> Function:
    """Make a net of convolutions: from what is put around each block to the model."""
    batch, side, width = size

    def block(p: Any, x: jax.Array) -> jax.Array:
        return _POOLS[pool](_between(kind, _conv(x, p[0], 2 if pool == "stride" else 1), p[1]))

    def make(wrap: Wrap) -> Model:
        def loss(params: Any, x: jax.Array) -> jax.Array:
            for p in params:
                x = wrap(block)(p, x)
            return jnp.mean(x**2)

        inputs = (3, *(width for _ in range(layers - 1)))
        params = [(f32(3, 3, n, width), f32(width)) for n in inputs]
        name = f"{layers} convolutions, {kind}, pool {pool}"
        return Model(name, loss, params, f32(batch, side, side, 3), lambda _: loss, 1)

    return make


def _grouped(x: jax.Array) -> jax.Array:
    groups = x.reshape(len(x), -1, 8, x.shape[-1] // 8)
    return _normal(groups, (1, 3)).reshape(x.shape)


_NORMS: Mapping[str, Function] = {
    "layer norm": lambda x: _normal(x, (-1,)),
    "RMS norm": lambda x: _normal(x, (-1,), False),
    "group norm": _grouped,
    "no norm": lambda x: x,
}


def _perceptron(p: Any, x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ p[0]) @ p[1]


def _attention(p: Any, x: jax.Array) -> jax.Array:
    q, k, v = jnp.split((x @ p[0]).reshape(*x.shape[:2], 4, -1), 3, -1)
    scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5)
    return jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(x.shape) @ p[1]


def _filters(p: Any, x: jax.Array) -> jax.Array:
    return _conv(jax.nn.silu(_conv(x, p[0])), p[1])


_INNERS: Mapping[str, Function] = {"perceptron": _perceptron, "attention": _attention, "convolutions": _filters}


def residual(inner: str, norm: str, dropout: bool, size: tuple[int, int]) -> Function:
    """Make a stack of residual blocks: from what is put around each block to the model."""
    batch, width = size
    images = inner == "convolutions"
    shapes = {"perceptron": ((width, 4 * width), (4 * width, width)), "attention": ((width, 3 * width), (width, width))}
    kernels = shapes.get(inner, ((3, 3, width, width), (3, 3, width, width)))
    layers = 4

    def block(p: Any, x: jax.Array, key: jax.Array) -> jax.Array:
        h = _INNERS[inner](p[:2], _NORMS[norm](x) * p[2])
        kept = jax.random.bernoulli(key, 0.9, h.shape) if dropout else None
        return x + (h if kept is None else jnp.where(kept, h / 0.9, 0.0))

    def make(wrap: Wrap) -> Model:
        def loss(params: Any, inputs: Any) -> jax.Array:
            x, key = inputs
            for p, own in zip(params, jax.random.split(key, layers), strict=True):
                x = wrap(block)(p, x, own)
            return jnp.mean(x**2)

        params = [(*(f32(*shape) for shape in kernels), f32(width))] * layers
        x = f32(batch, 16, 16, width) if images else f32(batch, 64, width)
        name = f"{inner}, {norm}{', dropout' if dropout else ''}"
        return Model(name, loss, params, (x, jax.ShapeDtypeStruct((2,), jnp.uint32)), lambda _: loss, 1)

    return make


def models(quick: bool) -> list[Function]:
    """All of them, each as a function of what is put around its blocks."""
    image, row = ((4, 8, 8), (2, 8)) if quick else ((64, 32, 32), (8, 64))
    kinds = ("no norm", "batch norm", "gelu")
    nets = [functools.partial(convolutional, *what, image) for what in itertools.product(_POOLS, kinds, (2, 3))]
    norms = ("layer norm", "RMS norm", "group norm")
    stacks = [functools.partial(residual, *what, row) for what in itertools.product(_INNERS, norms, (False, True))]
    stacks += [functools.partial(residual, inner, "no norm", True, row) for inner in ("perceptron", "attention")]
    made = [make() for make in (*nets, *stacks)]
    return made[:: len(nets) - 1] if quick else made


@dataclass(frozen=True)
class _Search:
    """A plan for a budget, or the least peak where none fits; how often its search compiled."""

    planned: Planned | None
    least_bytes: int
    compiles: int

    @staticmethod
    def of(model: Model, budget_bytes: int) -> _Search:
        """Plan for a budget, as the first search of the program."""
        session = Session(model)
        planned, least = None, 0
        try:
            planned = session.plan(budget_bytes)
        except BudgetError as error:
            least = error.minimum_bytes
        return _Search(planned, least, session.judge.compiles)


def _of_names(session: Session) -> tuple[int, str]:
    """The least compiled peak of the strategies by name, and its name."""
    peaks = {}
    for name in _NAMES:
        plan = session.make_plan(None, Request(lookup(name), True, (0,), False, (), "replan"))
        peaks[name] = plan.compiled_peak_bytes or 0
    name = min(peaks, key=peaks.__getitem__)
    return peaks[name], name


def compare(make: Function) -> tuple[tuple[str, ...], str]:
    """A row of the table, and what it is behind in."""
    model = make(lambda f: f)
    session = Session(model)
    plain, theirs = their_step(model, session), their_step(make(jax.checkpoint), session)
    lowest, at_hand = _Search.of(model, 1), _Search.of(model, theirs.peak_bytes + _SCALARS_BYTES)
    of_name, name = _of_names(session)
    behind = ["refused above a name"] if lowest.least_bytes > of_name + _SCALARS_BYTES else []
    cells = [mb(plain.peak_bytes), mb(lowest.least_bytes), mb(of_name), name, lowest.compiles, mb(theirs.peak_bytes)]
    if at_hand.planned is None:
        cells += [f"least {mb(at_hand.least_bytes)}", f"{theirs.flops / plain.flops:.3f}", "", ""]
        behind.append(f"needs {percent(at_hand.least_bytes / theirs.peak_bytes - 1)} % more bytes than the hand")
    else:
        ours = our_step(at_hand.planned, session)
        more = ours.flops / theirs.flops - 1
        cells += [mb(ours.peak_bytes), *(f"{step.flops / plain.flops:.3f}" for step in (theirs, ours)), percent(more)]
        behind += [f"{percent(more)} % more FLOPs"] if more > _BEHIND else []
    most = max(lowest.compiles, at_hand.compiles)
    behind += [f"{most} compiles"] if most > MOST_COMPILES else []
    verdict = f"**behind**: {', '.join(behind)}" if behind else "not behind"
    return (model.name, *map(str, cells), str(at_hand.compiles), verdict), ", ".join(behind)


def run(options: Options) -> Report:
    """Measure all; write and return the table."""
    report = Report("sweep", _INTRO, _COLUMNS, options.results)
    behind = []
    for number, make in enumerate(models(options.quick), 1):
        cells, short = compare(make)
        behind += [f"{cells[0]} ({short})"] if short else []
        report.facts = [f"{number} models, {len(behind)} behind: {'; '.join(behind) or 'none'}"]
        report.add(*cells)
    report.finish(report.facts)
    return report
