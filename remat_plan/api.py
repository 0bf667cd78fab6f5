"""What users call: ``plan``, ``remat``, ``analyze``, ``tradeoff``, ``compiler_options``.

In: functions and budgets. Out: plans, functions, reports. Only wiring: each stage does its own work.
"""

from __future__ import annotations

import functools
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remat_plan import collector
from remat_plan.graph.call import positions
from remat_plan.plan import Plan
from remat_plan.program import Program, check_existing, run_schedule, trace_program
from remat_plan.report.analysis import Analysis, analyze_graph
from remat_plan.report.progress import Progress
from remat_plan.report.tradeoff import Tradeoff, TradeoffPoint, pareto
from remat_plan.session import Request, Session
from remat_plan.units import Budget, parse_budget
from remat_plan.verify import compile as _compile
from remat_plan.verify.targets import resolve

STRATEGIES = ("auto",)
_CURVE_POINTS = 16


def _check_strategy(strategy: str) -> None:
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy={strategy!r} is not known: say one of {', '.join(map(repr, STRATEGIES))}.")


def plan(
    fn: Callable[..., Any],
    *args: Any,
    budget: int | str | float,
    strategy: str = "auto",
    verify: bool = True,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    static_argnums: int | Sequence[int] = (),
    kwargs: Mapping[str, Any] | None = None,
    target: str | None = None,
    existing: str = "replan",
    progress: bool | None = None,
) -> Plan:
    """Plan what to save and what to recompute so that the gradient step of ``fn`` fits in ``budget``.

    Args:
        fn: a loss function: returns a scalar, or ``(scalar, anything)`` with ``has_aux``.
        *args: its arguments: pytrees of arrays or ``jax.ShapeDtypeStruct`` (nothing is computed).
        budget: bytes on one device for the compiled ``value_and_grad`` step (arguments + outputs + temporaries):
            an integer, ``"800MB"``, ``"8GiB"``, a share of the plain peak such as ``"60%"``, or ``"device"``.
        strategy: ``"auto"``.
        verify: compile and correct until the compiled peak is within the budget; else trust the prediction.
        argnums, has_aux: as in ``jax.grad``.
        static_argnums: positions of arguments that are not traced.
        kwargs: keyword arguments of ``fn``.
        target: a device that need not be here, such as ``"gpu:h100"`` or ``"tpu:v5e:1x1"``.
        existing: ``"replan"`` plans the function's own ``jax.checkpoint`` regions anew, ``"keep"`` leaves them.
        progress: show what is going on after two seconds; by default when stderr is a terminal.

    Returns:
        The plan: ``print`` it, ``plan.apply(fn)`` it.

    Raises:
        BudgetError: the budget is below the least peak reached; ``.minimum_bytes`` says what can be had.
        TypeError, ValueError: an argument is wrong; the message names it.

    Example:
        >>> import jax, jax.numpy as jnp, remat_plan as rp
        >>> def loss(w, x):
        ...     for _ in range(8):
        ...         x = jnp.tanh(x @ w)
        ...     return jnp.sum(x)
        >>> shapes = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((4096, 64), "float32")
        >>> plan = rp.plan(loss, *shapes, budget="60%")
        >>> plan.compiled_peak_bytes <= plan.budget_bytes < plan.baseline_peak_bytes
        True
    """
    started = time.perf_counter()
    _check_strategy(strategy)
    parsed = parse_budget(budget)
    device = resolve(target)
    program = trace_program(fn, args, kwargs or {}, argnums, has_aux, static_argnums, existing)
    with Progress("remat_plan", progress) as shown:
        request = Request(
            strategy, verify, positions(argnums), has_aux, positions(static_argnums, "static_argnums"), existing
        )
        return Session(program, device, shown).make_plan(parsed, request, started)


def remat(
    fn: Callable[..., Any] | None = None,
    *,
    budget: int | str | float,
    strategy: str = "auto",
    verify: bool = True,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    static_argnums: int | Sequence[int] = (),
    target: str | None = None,
    existing: str = "replan",
) -> Callable[..., Any]:
    """Return ``fn`` planned for a budget: it plans on its first trace, once per input shapes.

    Use it as a function or as a decorator. The result has the signature, values and derivatives of ``fn`` and
    works under ``jax.jit``, ``grad``, ``value_and_grad``, ``vmap``, ``jvp`` and their combinations; for other
    shapes it plans again. Arguments are those of ``plan``.

    Example:
        >>> import jax, jax.numpy as jnp, remat_plan as rp
        >>> @rp.remat(budget="60%")
        ... def loss(w, x):
        ...     for _ in range(8):
        ...         x = jnp.tanh(x @ w)
        ...     return jnp.sum(x)
        >>> gradient = jax.jit(jax.grad(loss))(jnp.ones((64, 64)) / 64, jnp.ones((4096, 64)))
        >>> gradient.shape
        (64, 64)
    """
    _check_strategy(strategy)
    check_existing(existing)
    static = positions(static_argnums, "static_argnums")
    request = Request(strategy, verify, positions(argnums), has_aux, static, existing)
    options = _RematOptions(parse_budget(budget), request, target)
    if fn is None:
        return functools.partial(_decorate, options=options)
    return _decorate(fn, options)


@dataclass(frozen=True, slots=True)
class _RematOptions:
    """What ``remat`` was told."""

    budget: Budget
    request: Request
    target: str | None


class Planned:
    """A function that plans itself; made by ``remat``. ``plans`` maps program digests to plans."""

    def __init__(self, fn: Callable[..., Any], options: _RematOptions):
        self.fn, self.options = fn, options
        self.plans: dict[str, Plan] = {}
        functools.update_wrapper(self, fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        r = self.options.request
        program = trace_program(self.fn, args, kwargs, r.argnums, r.has_aux, r.static_argnums, r.existing)
        return run_schedule(program, self.plan_for(program).schedule)

    def __get__(self, instance: Any, owner: Any = None) -> Callable[..., Any]:
        return self if instance is None else types.MethodType(self, instance)

    def plan_for(self, program: Program) -> Plan:
        """The plan of a traced program, made on first use."""
        digest = program.fingerprint.digest
        if digest not in self.plans:
            started = time.perf_counter()
            with Progress("remat_plan", None) as shown:
                session = Session(program, resolve(self.options.target), shown)
                self.plans[digest] = session.make_plan(self.options.budget, self.options.request, started)
        return self.plans[digest]


def _decorate(fn: Callable[..., Any], options: _RematOptions) -> Planned:
    if not callable(fn):
        raise TypeError(f"rp.remat needs a function, not {type(fn).__name__}.")
    return Planned(fn, options)


def analyze(
    fn: Callable[..., Any],
    *args: Any,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    static_argnums: int | Sequence[int] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Analysis:
    """Tell what plain JAX keeps between forward and backward passes, by value; nothing is compiled.

    Args: as in ``plan``.

    Returns:
        Rows sorted by bytes (shape, dtype, primitive, source line, ``checkpoint_name``) and totals.

    Example:
        >>> import jax, jax.numpy as jnp, remat_plan as rp
        >>> analysis = rp.analyze(lambda w, x: jnp.sum(jnp.tanh(x @ w)), jnp.ones((8, 8)), jnp.ones((4, 8)))
        >>> analysis.needed_bytes  # the output of tanh, from which 1 - y*y can be made
        128
    """
    program = trace_program(fn, args, kwargs or {}, argnums, has_aux, static_argnums, "keep")
    return analyze_graph(program.graph)


@collector.paused()
def tradeoff(
    fn: Callable[..., Any],
    *args: Any,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    static_argnums: int | Sequence[int] = (),
    kwargs: Mapping[str, Any] | None = None,
    target: str | None = None,
    existing: str = "replan",
    points: int = _CURVE_POINTS,
    progress: bool | None = None,
) -> Tradeoff:
    """Return the whole curve of peak bytes against overhead, from one solve.

    Args: as in ``plan``; ``points`` is how many schedules are evaluated.

    Returns:
        The curve: ``.points``, ``.plot()``, ``.plan(budget)``.
    """
    device = resolve(target)
    program = trace_program(fn, args, kwargs or {}, argnums, has_aux, static_argnums, existing)
    session = Session(program, device, Progress("remat_plan", progress))
    found = []
    with session.progress:
        for curve in session.planner.curves:
            last = len(curve.points) - 1
            chosen = sorted({round(i * last / max(points - 2, 1)) for i in range(max(points - 1, 1))})
            for number, point in enumerate(chosen):
                session.progress.say(f"evaluating schedule {number + 1} of {len(chosen)}")
                schedule = curve.schedule(min(point, last))
                found.append(TradeoffPoint(session.timeline(schedule).peak_bytes, session.overhead(schedule)))
        found.append(TradeoffPoint(session.timeline(program.plain).peak_bytes, 0.0))

    static = positions(static_argnums, "static_argnums")

    def make(budget: Any, verify: bool) -> Plan:
        request = Request("auto", verify, positions(argnums), has_aux, static, existing)
        return session.make_plan(parse_budget(budget), request, time.perf_counter())

    return Tradeoff(pareto(found), session.device, make)


def compiler_options(target: str | None = None) -> dict[str, str]:
    """Return options for ``jax.jit(..., compiler_options=...)`` under which savings hold on this jaxlib.

    Empty where none are needed. XLA:CPU up to jaxlib 0.11.0 drops the barriers of ``jax.checkpoint`` in unrolled
    code; plans are verified with these options.
    """
    return _compile.compiler_options(resolve(target))
