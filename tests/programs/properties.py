"""What must hold of every program under every plan; ``check`` raises ``AssertionError`` with the seed where it does not.

In: a seed. Out: nothing; or what was tried, for people who count.
"""

import random
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import remat_plan as rp
from tests.planning.test_budgets import EVALUATORS_OWN
from tests.programs.generator import arguments, draw, loss_of, names_in
from tests.programs.operations import EFFECTS, HALVES, SEEN
from tests.programs.structures import over_rows

ROWS, DIM = 256, 16
STEPS = 4
"""Budgets for each program, evenly from the plain peak down to the least that is predicted to be reached."""

SHARES = ("50%", "70%", "85%")
"""Budgets where predictions tell nothing of one device."""

NAMED = ("memory", "log", "each_block", "dots", "nothing", "everything", "budgeted", "speed", "binomial")
TIMES = {"float64": 1e-6, "float32": 2e-3}
"""Largest distance of a gradient from the plain one, over its norm: rounding, and in 32 bits what steps make of it."""

HALVES_TIMES = 0.1
"""The same with 16 bits inside, where one value that is rounded the other way turns comparisons and maxima."""

XLA_CANNOT = "cpu/runtime/fft_thunk.cc"
"""What XLA:CPU says of a Fourier transform whose operand a partitioned program lays out otherwise (207 on eight devices)."""


@dataclass(frozen=True)
class Case:
    """One random program and how it is planned.

    Attributes:
        seed: what it was drawn from.
        program: its steps.
        loss, args: what it stands for.
        argnums: what is differentiated.
        dtype: of parameters and rows, which may lie over all devices.
        strategy: one beside ``"auto"``.
    """

    seed: int
    program: Any
    loss: Any
    args: Any
    argnums: tuple[int, ...]
    dtype: Any
    strategy: str

    @property
    def names(self):
        return names_in(self.program)

    @property
    def tolerance(self):
        return HALVES_TIMES if self.names & set(HALVES) else TIMES[np.dtype(self.dtype).name]

    def gradient(self, fn):
        return jax.value_and_grad(fn, argnums=self.argnums, has_aux=True)

    @property
    def is_spread(self):
        """Whether the rows lie over several devices: predictions are of all of them then, compiled bytes of one."""
        return self.args[1].sharding.num_devices > 1

    @property
    def how(self):
        return {"argnums": self.argnums, "has_aux": True}

    def traced(self, fn):
        """The gradient step that a user compiles, traced."""
        return jax.jit(self.gradient(fn), compiler_options=rp.compiler_options()).trace(*self.args)


@dataclass(frozen=True)
class Ran:
    """One gradient step: its program, what it returned, told and needed."""

    text: str
    out: Any
    told: Any
    peak_bytes: int


def run_step(case, fn):
    """Trace it once, compile it once, ask for its bytes, run it."""
    traced = case.traced(fn)
    compiled = traced.lower().compile()
    memory = compiled.memory_analysis()
    kept_bytes = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    SEEN.clear()
    out = jax.block_until_ready(compiled(*case.args))
    jax.effects_barrier()
    return Ran(text_of(traced), out, Counter(SEEN), kept_bytes + memory.temp_size_in_bytes)


def text_of(traced):
    """The program of a step, without addresses of functions."""
    return re.sub("0x[0-9a-f]+", "", str(traced.jaxpr))


def case_of(seed, longest=7, depth=2):
    """The case of a seed; only under ``jax.enable_x64(True)``."""
    rng = random.Random(seed)
    program = draw(rng, longest, depth, effects=rng.random() < 0.3, halves=rng.random() < 0.3)
    dtype = rng.choice([jnp.float32, jnp.float64])
    argnums = rng.choice([(0,), (0, 1)])
    args = arguments(ROWS, DIM, dtype)
    strategy = rng.choice(NAMED)
    if jax.device_count() > 1 and rng.random() < 0.5:
        p, x, *others = args
        args = (p, jax.device_put(x, over_rows()), *others)
    return Case(seed, program, loss_of(program), args, argnums, dtype, strategy)


def check(seed, **sizes):
    """Everything, for one seed. Returns a few words on what was tried."""
    with jax.enable_x64(True):
        case = case_of(seed, **sizes)
        try:
            want = run_step(case, case.loss)
        except jax.errors.JaxRuntimeError as error:
            if XLA_CANNOT not in str(error):
                raise
            return ["XLA cannot run the plain step"]
        curve = rp.tradeoff(case.loss, *case.args, **case.how)
        budgets = budgets_of(curve)
        done = [f"{len(case.program)} steps"]
        if budgets:
            check_budgets(case, curve, budgets)
            plan = verified(case, curve, random.Random(seed).choice(SHARES if case.is_spread else budgets))
            check_function(case, plan, want)
            done.append(f"{plan.compiled_peak_bytes} of {want.peak_bytes} bytes")
        check_function(case, by_name(case), want)
        return [*done, case.strategy]


def budgets_of(curve):
    """Budgets in bytes, from below the plain peak down; none where there is next to nothing to recompute."""
    low, high = curve.points[0].peak_bytes, curve.plan("100%", verify=False).predicted_peak_bytes
    return [low + (high - low) * i // STEPS for i in reversed(range(STEPS))] if low < 0.97 * high else []


def check_budgets(case, curve, budgets):
    """By prediction: within every budget, never less overhead with less memory (but for what
    the evaluator sees otherwise than the dynamic program), the same plan when made again.

    What is predicted to be faster than the plain step is all the same here, as it is to the search."""
    before = None
    for budget in budgets:
        plan = curve.plan(budget, verify=False)
        assert plan.predicted_peak_bytes <= budget, (case.seed, budget)
        if before is not None:
            told = (case.seed, "less overhead with less memory", budget, plan.overhead, before.overhead)
            assert max(plan.overhead, 0.0) >= max(before.overhead, 0.0) - EVALUATORS_OWN, told
        before = plan
    again = rp.plan(case.loss, *case.args, budget=budgets[-1], verify=False, **case.how)
    assert again.to_json() == before.to_json(), (case.seed, budgets[-1], "another plan")


def verified(case, curve, budget):
    """A plan that was compiled; where its budget cannot be met, at the least that was reached."""
    try:
        return curve.plan(budget)
    except rp.BudgetError as error:
        return curve.plan(error.minimum_bytes)


def by_name(case):
    """The plan of a strategy by name, without a compile; without a budget where there need be none."""
    budget = "100%" if rp.strategies()[case.strategy].budget == "needed" else None
    strategy = rp.Binomial(slots=2) if case.strategy == "binomial" else case.strategy
    return rp.plan(case.loss, *case.args, strategy=strategy, budget=budget, verify=False, **case.how)


def check_function(case, plan, want):
    """Bytes, values, gradients and effects; what JSON makes of the plan is the same function."""
    got = run_step(case, plan.apply(case.loss))
    if plan.compiled_peak_bytes is not None:
        told = (case.seed, plan.compiled_peak_bytes, plan.budget_bytes, got.peak_bytes, want.peak_bytes)
        assert plan.compiled_peak_bytes <= plan.budget_bytes, ("over the budget", told)
        assert got.peak_bytes <= plan.budget_bytes, ("what the user compiles is over the budget", told)
        plain = max(want.peak_bytes, plan.plain_peak_bytes)  # without checkpoints of its own it may need more
        assert got.peak_bytes <= plain, ("above plain", told)
    check_values(case, plan, got.out, want.out)
    if case.names & set(EFFECTS):
        numbers = [sorted(number for number, _ in ran.told.elements()) for ran in (got, want)]
        assert numbers[0] == numbers[1], (case.seed, plan.strategy, "effects", numbers)
    again = rp.Plan.from_json(plan.to_json())
    assert again == plan
    other = text_of(case.traced(again.apply(case.loss)))
    assert got.text == other, (case.seed, plan.strategy, "the plan from JSON is another function")


def check_values(case, plan, got, want):
    """Value, aux and gradients."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    np.testing.assert_array_equal(got[0][1]["labels"], want[0][1]["labels"])
    assert got[0][1]["key"] == want[0][1]["key"]
    pairs = ((got[0][0], want[0][0]), (got[0][1]["last"], want[0][1]["last"]))
    for one, other in (*pairs, *zip(jax.tree.leaves(got[1]), jax.tree.leaves(want[1]), strict=True)):
        assert one.dtype == other.dtype
        close(case, plan, np.asarray(one, np.float64), np.asarray(other, np.float64))


def close(case, plan, one, other):
    """Within the tolerance, by norms: one element that is rounded the other way is not the plan's fault."""
    assert one.shape == other.shape
    assert np.array_equal(np.isfinite(one), np.isfinite(other)), (case.seed, plan.strategy, "not finite")
    distance = np.linalg.norm(np.nan_to_num(one - other))
    scale = max(np.linalg.norm(np.nan_to_num(other)), 1e-3)
    assert distance <= case.tolerance * scale, (case.seed, plan.strategy, plan.budget, distance / scale)
