"""Gradients of planned and of plain steps, both in float32, against the plain step in float64.

In: tiny models with random parameters; this is the one benchmark that runs them. Out: ``results/gradients.md``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import models
from benchmarks.common import ZOO, Options, Planned, Report, Session, percent
from benchmarks.models import MODELS, concrete, small
from remat_plan.small.budget import BudgetError

_COLUMNS = (
    *("model", "budget", "overhead %", "error of plain", "error of planned", "planned / plain"),
    *("planned against plain", "leaves equal bit by bit"),
)
_INTRO = """Tiny models, parameters and batch from `benchmarks.models.concrete`. Error: the largest over all
parameters of |g - g64| / |g64| (2-norms), where g64 is the gradient of the plain step computed in float64 throughout.
Leaves whose gradient is below 1e-6 of the whole are left out. Planned against plain: the same distance between the two
float32 gradients. Budgets are shares of the plain compiled peak, and the minimum; those below the minimum are left out
(at this size parameters are most of the memory)."""
SHARES = (90, 80, 70, 60)
_NEGLIGIBLE = 1e-6
_MUCH = 2.0


class _Double:
    """``jax.numpy`` whose ``float32`` is ``float64``: the models name that type for their statistics."""

    float32 = jnp.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)


@contextmanager
def _double() -> Iterator[None]:
    with jax.enable_x64(True), mock.patch.object(models, "jnp", _Double()):
        yield


def reference(name: str, params: Any, batch: Any) -> list[np.ndarray]:
    """Gradients of the plain step, everything in float64."""
    with _double():
        loss = small(name, dtype=jnp.float64).loss
        wide = [np.asarray(x, np.float64) if x.dtype == jnp.float32 else np.asarray(x) for x in
                jax.tree.leaves((params, batch))]  # fmt: skip
        values = jax.tree.unflatten(jax.tree.structure((params, batch)), [jnp.asarray(x) for x in wide])
        found = jax.tree.leaves(jax.jit(jax.grad(loss))(*values))
        assert all(g.dtype == jnp.float64 for g in found)
        return [np.asarray(g) for g in found]


def error(found: list[np.ndarray], right: list[np.ndarray]) -> float:
    """Largest distance of a leaf from the right one, relative to that."""
    norms = [float(np.linalg.norm(r)) for r in right]
    floor = _NEGLIGIBLE * math.hypot(*norms)
    wide = ((np.asarray(f, np.float64), r, n) for f, r, n in zip(found, right, norms, strict=True) if n > floor)
    return max(float(np.linalg.norm(f - r)) / n for f, r, n in wide)


def gradients(loss: Any, params: Any, batch: Any) -> list[np.ndarray]:
    """Gradients of a jitted step."""
    return [np.asarray(g) for g in jax.tree.leaves(jax.jit(jax.grad(loss))(params, batch))]


def run(options: Options) -> Report:
    """Compare all; write and return the table."""
    report = Report("gradients", _INTRO, _COLUMNS, options.results)
    worse: list[str] = []
    largest = 0.0
    names = options.choose(ZOO if options.quick else tuple(MODELS))
    for name in names:
        model = small(name)
        params, batch = concrete(model)
        right = reference(name, params, batch)
        plain = gradients(model.loss, params, batch)
        allowed = error(plain, right)
        for text, planned in plans(Session(model)):
            found = gradients(planned.plan.apply(model.loss), params, batch)
            mine = error(found, right)
            largest = max(largest, mine / allowed)
            if mine > _MUCH * allowed:
                worse.append(f"{name} {text}")
            same = sum(np.array_equal(f, p) for f, p in zip(found, plain, strict=True))
            apart = error(found, [np.asarray(p, np.float64) for p in plain])
            report.add(
                *(name, text, percent(planned.plan.overhead, 1), f"{allowed:.1e}", f"{mine:.1e}"),
                *(f"{mine / allowed:.2f}", f"{apart:.1e}", f"{same} of {len(found)}"),
            )
    report.finish([
        f"error of planned above {_MUCH:g} x error of plain: {', '.join(worse) or 'none'} "
        f"({len(report.rows)} plans; largest ratio {largest:.2f})"
    ])  # fmt: skip
    return report


def plans(session: Session) -> Iterator[tuple[str, Planned]]:
    """The plans that there are for a tiny model, each schedule once."""
    seen = {session.program.plain}
    for budget in [*(f"{share}%" for share in SHARES), session.minimum_bytes()]:
        try:
            planned = session.plan(budget)
        except BudgetError:
            continue
        if planned.plan.schedule not in seen:
            seen.add(planned.plan.schedule)
            yield budget if isinstance(budget, str) else "minimum", planned
