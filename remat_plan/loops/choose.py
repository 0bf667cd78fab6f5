"""Choosing a schedule for a loop by its memory and its recomputation.

In: the trip count, bytes of the carry, of a step's residuals and inputs, a budget. Out: a ``Schedule``, the cheapest
whose predicted bytes fit.

All steps of a loop cost the same, so schedules are compared by how often they evaluate the body beyond plain; which
one wins does not depend on what a step costs. Predicted bytes, with n steps of C bytes of carry, R of residuals and X
of inputs, beside the few working copies that all need:

    plain              n R                  0 further evaluations
    each               n C + R              n
    nested (k, g)      k C + g (R + X)      n
    binomial (s, m)    s C + m R            t_m(n, s)   (``solve.binomial``)

The last row is the trade between carry slots and residual slots: for each tape m in a fixed list the slots are what
the budget leaves. Where ``jax.checkpoint`` alone is nearly as cheap it is preferred, since it has all derivatives.

Limits: bytes are predicted, not compiled; gradients of weights and of xs are not counted, they are outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from remat_plan.loops.nested import log_factors, sqrt_factors
from remat_plan.small.budget import BudgetError, format_bytes
from remat_plan.solve.binomial import advances, useful_slots

WORKING_COPIES = 4
"""Carries that every schedule needs at once: before and after a step, their cotangents."""

PREFERENCE = 0.06
"""How many evaluations of the body for each step (a step and its backward pass are three) the schedules built of
``jax.checkpoint`` may cost more and still be taken."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """A loop in numbers: trip count; bytes of the carry, of the residuals of one step, of its inputs."""

    length: int
    carry_bytes: int
    residual_bytes: int
    x_bytes: int

    @property
    def working_bytes(self) -> int:
        """Bytes that every schedule needs."""
        return WORKING_COPIES * self.carry_bytes + self.residual_bytes

    @property
    def plain_bytes(self) -> int:
        """Bytes of the plain loop."""
        return self.length * self.residual_bytes + self.working_bytes


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a loop is run: ``"plain"``, ``"each"``, ``"nested"`` by factors or ``"binomial"`` by slots and tape."""

    kind: str
    factors: tuple[int, ...] = ()
    slots: int = 0
    tape: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule with its predicted bytes and its evaluations of the body beyond plain."""

    schedule: Schedule
    size_bytes: int
    evaluations: int


def nested_candidate(sizes: Sizes, factors: tuple[int, ...]) -> Candidate:
    """Return a nested scan as a candidate."""
    groups, steps = factors[:-1], factors[-1]
    # Each inner level holds its part of the inputs.
    inputs, part = 0, sizes.length
    for k in groups:
        part = -(-part // k)
        inputs += part * sizes.x_bytes
    size = sum(groups) * sizes.carry_bytes + steps * sizes.residual_bytes + inputs + sizes.working_bytes
    return Candidate(Schedule("nested", factors), size, len(groups) * sizes.length)


def binomial_candidate(sizes: Sizes, slots: int, tape: int) -> Candidate:
    """Return a table-driven schedule as a candidate."""
    slots = useful_slots(sizes.length, slots, tape)
    size = slots * sizes.carry_bytes + tape * sizes.residual_bytes + sizes.working_bytes
    return Candidate(Schedule("binomial", (), slots, tape), size, advances(sizes.length, slots, tape))


def binomial_candidates(sizes: Sizes, budget_bytes: int) -> Iterator[Candidate]:
    """Yield the table-driven schedules that use a budget: for tapes of powers of two, the slots that are left."""
    tape = 1
    while tape < max(sizes.length, 2):
        left = budget_bytes - sizes.working_bytes - tape * sizes.residual_bytes
        slots = min(left // max(sizes.carry_bytes, 1), sizes.length)
        if slots >= 1:
            yield binomial_candidate(sizes, slots, tape)
        tape *= 2


def checkpoint_candidates(sizes: Sizes) -> Iterator[Candidate]:
    """Yield the schedules built of ``jax.checkpoint``, and plain."""
    n = sizes.length
    yield Candidate(Schedule("plain"), sizes.plain_bytes, 0)
    yield Candidate(Schedule("each"), n * sizes.carry_bytes + sizes.working_bytes, n)
    ratio = (sizes.residual_bytes + sizes.x_bytes) / max(sizes.carry_bytes, 1)
    yield nested_candidate(sizes, sqrt_factors(n, ratio))
    yield nested_candidate(sizes, log_factors(n))


def choose(sizes: Sizes, budget_bytes: int, name: str, tabled: bool = False) -> Schedule:
    """Return the schedule with the fewest evaluations that fits; ``tabled``: of slots against tape only.

    Raises:
        BudgetError: none fits.

    Example:
        >>> choose(Sizes(1000, 100, 200, 0), 30_000, "scan")
        Schedule(kind='binomial', factors=(), slots=7, tape=128)
        >>> choose(Sizes(1000, 100, 200, 0), 3_000, "scan")
        Schedule(kind='binomial', factors=(), slots=16, tape=4)
    """
    checkpointed = () if tabled else checkpoint_candidates(sizes)
    found = [c for c in (*checkpointed, *binomial_candidates(sizes, budget_bytes)) if c.size_bytes <= budget_bytes]
    if not found:
        least = binomial_candidate(sizes, 1, 1).size_bytes
        raise BudgetError(
            f"{name}: budget={format_bytes(budget_bytes)} cannot be met. The minimum is {format_bytes(least)}: one "
            f"stored carry of {format_bytes(sizes.carry_bytes)}, the residuals of one step "
            f"({format_bytes(sizes.residual_bytes)}), and working copies.",
            minimum_bytes=least,
            budget_bytes=budget_bytes,
            where="one step of the loop",
            largest=(f"the carry ({format_bytes(sizes.carry_bytes)})",),
        )
    extra = PREFERENCE * sizes.length
    cost = lambda c: (c.evaluations + (extra if c.schedule.kind == "binomial" else 0), c.size_bytes)  # noqa: E731
    return min(found, key=cost).schedule
