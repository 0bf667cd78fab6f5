"""Plans of models that packages ship: within the budget, with the gradients of the plain step?

In: whatever of ``benchmarks.packages`` is installed. Out: ``results/packages.md``.
Limits: small models, random weights; they run, once plain and once for each plan.
"""

from __future__ import annotations

import importlib.metadata
import os
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import remat_plan as rp
from benchmarks.common import Options, Report, mb, percent
from benchmarks.gradients import error, gradients
from benchmarks.packages import PACKAGES, Entry, Problem
from remat_plan._compat import open_jaxpr, sub_jaxprs

_COLUMNS = (
    *("model", "package", "equations", "plain", "asked", "budget", "compiled", "overhead %", "compiled overhead %"),
    *("FLOPs %", "schedules compiled", "gradient"),
)
_INTRO = """Models that packages ship, small and with random weights, as `pip` installs them; what is missing, or cannot
be imported with this jax, is said below. Each loss is planned as it is, at shares of the compiled peak of its gradient
step. MB: compiled peaks on this CPU, arguments and gradients included; of a budget that cannot be met, the least that
was reached. Equations: of the jaxpr of the gradient step, those inside loops once. Overhead: predicted; compiled
overhead: by the modules that XLA made. FLOPs %: of the planned step above those of the plain one. Gradient: the largest
distance over all parameters from the plain step's, as a share of it, both in float32."""
SHARES = (75, 50, 30)
_QUICK_SHARES = (75,)
_FAR = 1e-2
"""Gradients further from the plain ones than this are named below the table: float32 rounds, loops add it up."""


def run(options: Options) -> Report:
    """Plan all that is installed; write and return the table."""
    report = Report("packages", _INTRO, _COLUMNS, options.results)
    told = _Told()
    for name in options.choose(tuple(PACKAGES)):
        entry = PACKAGES[name]
        try:
            made = _make(entry)
        except Exception as failed:  # whatever a package raises where it does not go with this jax
            told.missing.append(_reason(name, entry, failed))
            continue
        version = importlib.metadata.version(entry.package)
        told.versions[entry.package] = version
        for row in rows(made, _QUICK_SHARES if options.quick else SHARES, name, told):
            report.add(f"{name}: {entry.what}", f"{entry.package} {version}", *row)
    report.finish(told.facts())
    return report


class _Told:
    """What is said below the table."""

    def __init__(self) -> None:
        self.over: list[str] = []
        self.unmet: list[str] = []
        self.far: list[str] = []
        self.missing: list[str] = []
        self.versions: dict[str, str] = {}
        self.plans = 0

    def facts(self) -> list[str]:
        """The sentences."""
        listed = ", ".join(f"{package} {version}" for package, version in sorted(self.versions.items()))
        return [
            f"{self.plans} plans of models from {len(self.versions)} packages: {listed}",
            f"plans over their budget: {', '.join(self.over) or 'none'}",
            f"gradients further than {_FAR:g} from the plain ones: {', '.join(self.far) or 'none'}",
            f"budgets that cannot be met: {', '.join(self.unmet) or 'none'}",
            f"left out: {'; '.join(self.missing) or 'none'}",
            f"XLA_FLAGS: {os.environ.get('XLA_FLAGS') or 'none'}",
        ]


def _make(entry: Entry) -> Problem:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = entry.make()
        jax.eval_shape(made.loss, made.params, made.batch)
    return made


def _reason(name: str, entry: Entry, failed: Exception) -> str:
    try:
        version = importlib.metadata.version(entry.package)
    except importlib.metadata.PackageNotFoundError:
        return f"{name} ({entry.package} is not installed)"
    return f"{name} ({entry.package} {version}, without a plan: {type(failed).__name__}: {str(failed).splitlines()[0]})"


def rows(made: Problem, shares: tuple[int, ...], name: str, told: _Told) -> Iterator[tuple[Any, ...]]:
    """The cells of each budget behind the first two."""
    loss, args = made.loss, (made.params, made.batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        equations = _count(jax.make_jaxpr(jax.grad(loss))(*args))
        plain = [np.asarray(g, np.float64) for g in gradients(loss, *args)]
        if not all(np.isfinite(g).all() for g in plain) or not any(g.any() for g in plain):
            raise ValueError("its plain gradients are zero or not finite")
        curve = rp.tradeoff(loss, *args)
        for share in shares:
            try:
                plan, unmet = curve.plan(f"{share}%"), False
            except rp.BudgetError as error_:
                plan, unmet = curve.plan(error_.minimum_bytes), True
            apart = error(gradients(plan.apply(loss), *args), plain)
            told.plans += 1
            told.unmet += [f"{name} {share} %"] if unmet else []
            told.far += [f"{name} {share} % ({apart:.0e})"] if apart > _FAR else []
            assert plan.compiled_peak_bytes is not None
            assert plan.budget_bytes is not None
            told.over += [f"{name} {share} %"] if plan.compiled_peak_bytes > plan.budget_bytes else []
            seen = plan.compiled_overhead
            yield (
                *(equations, mb(plan.written_peak_bytes), f"{share} %"),
                *("least" if unmet else mb(plan.budget_bytes), mb(plan.compiled_peak_bytes)),
                *(percent(plan.overhead, 1), "-" if seen is None else percent(seen, 1)),
                *(percent(plan.step_flops / plan.plain_flops - 1, 1), len(plan.search.rows), f"{apart:.0e}"),
            )


def _count(jaxpr: Any) -> int:
    """Equations, with those of inner jaxprs."""
    opened, _ = open_jaxpr(jaxpr)
    return len(opened.eqns) + sum(_count(inner) for eqn in opened.eqns for inner in sub_jaxprs(eqn.params))
