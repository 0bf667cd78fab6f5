"""Our plans against ``jax.checkpoint`` written by hand, on one block in every structure.

In: MLP blocks, unrolled and in scans, scans of scans, scans one after another, of an encoder and a decoder, in
conditionals; blocks of other kinds, unrolled. Out: ``results/hands.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.authors.record import f32
from benchmarks.authors_remat import COLUMNS, FROM_PLAIN, Row, compete, facts, their_step
from benchmarks.common import Options, Report, Session
from benchmarks.models import Model

LAYERS = 8
_SCALARS_BYTES = 1000
Function = Callable[..., Any]
Wrap = Callable[[Function], Function]
Make = Callable[[Wrap, Wrap], Function]
_SIZES = {"small": (256, 1024, 8192), "tiny": (32, 128, 1024)}
_COLUMNS = ("structure", *COLUMNS[1:])
_INTRO = """Eight blocks of one MLP in every structure, and of three other kinds unrolled, with `jax.checkpoint` where a
person would put it: around each block (`block`: saving nothing, `dots`: saving products), around what the structure has
outside the blocks (`around`), around both. Our budget is the compiled peak of that gradient step and 1 kB (XLA gives a
scalar of 4 bytes 64, and which of them live at the same time is up to its order); we plan the loss without checkpoints.
MB: compiled peaks, arguments and gradients included. GFLOP: of the jaxpr of the gradient step without its dead code,
every loop as often as it runs and of a conditional the branch with the most. FLOPs %, seconds % (predicted): ours above
theirs. Measured: the same by the clock, where ours has more FLOPs, as in `authors`. Overhead: predicted, against the
step without checkpoints. A row is behind where ours needs more bytes or over 0.1 % more FLOPs."""


def block(x: jax.Array, w: tuple[jax.Array, jax.Array]) -> jax.Array:
    """[R, D] -> [R, D]: up, root-mean-square norm, gelu, down, residual."""
    h = x @ w[0]
    h = jax.nn.gelu(h / (1e-6 + jnp.sqrt(jnp.mean(h * h, -1, keepdims=True))))
    return x + h @ w[1]


def activated(x: jax.Array, w: tuple[jax.Array, jax.Array]) -> jax.Array:
    """[R, D] -> [R, D]: up, gelu, down, residual."""
    return x + jax.nn.gelu(x @ w[0]) @ w[1]


def mixed(x: jax.Array, w: tuple[jax.Array, jax.Array]) -> jax.Array:
    """[R, D] -> [R, D]: layer norm before products in bfloat16, residuals in float32."""
    up, down = (a.astype(jnp.bfloat16) for a in w)
    normed = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)
    return x + jax.nn.gelu(normed.astype(jnp.bfloat16) @ up) @ down


def convolved(x: jax.Array, w: tuple[jax.Array, jax.Array]) -> jax.Array:
    """[R, D] -> [R, D]: group norm, swish, convolution of 2 x 2, twice, on images of 8 x 8."""
    x = x.reshape(-1, 8, 8, x.shape[-1])
    for kernel in w:
        groups = x.reshape(*x.shape[:3], 8, -1)
        centred = groups - groups.mean((1, 2, 4), keepdims=True)
        normed = centred * lax.rsqrt(jnp.mean(centred**2, (1, 2, 4), keepdims=True) + 1e-6)
        kernel = kernel.reshape(2, 2, x.shape[-1], x.shape[-1])
        axes = ("NHWC", "HWIO", "NHWC")
        x = lax.conv_general_dilated(
            jax.nn.swish(normed.reshape(x.shape)), kernel, (1, 1), "SAME", dimension_numbers=axes
        )
    return x.reshape(-1, x.shape[-1])


def _steps(step: Function, x: Any, rows: Any) -> Any:
    return lax.scan(lambda x, row: (step(x, row), None), x, rows)[0]


def _loss(run: Function) -> Function:
    return lambda w, x: jnp.sum(run(w, x) ** 2)


def _grouped(w: Any, *sizes: int) -> Any:
    return jax.tree.map(lambda a: a.reshape(*sizes, -1, *a.shape[1:]), w)


def _halves(w: Any) -> list[Any]:
    return [jax.tree.map(lambda a, i=i: a[i], _grouped(w, 2)) for i in range(2)]


def _unrolled(block: Function) -> Make:
    def make(inner: Wrap, outer: Wrap) -> Function:
        def run(w: Any, x: jax.Array) -> jax.Array:
            pair = outer(lambda x, a, b: inner(block)(inner(block)(x, a), b))
            rows = [jax.tree.map(lambda a, i=i: a[i], w) for i in range(LAYERS)]
            for a, b in zip(rows[::2], rows[1::2], strict=True):
                x = pair(x, a, b)
            return x

        return run

    return make


def _scanned(inner: Wrap, outer: Wrap) -> Function:
    return lambda w, x: outer(lambda x, w: _steps(inner(block), x, w))(x, w)


def _scan_of_scans(inner: Wrap, outer: Wrap) -> Function:
    return lambda w, x: _steps(outer(lambda x, w: _steps(inner(block), x, w)), x, _grouped(w, 4))


def _three_deep(inner: Wrap, outer: Wrap) -> Function:
    def run(w: Any, x: jax.Array) -> jax.Array:
        return _steps(outer(lambda x, w: _steps(lambda x, w: _steps(inner(block), x, w), x, w)), x, _grouped(w, 2, 2))

    return run


def _two_scans(inner: Wrap, outer: Wrap) -> Function:
    def run(w: Any, x: jax.Array) -> jax.Array:
        first, second = _halves(w)
        half = outer(lambda x, w: _steps(inner(block), x, w))
        return half(jnp.tanh(half(x, first)), second)

    return run


def _scan_of_two_scans(inner: Wrap, outer: Wrap) -> Function:
    def step(x: jax.Array, w: Any) -> jax.Array:
        first, second = _halves(w)
        return _steps(inner(block), jnp.tanh(_steps(inner(block), x, first)), second)

    return lambda w, x: _steps(outer(step), x, _grouped(w, 2))


def _encoder_decoder(inner: Wrap, outer: Wrap) -> Function:
    def run(w: Any, x: jax.Array) -> jax.Array:
        first, second = _halves(w)
        code = outer(lambda x, w: _steps(inner(block), x, w))(x, first)
        return _steps(inner(lambda y, w: block(y + jnp.tanh(code), w)), x * 0.5, second)

    return run


def _skips(inner: Wrap, outer: Wrap) -> Function:
    def down(x: jax.Array, w: Any) -> tuple[jax.Array, jax.Array]:
        return lax.scan(lambda x, w: (inner(block)(x, w), x), x, w)

    def run(w: Any, x: jax.Array) -> jax.Array:
        first, second = _halves(w)
        x, skips = outer(down)(x, first)
        return _steps(inner(lambda x, row: block(x + row[0], row[1])), x, (skips[::-1], second))

    return run


def _branch_in_scan(inner: Wrap, outer: Wrap) -> Function:
    def step(x: jax.Array, w: Any) -> jax.Array:
        return lax.cond(jnp.sum(w[0]) > 0, inner(block), inner(lambda x, w: block(x, (-w[0], w[1]))), x, w)

    return lambda w, x: _steps(outer(step), x, w)


def _scan_in_branch(inner: Wrap, outer: Wrap) -> Function:
    def run(w: Any, x: jax.Array) -> jax.Array:
        steps = [outer(lambda x, w, sign=sign: _steps(inner(block), sign * x, w)) for sign in (1.0, -1.0)]
        return lax.cond(jnp.sum(x) > 0, *steps, x, w)

    return run


STRUCTURES: Mapping[str, Make] = {
    "unrolled": _unrolled(block),
    "gelu alone": _unrolled(activated),
    "mixed precision": _unrolled(mixed),
    "group norm, convolutions": _unrolled(convolved),
    "scan": _scanned,
    "scan of scans": _scan_of_scans,
    "three deep": _three_deep,
    "two scans": _two_scans,
    "scan of two scans": _scan_of_two_scans,
    "encoder, decoder": _encoder_decoder,
    "skips": _skips,
    "branch in scan": _branch_in_scan,
    "scan in branch": _scan_in_branch,
}


def _nothing(f: Function) -> Function:
    return f


def _dots(f: Function) -> Function:
    return jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable)


HANDS: Mapping[str, tuple[Wrap, Wrap]] = {
    "block": (jax.checkpoint, _nothing),
    "dots": (_dots, _nothing),
    "around": (_nothing, jax.checkpoint),
    "block and around": (jax.checkpoint, jax.checkpoint),
    "dots and around": (_dots, jax.checkpoint),
}
"""Per name, what is put around each block, and around what is outside the blocks."""


def model(structure: str, size: str, hand: tuple[Wrap, Wrap] = (_nothing, _nothing)) -> Model:
    """The loss of a structure, checkpointed by hand or not."""
    width, hidden, rows = _SIZES[size]
    params = f32(LAYERS, width, hidden), f32(LAYERS, hidden, width)
    loss = _loss(STRUCTURES[structure](*hand))
    return Model(structure, loss, params, f32(rows, width), lambda wrap: loss, 1)


def compare(structure: str, size: str, hands: Sequence[str] = tuple(HANDS)) -> list[Row]:
    """Our plans at the memory of hands."""
    plain = Session(model(structure, size))
    rows = []
    for hand in hands:
        written = model(structure, size, HANDS[hand])
        theirs = their_step(written, plain)
        theirs = replace(theirs, peak_bytes=theirs.peak_bytes + _SCALARS_BYTES)
        rows.append(compete(plain, written, theirs, structure, size, hand, FROM_PLAIN))
    return rows


def run(options: Options) -> Report:
    """Measure all; write and return the table."""
    size = "tiny" if options.quick else "small"
    report = Report("hands", _INTRO, _COLUMNS, options.results)
    rows: list[Row] = []
    for structure in STRUCTURES:
        for row in compare(structure, size):
            rows.append(row)
            report.facts = facts(rows)
            report.add(*row.cells())
    report.finish(facts(rows))
    return report
