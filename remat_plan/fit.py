"""Whole training steps that fit: ``rp.fit``.

In: a training step with marked functions in it, its arguments, a budget. Out: ``FittedStep``: the step, jitted, with a
plan for each mark and a report. Only wiring: ``training`` finds the marks and their schedules.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from remat_plan.clock.store import check_cost
from remat_plan.fitted import Found, fit_step, make_step, measure_step
from remat_plan.modules import Functional
from remat_plan.recent import Recent
from remat_plan.report.progress import Progress
from remat_plan.results.measurement import Measurement
from remat_plan.results.measuring import ROUNDS
from remat_plan.results.plan import Plan
from remat_plan.results.step_report import StepReport
from remat_plan.reuse import MOST_SHAPES
from remat_plan.training.step import Settings, TrainingStep
from remat_plan.units import Budget, parse_budget
from remat_plan.verify.targets import Target, resolve


class FittedStep:
    """A training step that fits in its budget; made by ``fit``.

    Call it as the user's function. For arguments of other shapes (say, the last batch of an epoch) it is fitted again
    within the same number of bytes; what was fitted is kept for the 64 shapes used last.

    Attributes:
        fn: the user's function.
        report: what it needs, plain and planned.
        plans: a plan for each marked program; peaks and budget in them are of the whole step.
    """

    def __init__(
        self, fn: Callable[..., Any], budget: Budget, target: Target, told: Settings, progress: bool | None, cost: str
    ):
        self.fn, self._budget, self._target, self._told, self._progress = fn, budget, target, told, progress
        self._cost = cost
        self._found: Recent[Any, tuple[Found, Any]] = Recent(MOST_SHAPES)  # and jitted, by graph of modules and shapes
        self._fitting = threading.RLock()  # threads that meet new shapes at once fit the step once
        self._first: Found | None = None
        functools.update_wrapper(self, fn, updated=())

    def __reduce__(self) -> Any:
        raise TypeError(
            "a fitted step cannot be pickled: it holds compiled programs. Store what it found (step.report, "
            "step.plans; both can be pickled), and call rp.fit again where the step is to run."
        )

    def __deepcopy__(self, memo: Any) -> FittedStep:
        return self  # as functions are

    def fit(self, args: Sequence[Any]) -> None:
        """Fit the step for arguments of some shapes, if that was not done."""
        self._fitted(*make_step(self.fn, args, self._told))

    @property
    def report(self) -> StepReport:
        """What the step needs, plain and planned."""
        assert self._first is not None
        return self._first.report

    @property
    def plans(self) -> tuple[Plan, ...]:
        """A plan for each marked program, that of the largest first."""
        assert self._first is not None
        return self._first.plans

    @property
    def plan(self) -> Plan:
        """The plan of the marked program that needs most."""
        return self.plans[0]

    def __call__(self, *args: Any) -> Any:
        step, function = make_step(self.fn, args, self._told)
        found, jitted = self._fitted(step, function)
        values = args if function is None else function.arguments(args)
        result = found.step.result(found.trial, jitted(*step.dynamic(values)))
        if function is None:
            return result
        states, result = result
        function.store(states)
        return result

    def lower(self, *args: Any) -> Any:
        """Lower the jitted step, as ``jax.jit(fn).lower`` does."""
        step, function = make_step(self.fn, args, self._told)
        values = args if function is None else function.arguments(args)
        return self._fitted(step, function)[1].lower(*step.dynamic(values))

    def measure(self, *args: Any, rounds: int = ROUNDS) -> Measurement:
        """Run the step as written and the fitted step in turns on the attached device, and return their seconds.

        ``args`` stay as they are: what is donated is copied, while the clock stands. Overheads are of the whole step.

        Raises:
            TypeError: an argument is a shape without values.
            ValueError: the step was fitted for a device that is not attached.
        """
        step, function = make_step(self.fn, args, self._told)
        found, jitted = self._fitted(step, function)
        return measure_step(found, jitted, args if function is None else function.arguments(args), rounds)

    def _fitted(self, step: TrainingStep, function: Functional | None) -> tuple[Found, Any]:
        leaves, tree = jax.tree.flatten(step.structs)
        shapes = tuple((x.shape, x.dtype, x.weak_type, x.sharding) for x in leaves)
        key = None if function is None else function.graph, tree, shapes, step.splits
        with self._fitting:
            known = self._found.use(key)
            if known is not None:
                return known
            with Progress("remat_plan", self._progress) as shown:
                found = fit_step(step, self._budget, self._target, shown, time.perf_counter(), self._cost)
            if self._first is None:
                self._first = found
                self._budget = Budget(self._budget.text, size_bytes=found.report.budget_bytes)
            fitted = found, step.jitted(found.trial)
            self._found.keep(key, fitted)
            return fitted


def fit(
    train_step: Callable[..., Any],
    *args: Any,
    budget: int | str | float,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    in_shardings: Any = None,
    out_shardings: Any = None,
    compiler_options: Mapping[str, Any] | None = None,
    target: str | None = None,
    cost: str = "table",
    progress: bool | None = None,
) -> FittedStep:
    """Fit a whole training step in a number of bytes: parameters, optimizer, batch and all.

    Mark the function whose gradient the step takes by ``rp.remat``, without a budget; there may be several marks. What
    is recomputed in them is chosen so that the compiled step is within the budget, with as little recomputation as can
    be had. The step is compiled two to five times for that, seldom seven times; more often only if nothing fits.

    Args:
        train_step: the step as it is: with its optimizer's update, metrics, gradient accumulation. It may be jitted.
        *args: its arguments: pytrees of arrays or ``jax.ShapeDtypeStruct`` (nothing is run), with shardings.
        budget: bytes on one device for the whole compiled step, as in ``plan``; a share is of the step as it is.
        donate_argnums: as in ``jax.jit``: arguments whose memory results may take (the state, mostly).
        static_argnums, in_shardings, out_shardings, compiler_options: as in ``jax.jit``. Options that plans need
            (``rp.compiler_options``) are set by themselves.
        target: a device that need not be here, such as ``"gpu:h100"``.
        cost: whose seconds to go by, as in ``plan``.
        progress: show what is going on after two seconds; by default when stderr is a terminal.

    Returns:
        The jitted step: call it as ``train_step``. ``print`` its ``.report``; ``.plan`` is what is recomputed.

    Raises:
        BudgetError: the budget is below the least peak reached; ``.minimum_bytes`` says what can be had.
        ValueError: nothing is marked; the message shows what to mark. An argument is wrong; the message names it.
        TypeError: an argument is wrong; the message names it.

    Example:
        >>> import jax, jax.numpy as jnp, optax, remat_plan as rp
        >>> def loss_fn(params, batch):
        ...     for w in params:
        ...         batch = jnp.tanh(batch @ w)
        ...     return jnp.mean(batch**2)
        >>> adam = optax.adam(1e-3)
        >>> def train_step(params, state, batch):
        ...     loss, grads = jax.value_and_grad(rp.remat(loss_fn))(params, batch)
        ...     updates, state = adam.update(grads, state)
        ...     return optax.apply_updates(params, updates), state, loss
        >>> params = [jnp.ones((64, 64)) / 64 for _ in range(8)]
        >>> args = params, adam.init(params), jnp.ones((4096, 64))
        >>> step = rp.fit(train_step, *args, budget="60%", donate_argnums=(0, 1))
        >>> step.report.planned.peak_bytes <= step.report.budget_bytes
        True
        >>> params, state, loss = step(*args)
    """
    if not callable(train_step):
        raise TypeError(f"rp.fit needs a function, not {type(train_step).__name__}.")
    if not args:
        raise ValueError("rp.fit: no arguments: give those of the step (arrays or jax.ShapeDtypeStruct) after it.")
    parsed, device = parse_budget(budget), resolve(target)
    told = Settings.of(args, static_argnums, donate_argnums, in_shardings, out_shardings, compiler_options)
    step = FittedStep(train_step, parsed, device, told, progress, check_cost(cost))
    step.fit(args)
    return step
