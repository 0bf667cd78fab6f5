"""The longest sequence that one device trains: Llama 3 8B, each layer in ``jax.checkpoint`` against planned steps.

In: the shapes of Llama 3 8B in bfloat16, GPUs that are not here. Out: ``results/longest.md``, and what is in it as
``longest.json``: a row that is kept there is not made again. Nothing is run. Needs the extra ``cuda12``.

One sequence, a whole step: loss, gradients, plain gradient descent in place; no optimizer state, so that weights and
gradients, 32 GB, leave room on one device. Attention is JAX's (scores of all pairs of tokens), or a flash attention in
Pallas, whose kernels are compiled for the GPU that is named: it keeps none.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import remat_plan as rp
from benchmarks.authors import llama
from benchmarks.authors.record import rms_norm
from benchmarks.common import Options, Report, percent, versions
from benchmarks.kept import Kept
from remat_plan.results.steps import LargestSizes
from remat_plan.search.known import forget
from remat_plan.small.budget import format_bytes

TARGETS = ("gpu:h100", "gpu:h200")
WAYS = ("device alone", "with the host's memory")
_UNIT = 2048
_COLUMNS = tuple(
    "target|attention|planned|by hand, tokens|ours, tokens|factor|peak|on host|overhead %|compiles|minutes".split("|")
)
_INTRO = """The longest sequence whose compiled step fits in the device's memory less 5 % (`budget="device"`). By hand:
each layer in `jax.checkpoint`. Ours: `rp.largest` of the same step, any overhead allowed: predicted, over the step
without recomputation. Llama 3 8B in bfloat16, 32 scanned layers, a vocabulary of 128,256, one sequence, gradient
descent in place. Scores: `jax.nn.dot_product_attention` as XLA has it; flash: Pallas."""

Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


@dataclass(frozen=True)
class Row:
    """The longest sequences of one step on one device."""

    target: str
    attention: str
    way: str
    by_hand: int
    ours: int
    peak_bytes: int | None
    host_bytes: int
    overhead: float
    compiles: int
    seconds: float
    made: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells rows apart."""
        return self.target, self.attention, self.way

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        factor = f"{self.ours / self.by_hand:.1f}" if self.by_hand else ""
        told = format_bytes(self.peak_bytes) if self.peak_bytes else ""
        return (
            *(*self.key, str(self.by_hand), str(self.ours), factor, told, format_bytes(self.host_bytes)),
            *(percent(self.overhead), str(self.compiles), f"{self.seconds / 60:.0f}"),
        )


def scores(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attention by scores of all pairs of tokens, which XLA writes down."""
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="xla")


def flash(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attention in one kernel of Pallas, forward and backward."""
    with warnings.catch_warnings():  # it is to be had elsewhere too, says JAX
        warnings.simplefilter("ignore", DeprecationWarning)
        from jax.experimental.pallas.ops.gpu import attention
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    return attention.mha(q, k, v, segment_ids=None, causal=True, sm_scale=q.shape[-1] ** -0.5)


ATTENTIONS: dict[str, Attend] = {"scores": scores, "flash": flash}


def loss_of(c: llama.Config, attend: Attend) -> Callable[..., jax.Array]:
    """The mean loss of the next token, each layer in ``jax.checkpoint``; arguments: parameters, [B, S + 1] tokens."""

    def layer(x: jax.Array, p: Any) -> tuple[jax.Array, None]:
        positions = jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape[:2])
        h, own = rms_norm(p["before_attention"], x), p["attention"]
        q, k, v = (jnp.einsum("bsd,dhk->bshk", h, own[name]) for name in ("query", "key", "value"))
        mixed = attend(llama.rotate(q, positions, c.theta), llama.rotate(k, positions, c.theta), v)
        x = x + jnp.einsum("bshk,hkd->bsd", mixed, own["out"])
        h, own = rms_norm(p["before_mlp"], x), p["mlp"]
        return x + (jax.nn.silu(h @ own["wi_0"]) * (h @ own["wi_1"])) @ own["wo"], None

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x = params["embedding"][tokens[:, :-1]]
        x, _ = lax.scan(jax.checkpoint(layer, prevent_cse=False), x, params["layers"])
        logits = (rms_norm(params["norm"], x) @ params["head"]).astype(jnp.float32)
        picked = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)

    return loss


def parameters(c: llama.Config) -> Any:
    """Shapes of the parameters, in the dtype of the configuration, layers along the first axis."""
    made = llama.parameters(replace(c, scan_axis=0))
    return jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, c.dtype), made)


def train_step(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Gradient descent by a marked loss."""

    def step(params: Any, tokens: jax.Array) -> tuple[Any, jax.Array]:
        value, gradients = jax.value_and_grad(rp.mark(loss))(params, tokens)
        return jax.tree.map(lambda p, g: p - (1e-4 * g).astype(p.dtype), params, gradients), value

    return step


def measure(target: str, attention: str, way: str, quick: bool) -> Row:
    """The longest sequences of one step."""
    c = llama.CONFIGS["tiny" if quick else "full"]
    step, params = train_step(loss_of(c, ATTENTIONS[attention])), parameters(c)
    unit, budget = (64, "4MB") if quick else (_UNIT, "device")

    def make_args(length: int) -> tuple[Any, jax.ShapeDtypeStruct]:
        return params, jax.ShapeDtypeStruct((1, length + 1), jnp.int32)

    forget()
    started = time.perf_counter()
    search = partial(rp.largest, step, make_args, budget=budget, dimension="sequence", multiple_of=unit, overheads=())
    found: LargestSizes = search(donate_argnums=0, target=target, offload=way == WAYS[1])
    best = found.rows[-1]
    figures = found.plain, best.size, best.peak_bytes, best.host_bytes, best.overhead, found.compiles
    return Row(target, attention, way, *figures, time.perf_counter() - started, versions())


def rows_of(options: Options) -> Iterator[tuple[str, str, str]]:
    """What is measured: target, attention, way."""
    for target in options.targets or (("cpu",) if options.quick else TARGETS):
        for attention in options.choose(("scores",) if options.quick else tuple(ATTENTIONS)):
            yield from ((target, attention, way) for way in (WAYS[:1] if options.quick else WAYS))


def run(options: Options) -> Report:
    """Make the table."""
    report = Report("longest", _INTRO, _COLUMNS, options.results)
    kept = Kept(options.results / "longest.json", Row, lambda row: row.key)
    for key in rows_of(options):
        row = kept.find(key) or kept.put(measure(*key, options.quick))
        print(*row.cells(), sep=" | ", flush=True)
    for row in sorted(kept.read(), key=lambda row: row.key):
        report.add(*row.cells())
    longer = [f"{' '.join(row.key)} {row.ours / max(row.by_hand, 1):.1f}" for row in kept.read()]
    report.finish([f"times as long as by hand: {', '.join(longer)}"])
    return report
