"""Plans for the programs that one function turns out to be.

In: a function and a call of it, what plans are asked for. Out: what the call returns, run under its plan.

A plan is made when a program is first traced, and kept by the program's fingerprint. Every call is traced, so that
values that the function closes over may change, but what was planned and emitted for the same program is run again
(``reuse``). Under ``jax.jit`` a step is traced once, like any other.
"""

from __future__ import annotations

import functools
import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.graph.argnums import normalize_argnums
from remat_plan.graph.call import check_loss, make_function_call
from remat_plan.graph.schedule import Schedule
from remat_plan.plans.one_program import plan_program
from remat_plan.results.plan import Plan
from remat_plan.rewrite.emit import as_array
from remat_plan.search.candidates import Request
from remat_plan.small.budget import Budget
from remat_plan.small.recent import Recent
from remat_plan.traced import marks
from remat_plan.traced.programs import Program, Traced, traced_function
from remat_plan.traced.reuse import Emissions, warn_where_undone
from remat_plan.verify.step import PullbackStep
from remat_plan.verify.targets import resolve

MOST_PLANS = 512
"""Of how many programs (input shapes) of one function the plans are kept: each is some ten kilobytes, and seconds to
make again."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a self-planning function was told; ``request.argnums`` is empty for a function that is no loss.

    Attributes:
        any_function: whether the function need not be a loss: it is one if it returns a scalar.
        is_mark: whether neither a budget nor a strategy was given, so that a training step around it may plan.
        plans_alone: whether a mark plans by itself where no such step is around it.
    """

    budget: Budget | None
    request: Request
    target: str | None
    static_argnames: tuple[str, ...] = ()
    prevent_cse: bool = True
    any_function: bool = False
    is_mark: bool = False
    plans_alone: bool = True
    cost: str = "table"
    progress: bool | None = None


class PlanBook:
    """Plans for the programs that one function (or one module class) turns out to be, by their digests.

    Those of the ``MOST_PLANS`` programs that were planned last are kept.
    """

    def __init__(self, options: PlanOptions):
        self.options = options
        self.plans: Recent[str, Plan] = Recent(MOST_PLANS)
        self.planning = threading.RLock()  # threads that meet one new program at once plan it once
        self.emissions = Emissions(self.schedule_of, options.request.existing, options.prevent_cse)

    def run(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function under its plan; it is planned first if this program is new.

        A mark in a training step that is fitted (``rp.fit``) has its plan from there.
        """
        runner = marks.runner() if self.options.is_mark else None
        if runner is marks.INSIDE:
            return fn(*args, **kwargs)
        if runner is not None:
            return runner.run_mark(functools.partial(self._trace_mark, fn, args, kwargs), self.options.request)
        if not self.options.plans_alone:
            return fn(*args, **kwargs)
        traced = self.trace(fn, args, kwargs)
        if traced.has_gradient:
            try:
                return self.emissions(traced)
            except (NotImplementedError, TypeError, ValueError):  # what JAX raises where it cannot differentiate
                if traced.is_loss or _has_vjp(traced):
                    raise
        # Nothing to plan, as there is no backward pass: JAX says so where one is asked for.
        flat = _compat.as_function(traced.jaxpr)(*traced.call.leaves)
        return jax.tree.unflatten(traced.output_tree, [as_array(x) for x in flat])

    def trace(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Traced:
        """Trace a call, of a loss or of any function.

        Where a derivative is being taken of the call, what it is taken of is known, and counts; else the arrays of
        floating point that ``argnums`` hold, if they hold any, or all there are.
        """
        r = self.options.request
        call = make_function_call(fn, args, kwargs, r.static_argnums, self.options.static_argnames)
        moving = _compat.perturbed(call.leaves)
        if moving is not None:
            call = replace(call, differentiated=moving)
        elif r.argnums and args:
            call = call.of_arguments(normalize_argnums(r.argnums, len(args)))
        call, closed, shapes = call.trace()
        returns_array = any(leaf.shape != () for leaf in jax.tree.leaves(shapes)[:1])  # first, so it is no loss
        if r.argnums and any(call.differentiated) and not (self.options.any_function and returns_array):
            check_loss(call, shapes, r.has_aux)
            return Traced(call, closed, jax.tree.structure(shapes), True, ())
        if r.argnums and moving is None:
            call = replace(call, differentiated=tuple([_compat.is_float(x) for x in call.structs]))
        return traced_function(call, closed, shapes)

    def _trace_mark(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Traced:
        """Trace a call of a mark; the marks in it are a part of it."""
        with marks.running_marks(marks.INSIDE):
            return self.trace(fn, args, kwargs)

    def schedule_of(self, program: Program) -> Schedule:
        return self.plan_for(program).schedule

    def plan_for(self, program: Program) -> Plan:
        """The plan of a traced program, made on first use."""
        digest = program_digest(program)
        with self.planning:
            plan = self.plans.use(digest)
            if plan is None:
                o, started = self.options, time.perf_counter()
                plan = plan_program(program, resolve(o.target), o.budget, o.request, o.cost, o.progress, started)
                self.plans.keep(digest, plan)
                warn_where_undone(plan.schedule)
            return plan


def program_digest(program: Program) -> str:
    """The name of a program among plans; where its arrays lie on several devices another one, as its peaks are."""
    digest, layout = program.fingerprint.digest, program.call.layout
    return f"{digest}-{hashlib.sha256(repr(layout).encode()).hexdigest()[:8]}" if layout else digest


def _has_vjp(traced: Traced) -> bool:
    """Tell whether JAX can differentiate a function in reverse mode (a ``while_loop``, for one, it cannot)."""
    step = PullbackStep(_compat.as_function(traced.jaxpr), traced.call.differentiated)
    try:
        jax.eval_shape(step, *traced.call.structs, *traced.cotangents)
    except (NotImplementedError, TypeError, ValueError):  # JAX has no one class for it
        return False
    return True
