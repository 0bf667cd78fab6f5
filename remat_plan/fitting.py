"""Whole training steps that fit: ``rp.fit``.

In: a training step with marked functions in it, its arguments, a budget. Out: ``FittedStep``: the step, jitted, with a
plan for each mark and a report. Only wiring: ``training`` finds the marks and their schedules.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Generic, ParamSpec, Self, TypeVar, Unpack

from remat_plan.clock.store import Cost, check_cost
from remat_plan.functions import Planned, remat
from remat_plan.graph.frameworks import check_function
from remat_plan.planning.constraints import make_constraints
from remat_plan.plans.arguments import RematOptions
from remat_plan.report.plans import best_overhead, status_line
from remat_plan.results.measurement import ROUNDS, Measurement
from remat_plan.results.plan import Plan
from remat_plan.results.steps import StepReport
from remat_plan.small.budget import Budget, BudgetError, parse_budget
from remat_plan.small.doors import door
from remat_plan.small.progress import Progress
from remat_plan.small.recent import Recent
from remat_plan.small.wording import name_of, short
from remat_plan.traced.modules import Functional
from remat_plan.traced.reuse import MOST_SHAPES
from remat_plan.training.calls import CallKind, StepCall, changes
from remat_plan.training.fitted import Found, fit_again, fit_step, make_call, measure_step
from remat_plan.training.running import Running
from remat_plan.training.settings import Settings, in_position
from remat_plan.verify.targets import Target, resolve, traced_for_target

_LOG = logging.getLogger("remat_plan")

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class FittedStep(Generic[P, R]):
    """A training step that fits in its budget; made by ``fit``.

    Call it like the user's function; the step that was compiled while fitting is what runs. For other shapes (say, the
    last batch of an epoch) it is fitted again within the same number of bytes; the last 64 shapes are kept. If only
    shardings or weak types differ, the same schedules are compiled once more and checked. The log says what changed.

    Attributes:
        fn: the user's function.
        report: its memory, as written and planned.
        plans: a plan for each marked program; their peaks and budget refer to the whole step.
    """

    def __init__(
        self, fn: Callable[P, R], budget: Budget, target: Target, told: Settings, progress: bool | None, cost: str
    ):
        self.fn, self._budget, self._target, self._told, self._progress = fn, budget, target, told, progress
        self._cost = cost
        self._found: Recent[CallKind, tuple[Running, ...]] = Recent(MOST_SHAPES)  # the one made last first
        self._fitting = threading.RLock()  # threads that meet new shapes at once fit the step once
        self._first: Found | None = None
        functools.update_wrapper(self, fn, updated=())

    def __reduce__(self) -> Any:
        raise TypeError(
            "a fitted step cannot be pickled: it holds compiled programs. Store step.report and step.plans, which "
            "can be pickled, and call rp.fit again where the step is to run."
        )

    def __copy__(self) -> Self:
        return self  # as functions are

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def fit(self, args: Sequence[Any], kwargs: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Fit the step for these shapes and shardings unless that is done already; nothing is run."""
        running, call, _ = self._fit_of(tuple(args), kwargs)
        running.compile(call)

    @property
    def report(self) -> StepReport:
        """The memory of the step, as written and planned."""
        assert self._first is not None
        return self._first.report

    @property
    def plans(self) -> tuple[Plan, ...]:
        """A plan for each marked program, the largest program first."""
        assert self._first is not None
        return self._first.plans

    @property
    def plan(self) -> Plan:
        """The plan of the largest marked program."""
        return self.plans[0]

    @door
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        running, call, function = self._fit_of(args, kwargs)
        result = running(call)
        if function is None:
            return result
        states, result = result
        function.store(states)
        return result

    @door
    def put(self, *args: Any) -> tuple[Any, ...]:
        """Return arguments of a call where the step has them: state that stays on the host (``offload=True``) is moved.

        A call does that too, but then both copies are there as long as you hold the old one. JAX's functions take no
        arrays of both memories at once: what you read of the state between steps, move first (``jax.device_put``).

        Example:
            >>> import jax, jax.numpy as jnp, optax, remat_plan as rp
            >>> def step(w, state, x):
            ...     gradient = jax.grad(rp.mark(lambda w, x: jnp.mean(jnp.tanh(x @ w) ** 2)))(w, x)
            ...     updates, state = optax.sgd(1e-2, momentum=0.9).update(gradient, state)
            ...     return w + updates, state
            >>> w, x = jnp.ones((64, 64)), jnp.ones((256, 64))
            >>> args = w, optax.sgd(1e-2, momentum=0.9).init(w), x
            >>> fitted = rp.fit(step, *args, budget="100%", donate_argnums=(0, 1), offload=True)
            >>> w, state, x = fitted.put(*args)
        """
        running, call, function = self._fit_of(args, {})
        if function is not None:
            return args  # modules stay as they are: the first call moves their state
        arrays = running.found.step.put(call.arrays, self._target)
        return tuple(
            split.joined(part, i in call.settings.static_argnums)
            for i, (split, part) in enumerate(zip(call.splits, arrays, strict=True))
        )

    @door
    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lower the jitted step, as ``jax.jit(fn).lower`` does."""
        running, call, _ = self._fit_of(args, kwargs)
        return running.jitted.lower(*running.found.step.hosting(call.arrays, self._target))

    def __repr__(self) -> str:
        return f"<{getattr(self, '__qualname__', name_of(self.fn))}: {self.report!r}>"

    @door
    def measure(self, *args: Any, rounds: int = ROUNDS, **kwargs: Any) -> Measurement:
        """Run the step as written and the fitted step in turns on the attached device, and return their seconds.

        ``args`` are not consumed: donated arrays are copied, outside the timing. Overheads refer to the whole step.

        Raises:
            TypeError: an argument is a shape without values.
            ValueError: the step was fitted for a device that is not attached.
        """
        running, call, _ = self._fit_of(args, kwargs)
        running.compile(call)
        return measure_step(running.found, running.executable or running.jitted, call.arrays, rounds)

    def _fit_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Running, StepCall, Functional | None]:
        """What was fitted for a call (it is fitted first if nothing was), the call, its NNX modules."""
        call, function = make_call(self.fn, args, kwargs, self._told)
        return self._known(call) or self._fit_call(call), call, function

    def _known(self, call: StepCall) -> Running | None:
        return next((fit for fit in self._found.use(call.kind) or () if fit.accepts(call)), None)

    def _fit_call(self, call: StepCall) -> Running:
        """Fit the step for a call: with the schedules that it has, compiled once, where these are within the budget."""
        with self._fitting:
            if (known := self._known(call)) is not None:
                return known
            hosted = frozenset() if self._first is None else self._first.step.hosted
            step, alike = call.step(hosted), self._found.get(call.kind, ())
            found = again = None
            if self._first is not None:
                last = (alike or next(iter(self._found.latest_first()))[1])[0]
                again = changes(last.kind, last.placed, call)
                _LOG.info("fitting again: %s", again)
                found = fit_again(last.found, step, call, self._target)
            if found is None:
                with Progress("remat_plan", self._progress) as shown:
                    try:
                        found = fit_step(step, self._budget, self._target, shown, self._cost)
                    except BudgetError as error:
                        if again is not None:  # a call in the middle of a loop, whose user may not expect a plan there
                            error.add_note(f"The step was fitted before and is being fitted again: {again}.")
                        raise
                report, seconds = found.report, time.perf_counter() - shown.started
                peaks = report.plain.peak_bytes, report.planned.peak_bytes
                shown.conclude(status_line(self.fn, *peaks, best_overhead(report), report.compiles, seconds))
            if self._first is None:
                self._first = found
                self._budget = Budget(self._budget.text, size_bytes=found.report.budget_bytes)
            fit = Running(found, call, self._target)
            self._found.keep(call.kind, (fit, *alike)[:MOST_SHAPES])
            return fit


@door
def mark(fn: Callable[P, R], **options: Unpack[RematOptions]) -> Planned[P, R]:
    """Mark a function in a training step, so that ``rp.fit`` plans what is recomputed in it.

    Anywhere else a marked function is unchanged: nothing is planned or recomputed.

    Args:
        fn: the function that the step differentiates, or a layer of it.
        **options: as in ``rp.remat``, without budget and strategy: ``argnums``, ``has_aux``, ``static_argnums``,
            ``static_argnames``, ``existing``, ``must_save``, ``must_recompute``, ``never_recompute``, ``never_split``,
            ``offload``, ``may_offload``, ``host_budget``.

    Raises:
        TypeError, ValueError: an argument is wrong; the message names it.

    Example:
        >>> import jax, jax.numpy as jnp, remat_plan as rp
        >>> def loss(w, x):
        ...     for _ in range(8):
        ...         x = jnp.tanh(x @ w)
        ...     return jnp.mean(x**2)
        >>> def step(w, x):
        ...     return w - jax.grad(rp.mark(loss))(w, x)
        >>> fitted = rp.fit(step, jnp.ones((64, 64)) / 64, jnp.ones((4096, 64)), budget="70%")
        >>> fitted.report.planned.peak_bytes <= fitted.report.budget_bytes
        True
    """
    check_function(fn, "rp.mark needs")
    for name in ("budget", "strategy"):
        if options.get(name) is not None:
            raise ValueError(f"rp.mark takes no {name}: give the budget to rp.fit, or use rp.remat({name}=...).")
    planned = remat(fn, **options)
    return Planned(planned.fn, replace(planned.book.options, plans_alone=False))


@door
@traced_for_target
def fit(
    train_step: Callable[P, R],
    *args: Any,
    budget: int | str | float,
    kwargs: Mapping[str, Any] | None = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    in_shardings: Any = None,
    out_shardings: Any = None,
    compiler_options: Mapping[str, Any] | None = None,
    offload: bool = False,
    may_offload: Sequence[str] = (),
    host_budget: int | str | None = None,
    target: str | None = None,
    cost: Cost = "table",
    progress: bool | None = None,
) -> FittedStep[P, R]:
    """Fit a whole training step into a memory budget: parameters, optimizer state, batch and all.

    Wrap the function that the step differentiates in ``rp.mark``; there may be several marks. ``fit`` chooses what to
    recompute in them so that the compiled step is within the budget, with as little recomputation as it can find. This
    takes two to five compiles of the step, rarely seven; more only if nothing fits.

    Args:
        train_step: the whole step, with optimizer update, metrics and gradient accumulation. It may be jitted.
        *args: its arguments: pytrees of arrays or ``jax.ShapeDtypeStruct`` (nothing is run), with shardings.
        budget: bytes on one device for the whole compiled step, as in ``plan``; shares refer to the step as written.
        kwargs: arguments by name. Those that also have a position are treated as if given there.
        donate_argnums: as in ``jax.jit``: arguments whose memory the results may reuse (usually the state).
        static_argnums, static_argnames, in_shardings, out_shardings, compiler_options: as in ``jax.jit``. The options
            that plans need (``rp.compiler_options``) are added.
        offload, may_offload, host_budget: as in ``plan``, for all marks that say nothing else; so much of the host's
            memory they share equally. ``offload=True`` also leaves the optimizer's state on the host, if it is donated
            and the step is over the budget or slower without: calls return it there (see ``FittedStep.put``).
        target: the device to plan for, attached or not, such as ``"gpu:h100"``.
        cost, progress: as in ``plan``.

    Returns:
        The jitted step, called like ``train_step``. ``print`` its ``.report``; ``.plan`` shows what is recomputed.

    Raises:
        BudgetError: the budget is below the lowest peak found, which is ``.minimum_bytes``.
        ValueError: nothing is marked (the message shows what to mark), or an argument is wrong (it names it).
        TypeError: an argument is wrong; the message names it.

    Example:
        >>> import jax, jax.numpy as jnp, optax, remat_plan as rp
        >>> def loss_fn(params, batch):
        ...     for w in params:
        ...         batch = jnp.tanh(batch @ w)
        ...     return jnp.mean(batch**2)
        >>> adam = optax.adam(1e-3)
        >>> def train_step(params, state, batch):
        ...     loss, grads = jax.value_and_grad(rp.mark(loss_fn))(params, batch)
        ...     updates, state = adam.update(grads, state)
        ...     return optax.apply_updates(params, updates), state, loss
        >>> params = [jnp.ones((64, 64)) / 64 for _ in range(8)]
        >>> args = params, adam.init(params), jnp.ones((4096, 64))
        >>> step = rp.fit(train_step, *args, budget="60%", donate_argnums=(0, 1))
        >>> step.report.planned.peak_bytes <= step.report.budget_bytes
        True
        >>> params, state, loss = step(*args)
    """
    check_function(train_step, "rp.fit needs")
    named = {} if kwargs is None else kwargs
    if not isinstance(named, Mapping):
        raise TypeError(f"kwargs={short(named)}: give a mapping of names to arguments.")
    if not args and not named:
        raise ValueError("rp.fit: no arguments. Pass those of the step (arrays or jax.ShapeDtypeStruct) after it.")
    parsed, device = parse_budget(budget), resolve(target)
    placed = in_position(train_step, args, named)[0]
    host = make_constraints(offload=offload, may_offload=may_offload, host_budget=host_budget)
    others = in_shardings, out_shardings, compiler_options, host
    told = Settings.of(train_step, placed, static_argnums, static_argnames, donate_argnums, *others)
    step = FittedStep(train_step, parsed, device, told, progress, check_cost(cost))
    step.fit(args, named)
    return step
