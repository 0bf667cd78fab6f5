"""Every strategy on one small network, written in four ways: unrolled, scanned, in a nested scan, in a conditional.

In: MLP blocks and transformer blocks, the same computation in every structure. Out: ``results/structures.md``.

The conditional is in the scan, and both of its branches run the block (the second with signs turned, so that they are
not one): what is saved and what is recomputed should be that of the scan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.authors.record import causal_attention, f32, layer_norm, norm_params, stacked
from benchmarks.common import Options, Report, Session, mb, percent
from benchmarks.models import Model
from benchmarks.strategies import plan_by
from remat_plan.planning.strategies.records import NEEDED, Strategy
from remat_plan.report.strategies import Strategies
from remat_plan.small.budget import BudgetError

GROUPS = 4
_BUDGET_LIKE = "memory"
_COLUMNS = tuple("block|structure|strategy|budget MB|predicted MB|compiled MB|% of plain|GFLOP|FLOPs %".split("|"))
_INTRO = """One network of equal blocks, its layers unrolled, scanned, in a scan of scans, and in a scan whose body
chooses between two versions of the block with `lax.cond`. `plain` is the step without recomputation. Strategies that
need a budget get the compiled peak of `memory`. Predicted MB and GFLOP are the evaluator's (GFLOP with trip counts; of
a conditional the branch with the most), compiled MB the compiler's; arguments and gradients are included. FLOPs %: of
the plain step of the same structure."""

Block = Callable[[Any, jax.Array], jax.Array]


@dataclass(frozen=True)
class Config:
    """Sizes: layers (a multiple of ``GROUPS``), width, rows of the MLP, batch and sequence of the transformer."""

    layers: int
    width: int
    rows: int
    batch: int
    sequence: int


SMALL, TINY = Config(16, 128, 8192, 8, 128), Config(8, 16, 256, 2, 16)


def _mlp(p: Any, x: jax.Array) -> jax.Array:
    return x + jax.nn.gelu(layer_norm(p["norm"], x) @ p["up"]) @ p["down"]


def _transformer(p: Any, x: jax.Array) -> jax.Array:
    h = layer_norm(p["norm_attention"], x)
    b, s, d = x.shape
    q, k, v = (t.reshape(b, s, 2, d // 2) for t in jnp.split(h @ p["qkv"], 3, -1))
    x = x + causal_attention(q, k, v).reshape(b, s, d) @ p["out"]
    return _mlp(p, x)


def _unrolled(block: Block, params: Any, x: jax.Array) -> jax.Array:
    for i in range(jax.tree.leaves(params)[0].shape[0]):
        x = block(jax.tree.map(lambda p, i=i: p[i], params), x)
    return x


def _scanned(block: Block, params: Any, x: jax.Array) -> jax.Array:
    return lax.scan(lambda x, p: (block(p, x), None), x, params)[0]


def _nested(block: Block, params: Any, x: jax.Array) -> jax.Array:
    groups = jax.tree.map(lambda p: p.reshape(GROUPS, -1, *p.shape[1:]), params)
    return _scanned(partial(_scanned, block), groups, x)


def _cond_in_scan(block: Block, params: Any, x: jax.Array) -> jax.Array:
    def either(numbered: Any, x: jax.Array) -> jax.Array:
        number, p = numbered
        return lax.cond(number % 2 == 0, block, lambda p, x: -block(p, -x), p, x)

    return _scanned(either, (jnp.arange(jax.tree.leaves(params)[0].shape[0]), params), x)


STRUCTURES: dict[str, Callable[[Block, Any, jax.Array], jax.Array]] = {
    "unrolled": _unrolled,
    "scanned": _scanned,
    "nested scan": _nested,
    "cond in scan": _cond_in_scan,
}


def _params(c: Config, attends: bool) -> Any:
    d = c.width
    mlp = {"norm": norm_params(d), "up": f32(d, 4 * d), "down": f32(4 * d, d)}
    attention = {"norm_attention": norm_params(d), "qkv": f32(d, 3 * d), "out": f32(d, d)}
    return stacked(c.layers, {**mlp, **attention} if attends else mlp)


def make(block: str, structure: str, c: Config) -> Model:
    """The network of a block (``mlp`` or ``transformer``) in a structure."""
    attends = block == "transformer"
    fn, arrange = (_transformer if attends else _mlp), STRUCTURES[structure]

    def loss(params: Any, batch: Any) -> jax.Array:
        return jnp.mean(jnp.square(arrange(fn, params, batch)))

    batch = f32(c.batch, c.sequence, c.width) if attends else f32(c.rows, c.width)
    return Model(f"{block}, {structure}", loss, _params(c, attends), batch, lambda wrap: loss, 1)


def run(options: Options) -> Report:
    """Measure all; write and return the table."""
    report = Report("structures", _INTRO, _COLUMNS, options.results)
    c = TINY if options.quick else SMALL
    above: list[str] = []
    for block in ("mlp",) if options.quick else ("mlp", "transformer"):
        for structure in STRUCTURES:
            above += measure_structure(report, block, structure, c)
            report.facts = facts(above)
    report.finish(facts(above))
    return report


def measure_structure(report: Report, block: str, structure: str, c: Config) -> list[str]:
    """Add the rows of one network; return the strategies that need more than the plain step."""
    session = Session(make(block, structure, c), solved=False)
    plain = session.program.plain
    plain_bytes, timeline = session.judge.compiled_bytes(session.judge.baseline), session.judge.timeline(plain)
    shown = mb(timeline.peak_bytes), mb(plain_bytes), "100.0", f"{timeline.flops / 1e9:.4g}", "100.0"
    report.add(block, structure, "plain", "none", *shown)
    limit, above = 0, []
    for row in sorted(Strategies(), key=lambda row: row.name != _BUDGET_LIKE):
        if row.settings in ("Collection", "Mirror"):
            continue  # they keep what a user names
        peak = _add_row(report, session, (block, structure), row, limit if row.budget == NEEDED else None)
        limit = peak if row.name == _BUDGET_LIKE else limit
        if peak > 1.001 * plain_bytes:
            above.append(f"{block} {structure} {row.name} ({percent(peak / plain_bytes - 1, 1)} % more)")
    return above


def _add_row(report: Report, session: Session, names: tuple[str, str], row: Strategy, budget: int | None) -> int:
    """Plan by a strategy; return its compiled peak, 0 where there is no plan."""
    asked = mb(budget) if budget else "none"
    try:
        plan, _ = plan_by(session, row, budget)
    except (BudgetError, ValueError) as error:
        least = f"least {mb(error.minimum_bytes)}" if isinstance(error, BudgetError) else "refused"
        report.add(*names, row.name, asked, "", least, "", "", "")
        return 0
    assert plan.compiled_peak_bytes is not None
    report.add(
        *(*names, row.name, asked, mb(plan.predicted_peak_bytes), mb(plan.compiled_peak_bytes)),
        percent(plan.compiled_peak_bytes / plan.written_peak_bytes, 1),
        *(f"{plan.step_flops / 1e9:.4g}", percent(plan.step_flops / plan.plain_flops, 1)),
    )
    return plan.compiled_peak_bytes


def facts(above: list[str]) -> list[str]:
    """What was found."""
    return [f"peaks above the plain one: {', '.join(above) or 'none'}"]
